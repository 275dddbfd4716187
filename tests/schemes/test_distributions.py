"""Distributions as values: their moments against integrals over z, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist

import pytest

from initdiag.schemes import Constant, Distribution, Normal, Uniform
from initdiag.schemes.distributions import Truncated


def moment(of_z: Callable[[float], float], power: int) -> float:
    """E[of_z(z)^power], z ~ N(0, 1), by the trapezoid rule over ±12: exact to 1e-12 for smooth integrands."""
    step = 0.001
    nodes = (step * i for i in range(-12_000, 12_001))
    return math.fsum(of_z(z) ** power * math.exp(-z * z / 2) for z in nodes) * step / math.sqrt(2 * math.pi)


def truncated(sigma: float, cut: float) -> Callable[[float], float]:
    """sigma·Φ⁻¹(Φ(−c) + (Φ(c) − Φ(−c))·Φ(z)), mirrored where Φ(z) would round to 1."""
    standard = NormalDist()
    low, mass = standard.cdf(-cut), standard.cdf(cut) - standard.cdf(-cut)

    def of_z(z: float) -> float:
        return math.copysign(sigma * standard.inv_cdf(low + mass * standard.cdf(-abs(z))), z)

    return lambda z: of_z(z) if z else 0.0


AS_FUNCTION_OF_Z: list[tuple[Distribution, Callable[[float], float]]] = [
    (Normal(0.02), lambda z: 0.02 * z),
    (Normal(3.0), lambda z: 3.0 * z),
    (Uniform(0.5), lambda z: 0.5 * math.erf(z / math.sqrt(2))),
    (Uniform(2.0), lambda z: 2.0 * math.erf(z / math.sqrt(2))),
    (Truncated(0.02, 2.0), truncated(0.02, 2.0)),
    (Truncated(1.0, 0.5), truncated(1.0, 0.5)),
    (Truncated(3.0, 3.0), truncated(3.0, 3.0)),
]


@pytest.mark.parametrize(
    ("distribution", "of_z"), AS_FUNCTION_OF_Z, ids=lambda value: "" if callable(value) else str(value)
)
def test_std_and_kurtosis(distribution: Distribution, of_z: Callable[[float], float]) -> None:
    square = moment(of_z, 2)
    assert distribution.std == pytest.approx(math.sqrt(square), rel=1e-9)
    assert distribution.kurtosis == pytest.approx(moment(of_z, 4) / square**2, rel=1e-9)


def test_a_cut_normal_lies_between_uniform_and_normal() -> None:
    assert Truncated(1.0, 2.0).std == pytest.approx(0.8796, abs=5e-5)  # the factor that JAX divides by
    assert Truncated(1.0, 3.0).std == pytest.approx(0.9866, abs=5e-5)
    assert Truncated(1.0, 9.0).std == pytest.approx(1.0, rel=1e-12)
    assert Truncated(1.0, 9.0).kurtosis == pytest.approx(3.0, rel=1e-12)
    assert Truncated(1.0, 0.05).std == pytest.approx(Uniform(0.05).std, rel=1e-3)
    assert Truncated(1.0, 0.05).kurtosis == pytest.approx(1.8, rel=1e-3)


def test_a_constant_has_no_spread_and_no_shape() -> None:
    assert Constant(3.0).std == 0
    assert math.isnan(Constant(3.0).kurtosis)


@pytest.mark.parametrize(
    ("distribution", "written"),
    [
        (Normal(0.02), "N(0.02)"),
        (Normal(0.02 / math.sqrt(24)), "N(0.004082)"),  # 0.02/√24 = 0.00408248…
        (Uniform(1 / math.sqrt(768)), "U(0.03608)"),  # 1/√768 = 0.0360843…
        (Truncated(0.02, 2.0), "N(0.02)<2σ"),
        (Constant(1.0), "1"),
        (Constant(0.0), "0"),
    ],
)
def test_written(distribution: Distribution, written: str) -> None:
    assert str(distribution) == written
