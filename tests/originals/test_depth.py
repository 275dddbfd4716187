"""admin-torch and rezero: what they multiply stream and branches by, and rezero's layer inside nn.Transformer."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from initdiag.model.architecture import of_branch
from initdiag.model.planning import planned
from initdiag.schemes import scheme_named
from tests.originals.compare import package, same_draws
from tests.parity.tools import apart, renamed, shape_of

pytestmark = pytest.mark.usefixtures("originals")

MODEL = {"vocab_size": 211, "context": 64, "d_model": 96, "n_layers": 3, "n_heads": 4, "d_ff": 160}


@pytest.mark.parametrize("n_layers", [1, 6, 18])
def test_admin(n_layers: int) -> None:
    shape, _ = planned(shape_of({**MODEL, "n_layers": n_layers}), scheme_named("admin"))
    residual = package("admin_torch").as_module(2 * n_layers)
    stream, branch = torch.randn(2, 16)
    for k in (1, 2 * n_layers):
        torch.testing.assert_close(residual(stream, branch), of_branch(shape.stream_multiplier, k) * stream + branch)


NAMES = {
    "self_attn.query": "attention.query",
    "self_attn.key": "attention.key",
    "self_attn.value": "attention.value",
    "self_attn.out_proj": "attention.out",
    "linear1": "mlp.input",
    "linear2": "mlp.out",
    "attention_gain": "attention_gain",
    "mlp_gain": "mlp_gain",
}


def test_rezero() -> None:
    """Their layer has one number for both branches, and nn.Linear's biases in the MLP."""
    torch.manual_seed(6)
    layer = package("rezero.transformer").RZTXEncoderLayer(96, 4, dim_feedforward=160)
    encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    built = nn.Transformer(96, 4, custom_encoder=encoder, custom_decoder=nn.Identity())
    state = {name.replace("in_proj_", "in_proj."): x for name, x in built.encoder.named_parameters()}
    gains = {name: state.pop(name) for name in list(state) if name.endswith("resweight")}
    parts = ("query", "key", "value")
    theirs = renamed(apart(state, "in_proj", parts, lambda x: x.chunk(3)), "layers", NAMES)
    for name, x in gains.items():
        block = f"blocks.{name.split('.')[1]}"
        theirs |= {f"{block}.attention_gain.weight": x, f"{block}.mlp_gain.weight": x}
    for name, rows in (("token_embedding", 211), ("position_embedding", 64)):  # not part of the package
        theirs[f"{name}.weight"] = torch.randn(rows, 96) * 0.02
    same_draws("rezero", MODEL, theirs, other=("input.bias", "mlp.out.bias"))
