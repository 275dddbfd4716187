"""ai2-olmo 0.3.0, of the time of OLMo 1B and 7B: OLMo.reset_parameters.

Its `normal` still divided ff_out by √(2N) through a mark on the module; what `olmo-normal` states came with 0.4.0.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.originals.compare import package, same_draws
from tests.parity.tools import apart, renamed

pytestmark = pytest.mark.usefixtures("originals")

SHAPE: dict[str, Any] = {"vocab_size": 256, "context": 64, "d_model": 96, "n_layers": 3, "n_heads": 4, "d_ff": 160}
NAMES = {
    "wte": "token_embedding",
    "wpe": "position_embedding",
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "attn_out": "attention.out",
    "input": "mlp.input",
    "gate": "mlp.gate",
    "ff_out": "mlp.out",
    "ln_f": "final_norm",
    "head": "head",
}


def draw(init: str, position: str = "rotary") -> dict[str, Tensor]:
    olmo, fields = package("olmo.model"), package("olmo.config")
    torch.manual_seed(2)
    config = fields.ModelConfig(
        **{"d_model": 96, "n_layers": 3, "n_heads": 4, "mlp_hidden_size": 320, "vocab_size": 256},
        **{"embedding_size": 256, "max_sequence_length": 64, "include_bias": False, "weight_tying": False},
        **{"layer_norm_with_affine": False, "rope": position == "rotary", "init_device": "cpu"},
        init_fn=fields.InitFnType(init),
        activation_type=fields.ActivationType.swiglu,
    )
    state = {
        name.removeprefix("transformer.").replace(
            "ff_out", "head" if name.startswith("transformer.ff") else "ff_out"
        ): x
        for name, x in olmo.OLMo(config).named_parameters()
    }
    whole = apart(state, "att_proj", ("query", "key", "value"), lambda x: x.chunk(3))
    return renamed(apart(whole, "ff_proj", ("input", "gate"), lambda x: x.chunk(2)), "blocks", NAMES)


@pytest.mark.parametrize("position", ["rotary", "learned"])
@pytest.mark.parametrize(
    ("init", "scheme"),
    [("mitchell", "olmo-mitchell"), ("full_megatron", "olmo-full-megatron"), ("mitchell", "open-lm")],
)
def test_reset_parameters(scheme: str, init: str, position: str) -> None:
    """open_lm states the same formulas as mitchell."""
    model = {**SHAPE, "gated": True, "biases": False, "norm_scale": "none", "tied": False, "position": position}
    same_draws(scheme, model, draw(init, position))
