"""Moments of activations under a centred Gaussian. Pure Python."""

from __future__ import annotations

import math
from collections.abc import Callable


def _normal_cdf(u: float) -> float:
    return 0.5 * math.erfc(-u / math.sqrt(2))


def _silu(u: float) -> float:
    return u / (1 + math.exp(-u)) if u > -700 else 0.0


def _gelu_tanh(u: float) -> float:
    return 0.5 * u * (1 + math.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u * u * u)))  # arXiv 1606.08415, section 2


ACTIVATIONS: dict[str, Callable[[float], float]] = {
    "gelu": lambda u: u * _normal_cdf(u),
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda u: _silu(1.702 * u) / 1.702,  # u·sigmoid(1.702u)
    "relu": lambda u: max(u, 0.0),
    "relu2": lambda u: max(u, 0.0) ** 2,
    "silu": _silu,
}

_REACH, _STEPS = 10.0, 2000  # the trapezoid rule over ±10 std: exact to about 1e-12 for smooth integrands


def mean_square(activation: str, std: float) -> float:
    """Return E[φ(u)²] for u ~ N(0, std²).

    >>> round(mean_square("relu", 1.0), 6)
    0.5
    """
    return second_moment(ACTIVATIONS[activation], std)


def second_moment(phi: Callable[[float], float], std: float) -> float:
    """Return E[phi(u)²] for u ~ N(0, std²)."""
    return first_moment(lambda u: phi(u) * phi(u), std)


def first_moment(phi: Callable[[float], float], std: float) -> float:
    """Return E[phi(u)] for u ~ N(0, std²)."""
    step = 2 * _REACH / _STEPS
    nodes = (-_REACH + step * i for i in range(_STEPS + 1))
    return math.fsum(phi(std * z) * math.exp(-z * z / 2) for z in nodes) * step / math.sqrt(2 * math.pi)
