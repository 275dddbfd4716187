"""Logits and loss of a state whose Gram is known: std, self-logit, entropy, at every position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from initdiag.measure import LogitMeasure, LossMeasure, PositionLogits
from initdiag.theory.activations import Array, covariance, mean
from initdiag.theory.free_energy import free_energy
from initdiag.theory.grams import Stream
from initdiag.theory.loss import critical_std
from initdiag.theory.overlap import of_few, overlap
from initdiag.theory.planned import Model

# Gauss–Hermite nodes and weights of N(0, 1)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
_WEIGHTS = _WEIGHTS / _WEIGHTS.sum()

# ... and a fine grid with the weights of N(0, 1), for what a cap bends
_ALL = np.linspace(-8, 8, 401)
_NORMAL = np.exp(-(_ALL**2) / 2) / np.exp(-(_ALL**2) / 2).sum()


@dataclass(frozen=True)
class Head:
    """The logits of n positions, before the cap: std over the vocabulary without the input token, mean and std of that
    token's own logit above the others; all (n,)."""

    std: Array
    own: Array
    own_std: Array
    softcap: float | None


def logits(model: Model, state: Stream) -> Head:
    """Return what the head makes of the state that it reads: d_model products of independent weights and features.

    A tied head meets the token's own embedding in the state: Σ e² = d·σ² times what the state holds of it.
    """
    shape = model.shape
    weight = model.weight("token_embedding" if shape.tied else "head")
    square = np.diagonal(state.gram)
    variance = shape.d_model * weight * square + (0.0 if shape.tied else model.bias("head"))
    std = np.sqrt(variance) * shape.logit_multiplier
    if not shape.tied:
        return Head(std, np.zeros(len(std)), std, shape.logit_softcap)
    own = shape.logit_multiplier * shape.d_model * weight * state.own
    foreign = 1 - np.minimum(weight * state.own**2 / np.maximum(square, 1e-300), 1)  # part of the state's variance
    return Head(std, own, std * np.sqrt(foreign), shape.logit_softcap)


def measures(
    vocab_size: int, at: Softmax, inputs: Sequence[int], targets: Sequence[int]
) -> tuple[LossMeasure, LogitMeasure, tuple[PositionLogits, ...]]:
    """Return the expected measures of these softmaxes on these tokens, both flat (n,)."""
    same = np.array(inputs) == np.array(targets)
    positions = tuple(map(PositionLogits, at.std.tolist(), at.own.tolist(), same.tolist()))
    loss = LossMeasure(
        value=float((at.log_sum_exp - at.own * same).mean()),
        uniform_targets=float((at.log_sum_exp - at.own / vocab_size).mean()),
        vocab_size=vocab_size,
    )
    logit = LogitMeasure(  # the token's own logit is part of the std
        std=float(np.sqrt(at.std**2 + at.own**2 * (vocab_size - 1) / vocab_size**2).mean()),
        self_logit=float(at.own.mean()),
        max_abs=math.nan,
        entropy_ratio=float(at.entropy.mean()) / math.log(vocab_size),
    )
    return loss, logit, positions


@dataclass(frozen=True)
class Softmax:
    """Of each position, (n,): std of the others' logits and the mean of the token's own; log-sum-exp and entropy in
    nats; the share of the token itself in the softmax. slope, own_slope, tilted_slope: by how much the logit of a
    random token, the token's own one, and one as the softmax weighs them follow what a softcap is put on; 1 without
    one. pull: the mean of what the cap is put on, times that slope, as the softmax weighs the others."""

    std: Array
    own: Array
    log_sum_exp: Array
    entropy: Array
    share: Array
    slope: Array
    own_slope: Array
    tilted_slope: Array
    pull: Array
    share_square: Array


def softmax(vocab_size: int, head: Head) -> Softmax:
    """Average over the own logit, a Gaussian itself, in closed form over the others, whose number is large.

    Of V Gaussians the softmax sees those up to √(2 ln V) stds: the others weigh V·E[exp(a); |a| < √(2 ln V)·s]. That
    is ln V + s²/2 for small s, and freezes at s·√(2 ln V) (Derrida, Phys. Rev. B 24, 2613, 1981).
    """
    cap, reach = head.softcap, max(critical_std(vocab_size), 1.0)
    seen = np.linspace(-reach, reach, 401)
    values = _bounded(head.std[:, None] * seen, cap)
    exponents = values - seen**2 / 2
    peak = exponents.max(axis=1)
    weights = np.exp(exponents - peak[:, None])
    sums = weights.sum(axis=1)
    tilted = (weights * values).sum(axis=1) / sums  # the mean logit of the others, as the softmax weighs them
    if cap is None:
        std, step = head.std, 0.02
        energies = np.array(
            [[free_energy(vocab_size - 1, by * one)[0] for one in std.tolist()] for by in (1 - step, 1, 1 + step)]
        )
        others, tilted = energies[1], (energies[2] - energies[0]) / (2 * step)  # std·dF/dstd
    else:
        others = np.log((vocab_size - 1) * sums * (seen[1] - seen[0]) / math.sqrt(2 * math.pi)) + peak
        std = np.sqrt(_bounded(head.std[:, None] * _ALL, cap) ** 2 @ _NORMAL)
    owns = _bounded(head.own[:, None] + head.own_std[:, None] * _NODES, cap)
    share = 1 / (1 + np.exp(np.minimum(others[:, None] - owns, 700.0)))
    total = np.logaddexp(others[:, None], owns)
    entropy = np.maximum(total - (1 - share) * tilted[:, None] - share * owns, 0.0)
    slope = np.sqrt(_slope(head.std[:, None] * _ALL, cap) ** 2 @ _NORMAL)
    own_slope = _slope(head.own[:, None] + head.own_std[:, None] * _NODES, cap) @ _WEIGHTS
    slopes = weights * _slope(head.std[:, None] * seen, cap)
    tilted_slope, pull = slopes.sum(axis=1) / sums, (slopes * seen).sum(axis=1) / sums * head.std
    if cap is None:
        pull = tilted
    return Softmax(
        std,
        np.where(head.own == 0, 0.0, owns @ _WEIGHTS),  # exactly, of an untied head
        total @ _WEIGHTS,
        entropy @ _WEIGHTS,
        share @ _WEIGHTS,
        slope,
        own_slope,
        tilted_slope,
        pull,
        share**2 @ _WEIGHTS,
    )


def met(vocab_size: int, head: Head, at: Softmax, covariances: Array) -> Array:
    """Return V·Σ_v q_iv·q_jv of two positions' softmaxes q over all others, each times the slope of a cap: (n, n).

    E[e^(a + a')]/(E[e^a] E[e^a']), which is e^cov(a, a') of Gaussians; of capped ones a moment of e^a·slope. Where few
    tokens have a part, capped logits are taken for Gaussian, and their slope for that of the largest.

    Args:
        covariances: (n, n), of what the cap is put on.
    """
    cap = head.softcap
    if cap is None:
        return overlap(vocab_size, covariances)
    capped = covariance(lambda u: _bounded(u, cap), covariances)[0]
    if of_few(vocab_size, np.diagonal(capped)).any():
        return overlap(vocab_size, capped) * np.outer(at.tilted_slope, at.tilted_slope)
    widest = float(head.std.max())
    peak = float((_bounded(widest * _ALL, cap) - _ALL**2 / 2).max())  # where e^a weighs most, lest it overflow
    whole = covariance(lambda u: np.exp(_bounded(u, cap) - peak) * _slope(u, cap), covariances)[0]
    each = np.array([mean(lambda u: np.exp(_bounded(u, cap) - peak), float(std)) for std in head.std])
    return whole / np.outer(each, each)


def _bounded(logits: Array, cap: float | None) -> Array:
    return logits if cap is None else cap * np.tanh(logits / cap)


def _slope(logits: Array, cap: float | None) -> Array:
    return np.ones_like(logits) if cap is None else 1 - np.tanh(logits / cap) ** 2
