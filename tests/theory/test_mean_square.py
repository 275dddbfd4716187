"""E[φ(u)²] and E[φ(u)] against closed forms, published constants and draws."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from initdiag.theory.activations import ACTIVATIONS, Activation, covariance, derivative, mean
from tests.sampling import assert_near


def mean_square(phi: Activation, std: float) -> float:
    """E[φ(u)²]: the covariance of a token with itself."""
    return float(covariance(phi, np.array([[std**2]]))[0][0, 0])


STDS = [1e-3, 0.1, 0.5543, 1.0, 3.0, 20.0]


@pytest.mark.parametrize("std", STDS)
def test_relu(std: float) -> None:
    assert mean_square(ACTIVATIONS["relu"], std) == pytest.approx(std**2 / 2, rel=1e-9)


@pytest.mark.parametrize("std", STDS)
def test_squared_relu(std: float) -> None:
    """E[relu(u)⁴] is half of E[u⁴] = 3σ⁴."""
    assert mean_square(ACTIVATIONS["relu2"], std) == pytest.approx(1.5 * std**4, rel=1e-9)


@pytest.mark.parametrize("std", STDS)
def test_means(std: float) -> None:
    """E[relu(u)] = σ/√(2π); E[uΦ(u)] = σ²·E[φ(u)] = σ²/√(2π(1 + σ²)) by Stein's lemma."""
    assert mean(ACTIVATIONS["relu"], std) == pytest.approx(std / math.sqrt(2 * math.pi), rel=1e-4)  # a kink
    closed = std**2 / math.sqrt(2 * math.pi * (1 + std**2))
    assert mean(ACTIVATIONS["gelu"], std) == pytest.approx(closed, rel=1e-9)
    assert mean(ACTIVATIONS["relu2"], std) == pytest.approx(std**2 / 2, rel=1e-9)


@pytest.mark.parametrize("limit", [0.1, 1.0, 3.0])
def test_clamped(limit: float) -> None:
    """E[clamp(z, ±c)²] = P(|z| < c) − 2cφ(c) + c²·P(|z| > c); of the kinks the midpoint rule makes 1e-4."""
    density = math.exp(-(limit**2) / 2) / math.sqrt(2 * math.pi)
    outside = math.erfc(limit / math.sqrt(2))
    closed = 1 - outside - 2 * limit * density + limit**2 * outside
    assert mean_square(lambda u: np.clip(u, -limit, limit), 1.0) == pytest.approx(closed, rel=5e-4)


@pytest.mark.parametrize("std", STDS)
def test_gelu(std: float) -> None:
    """E[u²Φ(u)²] by Stein's lemma, twice: σ²(E[Φ²] + 2E[uφΦ]), E[uφΦ](1 + σ²) = σ²E[φ²]."""
    s = std**2
    square_of_cdf = 1 / 4 + math.asin(s / (1 + s)) / (2 * math.pi)
    square_of_density = 1 / (2 * math.pi * math.sqrt(1 + 2 * s))
    closed = s * (square_of_cdf + 2 * s / (1 + s) * square_of_density)
    assert mean_square(ACTIVATIONS["gelu"], std) == pytest.approx(closed, rel=1e-9)


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
    assert mean_square(ACTIVATIONS[activation], std) == pytest.approx(value, abs=6e-6)


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
    assert_near(mean_square(ACTIVATIONS[activation], std), float(squares.mean()), error, activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_functions_are_pytorchs(activation: str) -> None:
    u = torch.linspace(-12, 12, 481, dtype=torch.float64)
    mine = torch.from_numpy(ACTIVATIONS[activation](u.numpy()))
    torch.testing.assert_close(mine, PYTORCHS[activation](u), rtol=1e-12, atol=1e-14)


def test_far_tails_do_not_overflow() -> None:
    for name, phi in ACTIVATIONS.items():
        low, high = phi(np.array([-1e4, 1e4])).tolist()
        assert low == pytest.approx(0, abs=1e-12)
        assert high == pytest.approx(1e8 if name == "relu2" else 1e4)


# --- between two tokens

RHOS = [-0.9, -0.3, 0.0, 0.2, 0.6, 0.9, 0.99, 1.0]


def between(phi: Any, rho: float, first: float = 1.0, second: float = 1.0) -> float:
    inputs = np.array([[first**2, rho * first * second], [rho * first * second, second**2]])
    return float(covariance(phi, inputs)[0][0, 1])


@pytest.mark.parametrize("rho", RHOS)
def test_relus_arc_cosine_kernel(rho: float) -> None:
    """(√(1 − ρ²) + ρ(π − arccos ρ))/2π: Cho & Saul 2009, degree 1. Behind 24 terms 1.4e-4 is left, put at ρ = 1."""
    closed = (math.sqrt(1 - rho**2) + rho * (math.pi - math.acos(rho))) / (2 * math.pi)
    assert between(ACTIVATIONS["relu"], rho) == pytest.approx(closed, abs=1.5e-4)
    assert between(ACTIVATIONS["relu"], rho, 0.3, 0.3) == pytest.approx(0.09 * closed, abs=1.5e-5)


@pytest.mark.parametrize("rho", RHOS)
def test_squared_relus_arc_cosine_kernel(rho: float) -> None:
    """(3 sin θ cos θ + (π − θ)(1 + 2cos² θ))/2π at σ = 1: Cho & Saul 2009, degree 2."""
    theta = math.acos(rho)
    closed = (3 * math.sin(theta) * rho + (math.pi - theta) * (1 + 2 * rho**2)) / (2 * math.pi)
    assert between(ACTIVATIONS["relu2"], rho) == pytest.approx(closed, abs=1e-4)


@pytest.mark.parametrize("rho", RHOS)
def test_the_step_has_the_arcsine_law(rho: float) -> None:
    """relu' is a step: P(u > 0, w > 0) = 1/4 + arcsin(ρ)/2π. Its expansion falls slowly: 0.04 is left."""
    closed = 1 / 4 + math.asin(rho) / (2 * math.pi)
    assert between(derivative(ACTIVATIONS["relu"]), rho) == pytest.approx(closed, abs=1e-3 if abs(rho) < 0.9 else 0.02)
    assert between(derivative(ACTIVATIONS["relu"]), 1.0) == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "quick_gelu", "silu"])
@pytest.mark.parametrize("stds", [(0.5, 0.5), (1.0, 1.0), (0.4, 2.5)])
def test_smooth_ones_beside_a_sum_over_two_gaussians(activation: str, stds: tuple[float, float]) -> None:
    """u = s₁z, w = s₂(ρz + √(1 − ρ²)z'), both by Gauss–Hermite with 96 nodes. Where stds differ, coefficients are
    interpolated between 24 of them: 2e-3."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(96)
    weights = weights / weights.sum()
    phi = ACTIVATIONS[activation]
    for rho in (-0.5, 0.0, 0.4, 0.9):
        other = phi(stds[1] * (rho * nodes[:, None] + math.sqrt(1 - rho**2) * nodes[None, :])) @ weights
        exact = float(weights @ (phi(stds[0] * nodes) * other))
        found = between(phi, rho, *stds)
        size = math.sqrt(mean_square(phi, stds[0]) * mean_square(phi, stds[1]))
        assert found == pytest.approx(exact, abs=(1e-4 if stds[0] == stds[1] else 2e-3) * size)


def test_nothing_in_gives_nothing() -> None:
    found, means = covariance(ACTIVATIONS["gelu"], np.zeros((3, 3)))
    assert not found.any()
    assert not means.any()
