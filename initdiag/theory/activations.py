"""Activations of Gaussian inputs: their second moments between tokens, by Hermite expansion."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Activation = Callable[[Array], Array]

_erf = np.vectorize(math.erf, otypes=[float])


def _gelu(u: Array) -> Array:
    half: Array = 0.5 * u
    return half * (1 + _erf(u / math.sqrt(2)))


def _gelu_tanh(u: Array) -> Array:
    half: Array = 0.5 * u
    return half * (1 + np.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))  # arXiv 1606.08415, section 2


def _silu(u: Array) -> Array:
    half: Array = 0.5 * u
    return half * (1 + np.tanh(half))  # u·sigmoid(u), without overflow


ACTIVATIONS: dict[str, Activation] = {
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "quick_gelu": lambda u: _silu(1.702 * u) / 1.702,  # u·sigmoid(1.702u)
    "relu": lambda u: np.maximum(u, 0.0),
    "relu2": lambda u: np.maximum(u, 0.0) ** 2,
    "silu": _silu,
}

# The midpoint rule over ±10 std: exact to rounding where the integrand is smooth, and to 1e-5 beside a kink. No node
# lies at 0, where the derivative of a ReLU has two values.
_STEP = 0.02
_NODES = _STEP * (np.arange(-500, 500) + 0.5)
_WEIGHTS = _STEP * np.exp(-(_NODES**2) / 2) / math.sqrt(2 * math.pi)

TERMS = 24  # of the expansion, at most; what is left of ReLU's E[φ²] behind them is 0.1 %
NOTHING = 1e-24  # a factor of that, in units of the largest, is rounding
LEFT = 1e-6  # part of E[φ²] behind which no more terms are needed
ALIKE = 1e-4  # relative spread of stds up to which they are one
STDS = 24  # between which coefficients are interpolated, where tokens have different ones


def _hermite(terms: int) -> Array:
    """Return the Hermite polynomials that are orthonormal under N(0, 1), at the nodes: (terms, nodes)."""
    rows: list[Array] = [np.ones_like(_NODES), _NODES]
    for k in range(1, terms - 1):
        rows.append((_NODES * rows[k] - math.sqrt(k) * rows[k - 1]) / math.sqrt(k + 1))
    return np.array(rows[:terms])


_PROJECTION = _hermite(TERMS) * _WEIGHTS


def mean(phi: Activation, std: float) -> float:
    """Return E[phi(u)] for u ~ N(0, std²)."""
    return float(_WEIGHTS @ phi(std * _NODES))


def covariance(phi: Activation, inputs: Array) -> tuple[Array, Array]:
    """Return E[phi(u_i)·phi(u_j)], (n, n), and E[phi(u_i)], (n,), for centred Gaussian u of covariance `inputs`.

    With φ(s·z) = Σ c_k(s) he_k(z), where the he_k are orthonormal under N(0, 1), it is Σ c_k(s_i) c_k(s_j) ρᵏ for
    correlation ρ (Mehler's formula). What is left of E[φ²] behind the last term is put onto the power that follows:
    that makes it exact at ρ = 1.
    """
    std = np.sqrt(np.diagonal(inputs))
    safe = np.where(std > 0, std, 1.0)
    rho = inputs / safe[:, None] / safe[None, :]
    np.clip(rho, -1.0, 1.0, out=rho)
    terms = _coefficients(phi, std)  # (terms + 1, n) or (terms + 1, 1)
    if terms.shape[1] == 1:
        found = _series(terms[:, 0] ** 2, rho)
    else:
        found = np.outer(terms[-1], terms[-1])
        for term in terms[-2::-1]:
            found *= rho
            found += np.outer(term, term)
    return found, np.broadcast_to(terms[0], std.shape)


def _series(factors: Array, rho: Array) -> Array:
    """Return Σ_k factors_k·rhoᵏ by Horner's rule, which jumps over powers that are missing: those of an activation that
    is u/2 and an even function, which most are."""
    steps, least = {1: rho, 2: rho * rho}, NOTHING * factors.max()
    found, gap = np.full_like(rho, factors[-1]), 0
    for factor in factors[-2::-1].tolist():
        gap += 1
        if factor > least:
            found *= steps[gap]
            found += factor
            gap = 0
        elif gap == 2:
            found *= steps[gap]
            gap = 0
    return found * steps[gap] if gap else found


def _coefficients(phi: Activation, std: Array) -> Array:
    """Return c_k(s) for every s, one column for all where they are alike; the last row is √(E[φ²] − Σ c_k²)."""
    low, high = float(std.min()), float(std.max())
    if high <= low * (1 + ALIKE):
        return _expanded_at(phi, float(f"{float(std.mean()):.7g}"))
    low = max(low, 1e-6 * high)
    at = np.geomspace(low, high, STDS)
    table, places = _expanded(phi, at), np.log(np.maximum(std, low))
    return np.array([np.interp(places, np.log(at), row) for row in table])


@lru_cache(maxsize=64)  # what a norm gives has the same std in all layers, but for its eps
def _expanded_at(phi: Activation, std: float) -> Array:
    return _expanded(phi, np.array([std]))


def _expanded(phi: Activation, stds: Array) -> Array:
    values = phi(stds[:, None] * _NODES)  # (s, nodes)
    found = _PROJECTION @ values.T  # (terms, s)
    left = values**2 @ _WEIGHTS - np.cumsum(found**2, axis=0)
    small = np.all(left <= LEFT * np.maximum(left + np.cumsum(found**2, axis=0), 1e-300), axis=1)
    terms = int(np.argmax(small)) + 1 if small.any() else TERMS
    return np.vstack((found[:terms], np.sqrt(np.maximum(left[terms - 1], 0.0))))


@lru_cache(maxsize=16)  # one function for one: `covariance` knows again what it has expanded
def squared(phi: Activation) -> Activation:
    return lambda u: phi(u) ** 2


@lru_cache(maxsize=16)
def derivative(phi: Activation) -> Activation:
    """Return φ', by central differences 1e-4 wide: off by 1e-8 of φ'''."""
    return lambda u: (phi(u + 1e-4) - phi(u - 1e-4)) / 2e-4
