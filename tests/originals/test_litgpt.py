"""litgpt: GPT._init_weights, and what its pretraining puts in their place (TinyLlama's)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.originals.compare import package, same_draws
from tests.parity.tools import apart, renamed

pytestmark = pytest.mark.usefixtures("originals")

SHAPE = {"vocab_size": 211, "context": 64, "d_model": 96, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "d_ff": 160}
LLAMA = {"norm": "rmsnorm", "gated": True, "biases": False, "position": "rotary", "tied": False}
NAMES = {
    "transformer.wte": "token_embedding",
    "norm_1": "attention_norm",
    "attn.query": "attention.query",
    "attn.key": "attention.key",
    "attn.value": "attention.value",
    "attn.proj": "attention.out",
    "norm_2": "mlp_norm",
    "mlp.fc_1": "mlp.gate",
    "mlp.fc_2": "mlp.input",
    "mlp.proj": "mlp.out",
    "transformer.ln_f": "final_norm",
    "lm_head": "head",
}


def built() -> Any:
    model = package("litgpt.pretrain")
    return model.GPT(
        model.Config(
            **{"padded_vocab_size": 211, "block_size": 64, "n_embd": 96, "n_layer": 3, "n_head": 4},
            **{"n_query_groups": 2, "intermediate_size": 160, "bias": False, "rotary_percentage": 1.0},
            **{"mlp_class_name": "LLaMAMLP", "norm_class_name": "RMSNorm"},
        )
    )


def by_our_names(module: nn.Module) -> dict[str, Tensor]:
    parts = ("attn.query", "attn.key", "attn.value")
    parted = apart(dict(module.named_parameters()), "attn.qkv", parts, lambda x: x.split((96, 48, 48)))
    return renamed(parted, "transformer.h", NAMES)


def test_model() -> None:
    torch.manual_seed(0)
    module = built()
    module.apply(module._init_weights)
    same_draws("litgpt", {**SHAPE, **LLAMA}, by_our_names(module))


def test_pretraining() -> None:
    torch.manual_seed(1)
    module = built()
    fabric = package("lightning").Fabric(accelerator="cpu", devices=1)
    package("litgpt.pretrain").initialize_weights(fabric, module, n_layer=3, n_embd=96)
    same_draws("tinyllama", {**SHAPE, **LLAMA}, by_our_names(module))
