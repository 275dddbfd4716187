"""Builds the small GPT, or a class of transformers at a small size, from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpt_parts import VOCAB_SIZE, Shape
from benchmarks.init_steps import HEALTHY, Loss
from benchmarks.small_gpt import GPT, Join, Step, pre_norm

Factory = Callable[..., nn.Module]

SMALL = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256}
ROTARY = {"positions": "rotary"}


def build(
    *damages: Step,
    init: tuple[Step, ...] = HEALTHY,
    seed: int = 0,
    join: Join = pre_norm,
    kind: type[GPT] = GPT,
    loss: Loss | None = None,
    on_meta: bool = False,
    tied_again: bool = False,
    dtype: torch.dtype = torch.float32,
    training: bool = False,
    **shape: Any,
) -> GPT:
    """Build a model whose init function is `init` and then `damages`; the caller's random state stays as it is.

    Args:
        on_meta: as large models are: built on the meta device, given memory by to_empty, then initialised.
        tied_again: with on_meta, whether the tie that to_empty loses is made again.
        shape: fields of Shape.
    """
    steps = (*init, *damages)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if on_meta:
            with torch.device("meta"):
                model = kind(Shape(**shape), join, steps)
            model.to_empty(device="cpu")
            if tied_again:
                model.tie_weights()
            model.init_weights()
        else:
            model = kind(Shape(**shape), join, steps)
    if loss is not None:
        model.loss = loss
    return model.to(dtype).train(training)


def hugging_face(name: str, sizes: Mapping[str, Any], seed: int = 0) -> nn.Module:
    """Build a class of transformers, "Gemma:ForCausalLM", at a small size from its own config class."""
    import transformers

    family, head = name.split(":")
    config = getattr(transformers, f"{family}Config")(**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = getattr(transformers, family + head)(config)
    return model.eval()


def hf(name: str, **sizes: Any) -> Factory:
    common = {"vocab_size": VOCAB_SIZE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return partial(hugging_face, name, {**common, **sizes})


def small_llama(seed: int = 0, loss: Callable[..., Tensor] | None = None) -> nn.Module:
    model = hf("Llama:ForCausalLM", **SMALL, num_key_value_heads=2)(seed=seed)
    if loss is not None:
        model.loss_function = loss
    return model


def in_place_loss(logits: Tensor, labels: Tensor, vocab_size: int, **_: Any) -> Tensor:
    """The loss of a masked language model, which moves nothing, in a causal one: `loss_type` set wrongly."""
    return F.cross_entropy(logits.float().view(-1, vocab_size), labels.view(-1))
