"""E[φ(u)²] and E[φ(u)] against closed forms, published constants and draws."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from initdiag.theory.gaussian import ACTIVATIONS, first_moment, mean_square, second_moment
from tests.sampling import assert_near

STDS = [1e-3, 0.1, 0.5543, 1.0, 3.0, 20.0]


@pytest.mark.parametrize("std", STDS)
def test_relu(std: float) -> None:
    assert mean_square("relu", std) == pytest.approx(std**2 / 2, rel=1e-9)


@pytest.mark.parametrize("std", STDS)
def test_squared_relu(std: float) -> None:
    """E[relu(u)⁴] is half of E[u⁴] = 3σ⁴."""
    assert mean_square("relu2", std) == pytest.approx(1.5 * std**4, rel=1e-9)


@pytest.mark.parametrize("std", STDS)
def test_means(std: float) -> None:
    """E[relu(u)] = σ/√(2π); E[uΦ(u)] = σ²·E[φ(u)] = σ²/√(2π(1 + σ²)) by Stein's lemma."""
    assert first_moment(ACTIVATIONS["relu"], std) == pytest.approx(std / math.sqrt(2 * math.pi), rel=1e-4)  # a kink
    closed = std**2 / math.sqrt(2 * math.pi * (1 + std**2))
    assert first_moment(ACTIVATIONS["gelu"], std) == pytest.approx(closed, rel=1e-9)
    assert first_moment(ACTIVATIONS["relu2"], std) == pytest.approx(std**2 / 2, rel=1e-9)


@pytest.mark.parametrize("limit", [0.1, 1.0, 3.0])
def test_clamped(limit: float) -> None:
    """E[clamp(z, ±c)²] = P(|z| < c) − 2cφ(c) + c²·P(|z| > c); of the kinks the trapezoid rule makes 1e-4."""
    density = math.exp(-(limit**2) / 2) / math.sqrt(2 * math.pi)
    outside = math.erfc(limit / math.sqrt(2))
    closed = 1 - outside - 2 * limit * density + limit**2 * outside
    assert second_moment(lambda u: max(-limit, min(u, limit)), 1.0) == pytest.approx(closed, rel=5e-4)


@pytest.mark.parametrize("std", STDS)
def test_gelu(std: float) -> None:
    """E[u²Φ(u)²] by Stein's lemma, twice: σ²(E[Φ²] + 2E[uφΦ]), E[uφΦ](1 + σ²) = σ²E[φ²]."""
    s = std**2
    square_of_cdf = 1 / 4 + math.asin(s / (1 + s)) / (2 * math.pi)
    square_of_density = 1 / (2 * math.pi * math.sqrt(1 + 2 * s))
    closed = s * (square_of_cdf + 2 * s / (1 + s) * square_of_density)
    assert mean_square("gelu", std) == pytest.approx(closed, rel=1e-9)


@pytest.mark.parametrize(
    ("activation", "std", "value"),
    [  # facts/schemes.md, section B
        ("gelu", 1.0, 0.42522),
        ("silu", 1.0, 0.35578),
        ("relu", 1.0, 0.5),
        ("gelu_tanh", 0.5543, 0.10648),
        ("gelu_tanh", 0.6325, 0.14556),
    ],
)
def test_published_constants(activation: str, std: float, value: float) -> None:
    assert mean_square(activation, std) == pytest.approx(value, abs=6e-6)


PYTORCHS = {
    "gelu": F.gelu,
    "gelu_tanh": lambda u: F.gelu(u, approximate="tanh"),
    "quick_gelu": lambda u: u * torch.sigmoid(1.702 * u),
    "relu": F.relu,
    "relu2": lambda u: F.relu(u).square(),
    "silu": F.silu,
}


@pytest.mark.parametrize("std", [0.5543, 2.0])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_draws_through_pytorchs_activations(activation: str, std: float) -> None:
    u = std * torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    squares = PYTORCHS[activation](u).square()
    error = float(squares.std()) / math.sqrt(len(squares))
    assert_near(mean_square(activation, std), float(squares.mean()), error, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_functions_are_pytorchs(activation: str) -> None:
    u = torch.linspace(-12, 12, 481, dtype=torch.float64)
    mine = torch.tensor([ACTIVATIONS[activation](float(value)) for value in u], dtype=torch.float64)
    torch.testing.assert_close(mine, PYTORCHS[activation](u), rtol=1e-12, atol=1e-14)


def test_far_tails_do_not_overflow() -> None:
    for name, phi in ACTIVATIONS.items():
        assert phi(-1e4) == pytest.approx(0, abs=1e-12)
        assert phi(1e4) == pytest.approx(1e8 if name == "relu2" else 1e4)
