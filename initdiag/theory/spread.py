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
from initdiag.theory.loss import sampling_allowance


@dataclass(frozen=True)
class Spreads:
    """Standard deviations over draws of weights and tokens, in the units of the numbers that they belong to.

    branches, streams: of branch variance and stream variance, by branch. attention_std, attention_entropy: by layer.
    gradients: of the norm of the gradient, by branch; empty where no backward was predicted.
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
    gradients: tuple[float, ...] = ()


@dataclass(frozen=True)
class Chance:
    """The relative variances of a branch: `drawn` of its output projection, `inner` of all that it is given, and
    `stream` of the d features of the stream after it."""

    drawn: float
    inner: float
    stream: float


def unevenness(gram: Array) -> float:
    """Return 2·ΣK_ij²/(ΣK_ii)²: 2 where all tokens are alike, 2/n where they are independent; 0 of nothing."""
    trace = float(np.trace(gram))
    return 2 * float(np.vdot(gram, gram)) / trace**2 if trace else 0.0


def spreads(
    values: Measurements,
    chances: Sequence[Chance],
    embedding: float,
    state: float,
    heads: Sequence[tuple[float, float]],
    unscaled: Sequence[float],
    width: int,
    foreign: float,
) -> Spreads:
    """Put the spreads of all numbers together; branches are independent of each other.

    Args:
        embedding: the relative variance of the embedding's. state: the unevenness of what the head reads. heads: of
            each layer, the variances of logit std and entropy ratio over heads, each over the number of heads.
        unscaled: (unscaled std / std)² of each branch. foreign: the part of the state's variance that isn't the token's
            own embedding.
    """
    residual, loss, logits = values.residual, values.loss, values.logits
    variances = [at.branch_variance for at in residual.branches]
    own = [math.sqrt(chance.drawn + chance.inner) for chance in chances]
    streams, inner = [], 0.0
    for at, chance in zip(residual.branches, chances, strict=True):
        # what a norm gives has a size of its own: it forgets the branches before it
        inner = (0.0 if at.carried == "normed" else inner) + chance.inner * at.branch_variance**2
        streams.append(math.sqrt(chance.stream * at.stream_variance**2 + inner))
    count, vocab_size = len(values.positions), loss.vocab_size
    tokens = np.array([at.self_logit for at in values.positions])
    square = np.array([at.std for at in values.positions]) ** 2
    of_self = math.sqrt(float(square.mean()) * foreign / count + float((tokens**2).mean()) * 2 / width / count)
    vocabulary = sampling_allowance(vocab_size, values.positions, count, rounding=False) / 5
    targets = math.sqrt(float(square.mean()) / count)
    share = _self_share(values)
    uniform = math.hypot(math.sqrt(max(vocabulary**2 - targets**2, 0.0)), share * of_self)
    total, stretched = sum(variances), [v * u for v, u in zip(variances, unscaled, strict=True)]
    tilt = [
        (v / total - u / sum(stretched)) * one if total and sum(stretched) else 0.0
        for v, u, one in zip(variances, stretched, own, strict=True)
    ]
    return Spreads(
        loss=math.hypot(uniform, targets),
        uniform_targets=uniform,
        logit_std=logits.std * math.sqrt(state / vocab_size) / 2,
        self_logit=of_self,
        entropy_ratio=math.hypot(_of_entropy(values, state), share * of_self / math.log(vocab_size)),
        embedding_variance=residual.embedding_variance * math.sqrt(embedding),
        branches=tuple(v * one for v, one in zip(variances, own, strict=True)),
        streams=tuple(streams),
        branch_variance_sum=math.sqrt(math.fsum((v * one) ** 2 for v, one in zip(variances, own, strict=True))),
        scaling_ratio=residual.scaling_ratio * math.sqrt(math.fsum(one * one for one in tilt)),
        attention_std=tuple(math.sqrt(std) for std, _ in heads),
        attention_entropy=tuple(math.sqrt(entropy) for _, entropy in heads),
    )


def _self_share(values: Measurements) -> float:
    """The part of the softmax that is the input token's own logit: by how much the loss follows it."""
    at = values.logits
    return 1 / (1 + math.exp(min(max(values.loss.uniform + at.std**2 / 2 - at.self_logit, -700.0), 700.0)))


def _of_entropy(values: Measurements, state: float) -> float:
    """ln V − s²/2 follows the s² of V logits, which are weighed by exp(s²) in the tail."""
    square = min(values.logits.std**2, 2 * values.loss.uniform)
    return square * math.sqrt(state / 2 * math.exp(square) / values.loss.vocab_size) / values.loss.uniform
