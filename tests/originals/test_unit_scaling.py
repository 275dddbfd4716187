"""graphcore's unit-scaling: the matrices that its layers apply, its residual weights, its attention."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from initdiag.model.architecture import of_branch
from initdiag.model.parameters import parameters
from initdiag.model.planning import planned
from initdiag.schemes import Role, scheme_named
from initdiag.schemes.roles import EMBEDDINGS
from tests.originals.compare import package, same_draws
from tests.parity.tools import shape_of

pytestmark = pytest.mark.usefixtures("originals")

MODEL = {
    **{"vocab_size": 211, "context": 64, "d_model": 96, "n_layers": 4, "n_heads": 4, "d_ff": 160},
    **{"gated": True, "norm": "rmsnorm", "biases": False, "tied": False},
}


def test_applied_matrices() -> None:
    """Weights are N(1) and divided in the forward pass: what a layer makes of unit vectors is the matrix applied."""
    uu = package("unit_scaling")
    torch.manual_seed(4)
    theirs: dict[str, Tensor] = {}
    for one in parameters(shape_of(MODEL)):
        if one.role is Role.NORM_SCALE:
            theirs[one.name] = uu.RMSNorm(one.shape, elementwise_affine=True).weight
        elif one.role in EMBEDDINGS:
            theirs[one.name] = uu.Embedding(*one.shape)(torch.arange(one.shape[0]))
        else:
            layer = (uu.LinearReadout if one.role is Role.LM_HEAD else uu.Linear)(one.shape[1], one.shape[0])
            theirs[one.name] = layer(torch.eye(one.shape[1])).mT
    same_draws("u-mup", MODEL, theirs)


@pytest.mark.parametrize(("alpha", "ratio"), [(1.0, 1.0), (0.5, 2.0), (2.0, 0.25)])
def test_residual_weights(alpha: float, ratio: float) -> None:
    """What residual_add makes of stream and branch, at the tau of transformer_residual_scaling_rule."""
    shape, _ = planned(shape_of(MODEL), scheme_named("u-mup"), {"residual_alpha": alpha, "attention_ratio": ratio})
    functional = package("unit_scaling.functional")
    rule = package("unit_scaling").transformer_residual_scaling_rule(alpha, ratio)
    for index in range(8):
        tau = rule(index, 8)
        found = functional.residual_add(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]), tau)
        ours = torch.tensor(
            [of_branch(shape.stream_multiplier, index + 1), of_branch(shape.residual_multiplier, index + 1)]
        )
        torch.testing.assert_close(found, ours)


def test_attention_and_activation_gains() -> None:
    """Their forward pass is that of the scheme up to the gains that its notes give, which go into the weights here."""
    functional = package("unit_scaling.functional")
    torch.manual_seed(5)
    tokens, head_dim, multiplier = 32, 24, 1.5
    query, key, value = torch.randn(3, 2, 4, tokens, head_dim)
    plain = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=multiplier / head_dim)
    theirs = functional.scaled_dot_product_attention(query, key, value, is_causal=True, mult=multiplier)
    gain = (tokens / math.log(tokens)) ** (0.5 - 0.5 / (1 + 4 * head_dim / multiplier**2))
    torch.testing.assert_close(theirs, gain * plain)
    up, gate = torch.randn(2, 64)
    torch.testing.assert_close(functional.silu_glu(up, gate), 2**0.75 * up * F.silu(gate))
