"""Gram matrices K = x·xᵀ/d of n token vectors, and what embeddings, norms and linear maps make of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from initdiag.model.frequencies import SINUSOID_BASE, frequencies
from initdiag.theory.activations import Array
from initdiag.theory.planned import Model


def mean_square(gram: Array) -> float:
    """Over tokens and features."""
    return float(gram.trace()) / len(gram)


@dataclass(frozen=True)
class Stream:
    """The residual stream of n tokens.

    gram: (n, n), mean products over features. mean: (n,), of each token over its features, which a LayerNorm takes
    away: 0 but for sinusoids, as random matrices give none. own: (n,), how much of each token's own embedding it
    holds: stream = own·embedding + something independent of it.
    """

    gram: Array
    mean: Array
    own: Array

    @cached_property
    def variance(self) -> float:
        """Over tokens and features (population)."""
        return mean_square(self.gram) - (float(self.mean.sum()) / len(self.mean)) ** 2

    def times(self, factor: float) -> Stream:
        return self if factor == 1 else Stream(factor**2 * self.gram, factor * self.mean, factor * self.own)

    def plus(self, branch: Array) -> Stream:
        """Add branches that are independent of it."""
        return Stream(self.gram + branch, self.mean, self.own)


@dataclass(frozen=True)
class Normed:
    """What a norm gives: its Gram, and by what it multiplied each token, (n,)."""

    gram: Array
    factor: Array


def embedded(model: Model, ids: NDArray[np.int64]) -> Stream:
    """Return the stream before the first block; ids is (B, T), tokens are counted row by row."""
    shape, (batch, length) = model.shape, ids.shape
    flat = ids.ravel()
    times = shape.embedding_multiplier
    gram = times**2 * model.weight("token_embedding") * (flat[:, None] == flat[None, :])
    mean = np.zeros(batch * length)
    if shape.position == "learned":
        gram = gram + model.weight("position_embedding") * np.tile(np.eye(length), (batch, batch))
    elif shape.position == "sinusoidal":
        at = sinusoids(length, shape.d_model)
        gram = gram + np.tile(at @ at.T / shape.d_model, (batch, batch))
        mean = np.tile(at.mean(axis=1), batch)
    stream = Stream(gram, mean, np.full(batch * length, times))
    return passed(model, "embedding_norm", stream) if shape.embedding_norm else stream


def sinusoids(length: int, width: int) -> Array:
    """Return the position encodings of arXiv 1706.03762, section 3.5: (T, width)."""
    angles = np.outer(np.arange(length), frequencies(width // 2, SINUSOID_BASE))
    return np.stack((np.sin(angles), np.cos(angles)), axis=-1).reshape(length, -1)


def normed(model: Model, name: str, gram: Array, mean: Array | None = None) -> Normed:
    """Return what a norm gives: g²·(K_ij − m_i·m_j)/√((v_i + eps)(v_j + eps)) + σ_bias².

    v is the variance for a LayerNorm (arXiv 1607.06450), the mean square for an RMSNorm (arXiv 1910.07467). A norm of
    wide vectors divides by numbers that are no longer random.

    Args:
        mean: (n,), over features; 0 by default.
    """
    shape = model.shape
    if shape.norm == "layernorm" and mean is not None and mean.any():
        gram = gram - np.outer(mean, mean)
    factor = math.sqrt(model.gain(name)) / np.sqrt(np.diagonal(gram) + shape.eps)
    return Normed(_plus(gram * factor[:, None] * factor[None, :], model.bias(name)), factor)


def passed(model: Model, name: str, stream: Stream) -> Stream:
    """Put the stream itself through a norm."""
    given = normed(model, name, stream.gram, stream.mean)
    mean = np.zeros_like(stream.mean) if model.shape.norm == "layernorm" else given.factor * stream.mean
    return Stream(given.gram, mean, given.factor * stream.own)


def linear(model: Model, name: str, gram: Array, inputs: int) -> Array:
    """Return the Gram of W·x + b: inputs·σ²·K + σ_bias²."""
    return _plus(inputs * model.weight(name) * gram, model.bias(name))


def _plus(gram: Array, bias: float) -> Array:
    return gram + bias if bias else gram  # large Grams: what needn't be walked through is left out
