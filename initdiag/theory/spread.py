"""How far one draw of the weights is from the mean: standard deviations of the predicted numbers.

Everything rests on one formula. Vectors of n tokens whose d features are independent Gaussians of covariance K have a
mean square of variance 2·ΣK_ij²/d over (ΣK_ii)²: `unevenness`(K)/d, relative. Tokens that are alike count as one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from initdiag.measure import Measurements
from initdiag.theory.activations import Array
from initdiag.theory.free_energy import free_energy

SQUARES = 1e-250  # below that, and above one over it, squares lose digits


@dataclass(frozen=True)
class Spreads:
    """Standard deviations over draws of weights and tokens, in the units of the numbers that they belong to.

    branches, streams: of branch variance and stream variance, by branch. attention_std, attention_entropy: by layer.
    """

    loss: float
    uniform_targets: float
    logit_std: float
    self_logit: float
    entropy_ratio: float
    embedding_variance: float
    branches: tuple[float, ...]
    streams: tuple[float, ...]
    branch_variance_sum: float
    scaling_ratio: float
    attention_std: tuple[float, ...]
    attention_entropy: tuple[float, ...]


@dataclass(frozen=True)
class Chance:
    """The relative variances of a branch: `drawn` of its output projection, `inner` of all that it is given, and
    `stream` of the d features of the stream after it."""

    drawn: float
    inner: float
    stream: float


def unevenness(gram: Array) -> float:
    """Return 2·ΣK_ij²/(ΣK_ii)²: 2 where all tokens are alike, 2/n where they are independent; 0 of nothing."""
    square, whole = float(np.vdot(gram, gram)), float(np.trace(gram))
    if not SQUARES < square < 1 / SQUARES:
        largest = float(np.abs(gram).max())
        if not 0 < largest < math.inf:
            return 0.0
        scaled = gram / largest
        square, whole = float(np.vdot(scaled, scaled)), float(np.trace(scaled))
    return 2 * square / whole**2


def worth(ids: Array, gram: Array | None = None) -> float:
    """Return as how many independent ids these count, (n,), in the mean of a logit: n²/Σ_ij [id_i = id_j]·ρ_ij.

    Logits of one id are as alike as the states that meet it, which have this Gram; without one they are the same.
    """
    same: Array = (ids[:, None] == ids[None, :]).astype(float)
    if gram is not None:
        size = np.sqrt(np.maximum(np.diagonal(gram), 1e-300))
        same = same * gram / np.outer(size, size)
    return len(ids) ** 2 / max(float(same.sum()), 1.0)


def spreads(
    values: Measurements,
    chances: Sequence[Chance],
    embedding: float,
    state: float,
    heads: Sequence[tuple[float, float]],
    unscaled: Sequence[float],
    width: int,
    foreign: float,
    normed: bool,
    inputs: float,
    targets: float,
) -> Spreads:
    """Put the spreads of all numbers together; branches are independent of each other.

    Args:
        embedding: the relative variance of the embedding's. state: the unevenness of what the head reads. heads: of
            each layer, the variances of logit std and entropy ratio over heads, each over the number of heads.
        unscaled: (unscaled std / std)² of each branch. foreign: the part of the state's variance that isn't the token's
            own embedding. normed: the head reads what a norm gives. inputs, targets: what the ids of the batch are
            `worth`.
    """
    residual, loss, logits = values.residual, values.loss, values.logits
    variances = [np.float64(at.branch_variance) for at in residual.branches]  # whose squares may overflow, in silence
    own = [math.sqrt(chance.drawn + chance.inner) for chance in chances]
    streams, inner = [], 0.0
    for at, variance, chance in zip(residual.branches, variances, chances, strict=True):
        # what a norm gives has a size of its own: it forgets the branches before it
        inner = (0.0 if at.carried == "normed" else inner) + chance.inner * variance**2
        streams.append(math.sqrt(chance.stream * np.float64(at.stream_variance) ** 2 + inner))
    vocab_size = loss.vocab_size
    own_logits = np.array([at.self_logit for at in values.positions])
    square = np.array([at.std for at in values.positions]) ** 2
    last = (
        streams[-1] / residual.branches[-1].stream_variance
        if streams and residual.branches[-1].stream_variance
        else 0.0
    )
    of_self = math.sqrt(
        float(square.mean()) * foreign / inputs
        + float((own_logits**2).mean()) * 2 / width / inputs
        + float(own_logits.mean()) ** 2 * foreign * last**2 / 4  # the state is divided by its own size
    )
    share = _self_share(values)
    energy = free_energy(vocab_size - 1, math.sqrt(float(square.mean())))[1]
    # cov(ln Z, mean logit) = s²/V, the variance of the mean logit: under uniform targets it is taken off, and what is
    # left is that of products of logits, of which states that aren't alike have less in common
    beyond = max(energy**2 - float(square.mean()) / vocab_size, 0.0) * state / 2
    uniform = math.hypot((1 - share) * math.sqrt(beyond), share * of_self)
    given = math.hypot((1 - share) * energy, share * of_self)
    if not normed:  # ln V + s²/2 follows the size of the state
        by_size = (1 - share) * min(float(square.mean()), 2 * loss.uniform) * last / 2
        uniform, given = math.hypot(uniform, by_size), math.hypot(given, by_size)
    of_targets = math.sqrt(float(square.mean()) / targets)
    total, stretched = sum(variances), [v * u for v, u in zip(variances, unscaled, strict=True)]
    whole = sum(stretched)
    tilt = [
        (v / total - u / whole) * one if total and whole else 0.0
        for v, u, one in zip(variances, stretched, own, strict=True)
    ]
    return Spreads(
        loss=math.hypot(given, of_targets),
        uniform_targets=uniform,
        logit_std=logits.std / 2 * math.sqrt(state / vocab_size + (0.0 if normed else last**2)),
        self_logit=of_self,
        entropy_ratio=min(
            math.hypot(_of_entropy(values, state), _by_self(values, share) * of_self),
            _widest(values.logits.entropy_ratio),
        ),
        embedding_variance=residual.embedding_variance * math.sqrt(embedding),
        branches=tuple(v * one for v, one in zip(variances, own, strict=True)),
        streams=tuple(streams),
        branch_variance_sum=math.sqrt(math.fsum((v * one) ** 2 for v, one in zip(variances, own, strict=True))),
        scaling_ratio=residual.scaling_ratio * math.sqrt(math.fsum(one * one for one in tilt)),
        attention_std=tuple(math.sqrt(std) for std, _ in heads),
        attention_entropy=tuple(math.sqrt(entropy) for _, entropy in heads),
    )


def _widest(mean: float) -> float:
    """The largest std of a number between 0 and 1 whose mean is known: Bhatia and Davis, Am. Math. Mon. 107, 353."""
    return math.sqrt(max(mean * (1 - mean), 0.0))


def _self_share(values: Measurements) -> float:
    """The part of the softmax that is the input token's own logit: by how much the loss follows it."""
    at = values.logits
    return 1 / (1 + math.exp(min(max(values.loss.uniform + at.std**2 / 2 - at.self_logit, -700.0), 700.0)))


def _by_self(values: Measurements, share: float) -> float:
    """By how much the entropy ratio follows the token's own logit: dH/dm = −p(1 − p)(m − mean logit of others)."""
    away = abs(values.logits.self_logit - min(values.logits.std**2, 2 * values.loss.uniform))
    return share * (1 - share) * max(away, 1.0) / values.loss.uniform


def _of_entropy(values: Measurements, state: float) -> float:
    """ln V − s²/2 follows the s² of V logits, which are weighed by exp(s²) in the tail."""
    square = min(values.logits.std**2, 2 * values.loss.uniform)
    return square * math.sqrt(state / 2 * math.exp(square) / values.loss.vocab_size) / values.loss.uniform
