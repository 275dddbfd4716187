"""How sharp attention is, over the last queries: of sampled heads, corrected by what all heads show in the mean."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from initdiag.measure.values import QUERIES
from initdiag.theory.activations import Array
from initdiag.theory.grams import linear, normed
from initdiag.theory.planned import Model

SOME = 4  # of the last queries, where every head meets many slopes


def sharpness(logits: Array, weights: Array, seen: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return logit std and entropy ratio of each head's last queries that see several keys, (S, B, Q); Q may be 0.

    Args:
        logits, weights: (S, B, T, keys). seen: (T, keys), which keys a query sees.
    """
    several, seen = _last(seen)
    logits, weights = logits[..., several, :], weights[..., several, :]
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=-1)
    return np.sqrt(_variances(logits, seen)), entropy / np.log(seen.sum(axis=-1))


def averaged(numbers: Array, fluctuation: Array | None) -> Array:
    """Return the mean of each head, (S,), nan without queries; less what follows from a fluctuation whose mean is 0.

    A control variate: a line is fitted through (fluctuation, number) of all heads, sequences and queries, and what the
    mean fluctuation of the drawn heads did to their mean is taken off.
    """
    if not numbers.size:
        return np.full(len(numbers), math.nan)
    means: Array = numbers.mean(axis=(1, 2), dtype=np.float64)
    if fluctuation is None or not fluctuation.size:
        return means
    around = fluctuation - fluctuation.mean()
    square = float((around**2).sum())
    both = numbers[..., numbers.shape[-1] - around.shape[-1] :]  # a sink is a second key even of the first query
    slope = float((around * both).sum()) / square if square else 0.0
    return means - slope * fluctuation.mean()


def over_slopes(logits: Array, slopes: Array, seen: NDArray[np.bool_]) -> tuple[Array, Array]:
    """Return (logit std, entropy ratio) of heads with ALiBi's slopes: of every slope with every sampled head, (S·K,).

    Slopes are given and not drawn: numbers are moved to the mean over slopes, so that what is left of their spread is
    the chance of queries and keys. Some of the last queries stand for all.

    Args:
        logits: (S, B, T, keys), without slopes; a key behind the T tokens is a sink, which has none. slopes: (K,).
    """
    length = len(seen)
    places = np.linspace(max(length - QUERIES, 0), length - 1, 2 * SOME + 1)[1::2]
    some = np.array(sorted(set(np.rint(places).astype(int).tolist())))  # np.unique would import numpy.ma
    ago = np.zeros(seen[some].shape, dtype=np.float32)
    ago[:, :length] = some[:, None] - np.arange(length)
    found = []
    for slope in slopes:
        sloped = np.where(seen[some], logits[..., some, :] - slope * ago, -np.inf)
        weights = np.exp(sloped - sloped.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        found.append([averaged(one, None) for one in sharpness(sloped, weights, seen[some])])
    std, ratio = (np.array(one) for one in zip(*found, strict=True))  # (K, S)
    return _around_the_mean(std), _around_the_mean(ratio)


def _around_the_mean(numbers: Array) -> Array:
    moved: Array = numbers - numbers.mean(axis=1, keepdims=True) + numbers.mean()
    return moved.ravel()


def variances(logits: Array, seen: NDArray[np.bool_]) -> Array:
    """Return the variance over visible keys of the last queries that see several, (S, B, Q)."""
    several, seen = _last(seen)
    return _variances(logits[..., several, :], seen)


def _last(seen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The last queries that see several keys, and what they see."""
    keys = seen.sum(axis=-1)
    several = np.flatnonzero(keys > 1)
    several = several[several >= len(seen) - QUERIES]
    return several, seen[several]


def _variances(logits: Array, seen: NDArray[np.bool_]) -> Array:
    keys = seen.sum(axis=-1)
    kept = np.where(seen, logits, 0)
    mean = kept.sum(axis=-1, keepdims=True) / keys[:, None]
    found: Array = (np.where(seen, kept - mean, 0) ** 2).sum(axis=-1) / keys
    return found


def expected_variances(
    model: Model, name: str, read: Array, shape: tuple[int, int], seen: NDArray[np.bool_], alike: Array
) -> Array | None:
    """Return the mean of `variances` over heads, (B, Q), before caps and slopes; None where norms of single heads, or
    latents, are in the way.

    E[l_ij·l_ik] = scale²·Q_ii·K_jk·alike_jk of a query i and keys j and k, since the features of a query are
    independent; Q and K are the Grams of one feature of queries and keys.

    Args:
        alike: (T, T), Σ_f cos((j − k)·θ_f), where θ_f is by how much rotary turns a feature a token.
    """
    architecture, (batch, length) = model.shape, shape
    if architecture.qk_norm == "per_head" or architecture.mla is not None:
        return None
    several, visible = _last(seen)
    share = visible / visible.sum(axis=-1, keepdims=True)  # (Q, T)
    found = []
    for at in range(batch):
        own = slice(at * length, (at + 1) * length)
        grams = []
        for part in ("query", "key"):
            gram = linear(model, f"{name}.{part}", read[own, own], architecture.d_model)
            grams.append(normed(model, f"{name}.{part}_norm", gram).gram if architecture.qk_norm == "full" else gram)
        products = grams[1] * alike
        spread = share @ np.diagonal(products) - ((share @ products) * share).sum(axis=-1)
        found.append(np.diagonal(grams[0])[several] * spread)
    return architecture.attention_scale**2 * np.array(found)
