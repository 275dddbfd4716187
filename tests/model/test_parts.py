"""Norms and positions, alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from initdiag.model.architecture import RotaryScaling
from initdiag.model.layers import LayerNorm, RMSNorm
from initdiag.model.positions import rotate, rotation, scaled, sinusoids
from tests.model import plain
from tests.small_models import normals, shaken

LIKE = torch.empty(0)
LLAMA_31 = RotaryScaling(factor=8, low=1, high=4, context=8192)
SHORTER = RotaryScaling(factor=8, low=0.5, high=2, context=24)


@pytest.mark.parametrize(("length", "width"), [(1, 2), (50, 64), (300, 8)])
def test_sinusoids_are_those_of_the_paper(length: int, width: int) -> None:
    # an angle of up to 300 in float32 is off by up to 300 · 2^-24 · a few roundings
    torch.testing.assert_close(
        sinusoids(length, width, LIKE).double(), plain.paper_sinusoids(length, width), rtol=0, atol=1e-4
    )


@pytest.mark.parametrize(
    ("base", "scaling"),
    [(1e4, None), (5e5, None), (5e5, LLAMA_31), (100.0, SHORTER)],
    ids=str,
)
@pytest.mark.parametrize(("length", "head_dim"), [(1, 2), (30, 16), (300, 64)])
def test_rotary_turns_complex_numbers(length: int, head_dim: int, base: float, scaling: RotaryScaling | None) -> None:
    x = normals(2, 3, length, head_dim, dtype=torch.float64)
    found = rotate(x, *rotation(length, head_dim, x, base, scaling))
    for b in range(2):
        for h in range(3):
            torch.testing.assert_close(found[b, h], plain.turned(x[b, h], base, scaling), rtol=0, atol=1e-3)


def test_rotary_scores_depend_on_distance_alone() -> None:
    q, k = normals(8, dtype=torch.float64), normals(8, seed=1, dtype=torch.float64)
    turn = rotation(40, 8, q, base=1e4)
    queries, keys = (rotate(x.expand(1, 1, 40, 8), *turn)[0, 0] for x in (q, k))
    scores = queries @ keys.T
    for distance in (0, 1, 7):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert float(scores.std()) > 0.1


def test_the_scaling_of_llama_by_hand() -> None:
    """8192 tokens: 10, 4, 2.5, 1 and 0.5 turns; from 4 on nothing changes, up to 1 all of it, 2.5 is half way."""
    turns = torch.tensor([10.0, 4.0, 2.5, 1.0, 0.5], dtype=torch.float64)
    ratio = scaled(turns * 2 * math.pi / 8192, LLAMA_31) / (turns * 2 * math.pi / 8192)
    expected = torch.tensor([1, 1, 9 / 16, 1 / 8, 1 / 8], dtype=torch.float64)
    torch.testing.assert_close(ratio, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@torch.no_grad()
def test_norms_are_pytorchs(eps: float) -> None:
    x = 3 + 2 * normals(4, 7, 32)
    for mine, theirs in (
        (LayerNorm(32, eps, bias=True), nn.LayerNorm(32, eps)),
        (LayerNorm(32, eps, bias=False), nn.LayerNorm(32, eps, bias=False)),
        (RMSNorm(32, eps), nn.RMSNorm(32, eps)),
    ):
        shaken(mine)
        theirs.load_state_dict(mine.state_dict())
        torch.testing.assert_close(mine(x), theirs(x))


@torch.no_grad()
def test_norms_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0]])  # mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5, mean square 12.5
    layer_norm, rms_norm = LayerNorm(4, 0.5, bias=True), RMSNorm(4, 0.5)
    layer_norm.weight.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    layer_norm.bias.fill_(10.0)
    rms_norm.weight.fill_(2.0)
    torch.testing.assert_close(layer_norm(x), torch.tensor([[9.0, 9.0, 10.0, 16.0]]))  # ÷ √(3.5 + 0.5) = 2
    torch.testing.assert_close(rms_norm(x), 2 * x / 13**0.5)
