"""What two softmaxes over one vocabulary have in common."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from initdiag.theory.activations import Array
from initdiag.theory.free_energy import free_energy
from initdiag.theory.loss import critical_std

FEW = 3e-4  # Σ q² of a softmax: up to there it is e^var/V
SMALL = 1.1  # e^var that holds in a vocabulary of any size
CLOSE = 0.5  # std of what is different in two logits; the first that is calculated
NEAR = 6  # std of what is different, between that and half of the logits' own, ...
CORRELATIONS = (0.62, 0.5, 0.39, 0.28, 0.17, 0.06)  # ... and correlations, between which is interpolated
FROZEN = 5.0  # critical stds, from where which tokens have a part hardly changes: met or not, by the largest logits
STEP = 0.4  # of what is integrated over, which is smooth over 1 or more
FAR = 8.0  # stds of a normal, and where exp(−e^x) is 0 or 1

_NORMAL = np.linspace(-FAR, FAR, 161)
_NORMAL_WEIGHTS = np.exp(-(_NORMAL**2) / 2) / np.exp(-(_NORMAL**2) / 2).sum()


def of_few(vocab_size: int, variances: Array) -> NDArray[np.bool_]:
    """Return whether softmaxes over V Gaussians of these variances are spread on few of them."""
    return (variances > math.log(max(vocab_size * FEW, SMALL))) & (vocab_size > 1)


def overlap(vocab_size: int, covariances: Array) -> Array:
    """Return V·Σ_v q_v·q'_v of softmaxes over V Gaussians whose logits have these covariances, pair by pair: (n, n).

    e^cov as long as many tokens have a part in each, less what a small vocabulary has in its mean logit, which no
    softmax sees. Beyond, `met_by_few` of one std for all, between correlations that it is calculated for.
    """
    found: Array = np.exp(np.minimum(covariances * (1 - 1 / vocab_size), 700.0))
    variances = np.diagonal(covariances)
    few = of_few(vocab_size, variances)
    if not few.any():
        return found
    std = min(math.sqrt(float(variances[few].mean())), FROZEN * max(critical_std(vocab_size), 1.0))
    met = np.outer(few, few)
    apart = np.sqrt(np.maximum(1 - (covariances / np.sqrt(np.outer(variances, variances)))[met], 0.0))
    at = np.append(np.geomspace(min(CLOSE / std, 0.25), 0.5, NEAR), np.sqrt(1 - np.array(CORRELATIONS)))
    shares = [met_by_few(vocab_size, std, 1 - one**2) for one in at.tolist()]
    shares = [
        _participation(vocab_size, std),
        *shares,
        1 / vocab_size,
    ]  # of what is the same, ... has nothing in common
    found[met] = vocab_size * np.exp(np.interp(apart, [0.0, *at, 1.0], np.log(np.maximum(shares, 1e-300))))
    own = np.flatnonzero(few)
    found[own, own] = [vocab_size * _participation(vocab_size, math.sqrt(one)) for one in variances[own].tolist()]
    return found


def met_by_few(vocab_size: int, std: float, correlation: float) -> float:
    """Return E[Σ_v q_v·q'_v] of two softmaxes over V Gaussians of this std and correlation, 0 < correlation < 1.

    With 1/Z = ∫ e^(−tZ) dt for both, ln t = x, and independent tokens it is

        V·∬ E[h(x)·h(x')]·E[H(x)·H(x')]^(V − 1) dx dx',   H(x) = exp(−e^(x + a)), h = −dH/dx,

    of logits a and a' that share a normal of variance std²·correlation; over the rest of each, H and h are averaged
    first. No approximation but the grids.
    """
    rest, shared = std * math.sqrt(1 - correlation), std * math.sqrt(correlation)
    reach = max(critical_std(vocab_size), 1.0)
    step = STEP * max(1.0, min(rest, std / reach / 2))
    at = np.arange(-FAR * (1 + rest) - math.log(vocab_size), FAR * (0.5 + rest) + step, step / 2)
    power = np.exp(np.minimum(at[:, None] + rest * _NORMAL, 50.0))
    gone, slope = -np.expm1(-power) @ _NORMAL_WEIGHTS, (power * np.exp(-power)) @ _NORMAL_WEIGHTS  # 1 − H, h

    def normal(low: float, step: float) -> tuple[Array, Array]:
        nodes = np.arange(max(low, -FAR), FAR, min(step / shared, 0.1))
        return nodes, np.exp(-(nodes**2) / 2) * (nodes[1] - nodes[0]) / math.sqrt(2 * math.pi)

    # where V·E[1 − H] goes from e^-12 to e^4: there 1/Z is
    x = np.arange(-std * (2 * reach + std / 2) - 30, FAR, 4 * step)
    nodes, weights = normal(-FAR, 4 * step)
    many = np.log(np.maximum(vocab_size * (np.interp(x[:, None] + shared * nodes, at, gone) @ weights), 1e-300))
    x = np.arange(np.interp(-12.0, many, x) - 4 * step, np.interp(4.0, many, x) + 4 * step, step)
    nodes, weights = normal((at[0] - x[-1]) / shared, step)
    places = x[:, None] + shared * nodes
    away, met = np.interp(places, at, gone, 0.0, 1.0), np.interp(places, at, slope, 0.0, 0.0)
    each = away @ weights
    neither = np.log1p(np.maximum((away * weights) @ away.T - each[:, None] - each[None, :], -1 + 1e-12))
    return vocab_size * float((((met * weights) @ met.T) * np.exp((vocab_size - 1) * neither)).sum()) * step**2


def _participation(vocab_size: int, std: float) -> float:
    """Return E[Σ q²] = 1 − F'(std)/std of the free energy F, by Stein's lemma."""
    step = 0.03 * std
    above, below = (free_energy(vocab_size - 1, std + by)[0] for by in (step, -step))
    return 1 - (above - below) / (2 * step * std)
