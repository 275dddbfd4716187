"""The script that a person would write instead of `initdiag check benchmarks/gpt2`: the Hugging Face class built from
its config, hooks that take the variance of what every residual projection writes and of every block's output, one
forward on 2 × 256 random tokens and the loss; with --backward, one backward and the norm of every gradient. The
baseline of overhead.py --modules."""

import sys
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM

BACKWARD = "--backward" in sys.argv
torch.manual_seed(0)
config = AutoConfig.from_pretrained(Path(__file__).parent / "gpt2")
model = AutoModelForCausalLM.from_config(config).eval()
variances = {}


def hook(name):
    def record(module, args, output):  # noqa: ARG001 - torch calls it so
        tensor = output[0] if isinstance(output, tuple) else output
        variances[name] = tensor.float().var().item()

    return record


for name, module in model.named_modules():
    if name.endswith("c_proj") or name.rpartition(".")[0].endswith(".h"):
        module.register_forward_hook(hook(name))
ids = torch.randint(config.vocab_size, (2, 256))
with torch.set_grad_enabled(BACKWARD):
    loss = model(input_ids=ids, labels=ids).loss
if BACKWARD:
    loss.backward()
    for name, parameter in model.named_parameters():
        print(name, parameter.grad.norm().item())
for name, variance in variances.items():
    print(name, variance)
print(loss.item())
