"""torch itself: what its constructors and torch.nn.init draw, beside the schemes that are named after them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from initdiag.model.parameters import parameters
from initdiag.schemes.roles import EMBEDDINGS, Role
from tests.originals.compare import same_draws
from tests.parity.tools import apart, renamed, shape_of

MODEL: dict[str, Any] = {
    "vocab_size": 211,
    "context": 96,
    "d_model": 96,
    "n_layers": 2,
    "n_heads": 4,
    "d_ff": 160,
    "gated": True,
    "tied": False,
    "biases": {"qkv": True, "out": True, "mlp": True, "norm": True, "head": True},
}


def test_constructors() -> None:
    torch.manual_seed(0)
    theirs: dict[str, Tensor] = {}
    for one in parameters(shape_of(MODEL)):
        if one.name in theirs:
            continue
        path, module = one.name.removesuffix(".weight"), _module(one.role, one.shape)
        theirs.update({f"{path}.{name}": x for name, x in module.named_parameters()})
    same_draws("default", MODEL, theirs)


def _module(role: Role, shape: tuple[int, ...]) -> nn.Module:
    if role in EMBEDDINGS:
        return nn.Embedding(*shape)
    return nn.LayerNorm(shape) if role is Role.NORM_SCALE else nn.Linear(shape[1], shape[0])


NAMES = {
    "self_attn.in_proj.query": "attention.query",
    "self_attn.in_proj.key": "attention.key",
    "self_attn.in_proj.value": "attention.value",
    "self_attn.out_proj": "attention.out",
    "linear1": "mlp.input",
    "linear2": "mlp.out",
    "norm1": "attention_norm",
    "norm2": "mlp_norm",
    "norm": "final_norm",
}


def test_transformer() -> None:
    torch.manual_seed(1)
    built = nn.Transformer(96, 4, num_encoder_layers=3, num_decoder_layers=1, dim_feedforward=160, batch_first=True)
    state = {name.replace("in_proj_", "in_proj."): x for name, x in built.encoder.named_parameters()}
    parts = ("in_proj.query", "in_proj.key", "in_proj.value")
    theirs = renamed(apart(state, "in_proj", parts, lambda x: x.chunk(3)), "layers", NAMES)
    torch.manual_seed(2)  # neither embedding nor head is in nn.Transformer
    theirs["token_embedding.weight"] = nn.Embedding(211, 96).weight
    theirs["head.weight"] = nn.Linear(96, 211, bias=False).weight
    model = {**MODEL, "n_layers": 3, "gated": False, "position": "sinusoidal", "biases": True, "final_norm": True}
    same_draws(
        "torch-transformer",
        {**model, "placement": "post"},
        theirs,
        other=("query.bias", "key.bias", "value.bias", "attention.out.bias"),  # 0 in torch, as the scheme's notes say
    )
    for name, x in theirs.items():
        if "attention." in name and name.endswith(".bias"):
            assert not x.any(), name


INITS: dict[str, Callable[[Tensor], Any]] = {
    "xavier-uniform": nn.init.xavier_uniform_,
    "xavier-normal": nn.init.xavier_normal_,
    "kaiming-uniform": lambda x: nn.init.kaiming_uniform_(x, nonlinearity="relu"),
    "kaiming-normal": lambda x: nn.init.kaiming_normal_(x, nonlinearity="relu"),
    "orthogonal": nn.init.orthogonal_,
    "bert": lambda x: nn.init.trunc_normal_(x, std=0.02, a=-0.04, b=0.04),  # as timm and others write it
}


@pytest.mark.parametrize("scheme", INITS)
def test_init_functions(scheme: str) -> None:
    """The loop over all parameters of two axes that people write; biases and norms as the constructors leave them."""
    torch.manual_seed(3)
    bare, theirs = {**MODEL, "norm": "rmsnorm", "biases": False}, dict[str, Tensor]()
    for one in parameters(shape_of(bare)):
        theirs[one.name] = torch.ones(one.shape) if one.role is Role.NORM_SCALE else torch.empty(one.shape)
        if scheme == "orthogonal" and one.role in EMBEDDINGS:  # an embedding is not one matrix of a linear layer
            nn.init.normal_(theirs[one.name])
        elif one.role is not Role.NORM_SCALE:
            INITS[scheme](theirs[one.name])
    same_draws(scheme, bare, theirs)
