"""microsoft/mup: set_base_shapes, mup.init.normal_ and MuReadout on a Transformer-shaped module."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from initdiag.model.parameters import parameters
from initdiag.schemes.roles import EMBEDDINGS, Role
from tests.originals.compare import package, same_draws
from tests.parity.tools import shape_of

pytestmark = pytest.mark.usefixtures("originals")

VOCAB_SIZE, HEAD_DIM = 211, 16


def model(width: int) -> dict[str, object]:
    return {
        **{"vocab_size": VOCAB_SIZE, "context": 64, "d_model": width, "n_layers": 2, "n_heads": width // HEAD_DIM},
        **{"head_dim": HEAD_DIM, "d_ff": 2 * width, "gated": True, "norm": "rmsnorm", "biases": False, "tied": False},
    }


def built(width: int, zero: bool) -> nn.Module:
    """A module with our names, of nn.Embedding, nn.Linear, nn.RMSNorm and, for the head, MuReadout."""
    root = nn.Module()
    for one in parameters(shape_of(model(width))):
        *path, _ = one.name.split(".")
        parent = root
        for part in path[:-1]:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = getattr(parent, part)
        if one.role in EMBEDDINGS:
            child: nn.Module = nn.Embedding(*one.shape)
        elif one.role is Role.NORM_SCALE:
            child = nn.RMSNorm(one.shape)
        elif one.role is Role.LM_HEAD:
            child = package("mup").MuReadout(width, VOCAB_SIZE, bias=False, readout_zero_init=zero, output_mult=3.0)
        else:
            child = nn.Linear(one.shape[1], one.shape[0], bias=False)
        parent.add_module(path[-1], child)
    return root


def drawn(zero: bool) -> nn.Module:
    """As the README says: base shapes first, then the package's own init of every matrix; queries may be 0."""
    torch.manual_seed(3)
    module = built(128, zero)
    package("mup").set_base_shapes(module, built(32, zero), delta=built(64, zero))
    for name, x in module.named_parameters():
        if "query" in name and zero:
            nn.init.zeros_(x)
        elif "norm" not in name and not (zero and name.startswith("head")):
            package("mup.init").normal_(x, std=0.05)
    return module


def test_weights_and_logits() -> None:
    given = {"std": 0.05, "base_width": 32, "output_multiplier": 3.0}
    module = drawn(zero=False)
    theirs = dict(module.named_parameters())
    shape = same_draws("mup", model(128), theirs, {**given, "readout": "normal", "query": "normal"})
    stream = torch.randn(8, 128)
    logits = stream @ theirs["head.weight"].mT * float(shape.logit_multiplier)
    torch.testing.assert_close(module.get_submodule("head")(stream), logits)


def test_recommended_zeros() -> None:
    same_draws("mup", model(128), dict(drawn(zero=True).named_parameters()), {"std": 0.05, "base_width": 32})
