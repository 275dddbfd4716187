"""Attention in the wide limit: what it mixes, from a few sampled heads.

The queries and keys of one head are h Gaussian vectors over tokens, whose covariance the Gram of what is read gives. So
heads are drawn, small as they are (n, h), and rotary angles, norms, caps, windows and sinks apply as in the model;
values and output projection are averaged over in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from initdiag.model.architecture import Architecture
from initdiag.model.frequencies import alibi_slopes, rotary_frequencies
from initdiag.theory.activations import Array
from initdiag.theory.grams import linear, normed
from initdiag.theory.planned import Model
from initdiag.theory.queries import Small, latent, latents, plain, rotation, vector
from initdiag.theory.sharpness import averaged, expected_variances, over_slopes, sharpness, variances
from initdiag.theory.spread import unevenness

MOST_SLOPES = 32  # of ALiBi, evenly from all of them, that attention is seen with


@dataclass(frozen=True)
class Heads:
    """Sampled heads: queries and keys as multiplied, (S, n, h), and attention weights (S, B, T, T), sinks left out.

    slope: by how much the logits follow what a softcap is put on, (S, B, T, T); None without one. query_norm, key_norm:
    by what a norm multiplied queries and keys, (S, n, 1) or (n, 1); None without. logit_std and entropy_ratio: of the
    last queries of each head, (S,), as `measure` defines them; nan where no query sees two keys.
    """

    queries: Small
    keys: Small
    weights: Small
    slope: Small | None
    query_norm: Small | None
    key_norm: Small | None
    logit_std: Array
    entropy_ratio: Array


def attended(
    model: Model, layer: int, read: Array, shape: tuple[int, int], heads: int, random: np.random.Generator
) -> tuple[Array, Heads, float]:
    """Return the Gram of what the attention of a layer gives, (n, n), the heads that were sampled for it, and the
    relative variance of what it mixes over draws of keys, queries and values.

    Σ over heads of σ_o²·E[A V Aᵀ]: output projections of different heads are independent, so that no cross terms are
    left; also where heads share keys and values.

    Args:
        read: (n, n), the Gram of what it reads. shape: (B, T). heads: how many to sample, S.
    """
    name = f"blocks.{layer}.attention"
    sampled = sample(model, layer, read, shape, heads, random)
    mixed = mix(sampled.weights, values(model, name, read))
    chance = unevenness(mixed) * (1 / model.shape.d_model + 1 / (model.shape.n_kv_heads * model.shape.value_dim))
    if model.shape.inner_norm:
        mixed, chance = normed(model, f"{name}.inner_norm", mixed).gram, 0.0
    return linear(model, f"{name}.out", mixed, model.shape.n_heads * model.shape.value_dim), sampled, chance


def values(model: Model, name: str, read: Array) -> Array:
    """Return the Gram of the values, of one feature: (n, n)."""
    if model.shape.mla is None:
        return linear(model, f"{name}.value", read, model.shape.d_model)
    return linear(model, f"{name}.value", latent(model, name, read), model.shape.mla.kv_rank)


def mix(weights: Small, gram: Array) -> Array:
    """Return the mean over sampled heads of A·K·Aᵀ, with A block-diagonal over sequences: (n, n)."""
    heads, batch, length, _ = weights.shape
    blocks = gram.astype(np.float32).reshape(batch, length, batch * length)
    once = weights @ blocks  # (S, B, T, n)
    once = once.reshape(heads, batch * length, batch, length).transpose(0, 2, 1, 3)  # (S, B, n, T)
    twice: Small = (once @ weights.transpose(0, 1, 3, 2)).sum(axis=0)  # (B, n, T)
    return twice.transpose(1, 0, 2).reshape(gram.shape).astype(np.float64) / heads


@lru_cache(maxsize=16)  # alike in all layers of a kind
def alike_turned(shape: Architecture, length: int, window: int | None) -> Array:
    """Return Σ_f cos((j − k)·θ_f) over the features of a head, (T, T): head_dim without rotary."""
    ago = np.arange(length)
    turns = rotary_frequencies(shape, window is not None) if shape.position == "rotary" else []
    alike = shape.head_dim - 2 * len(turns) + 2 * np.cos(np.outer(ago, turns)).sum(axis=-1)
    found: Array = alike[abs(ago[:, None] - ago[None, :])]
    return found


def sample(
    model: Model, layer: int, read: Array, shape: tuple[int, int], heads: int, random: np.random.Generator
) -> Heads:
    """Draw heads of a layer, and their attention weights."""
    name, architecture = f"blocks.{layer}.attention", model.shape
    batch, length = shape
    window = architecture.window(layer)
    turn = rotation(architecture, shape, window)
    queries, keys, *norms = (latents if architecture.mla else plain)(model, name, read, turn, heads, random)
    split = (heads, batch, length, -1)
    logits = queries.reshape(split) @ keys.reshape(split).transpose(0, 1, 3, 2)
    logits *= np.float32(architecture.attention_scale)
    seen = visible(length, window)
    bare = logits.copy() if architecture.position == "alibi" else None
    fluctuation = variances(logits, seen)
    expected = expected_variances(model, name, read, shape, seen, alike_turned(architecture, length, window))
    if expected is not None:
        fluctuation = fluctuation - expected
    slope = None
    if architecture.attention_softcap is not None:
        cap = np.float32(architecture.attention_softcap)
        bounded = np.tanh(logits / cap)
        logits, slope = cap * bounded, 1 - bounded**2
    if architecture.position == "alibi":
        logits -= _slopes(architecture, heads)[:, None, None, None] * _ago(length)
    logits[..., ~seen] = -np.inf
    sinks = vector(model, f"{name}.mix.sinks.weight", heads, random)
    if sinks is not None:
        column = np.broadcast_to(sinks[:, None, None, None], (heads, batch, length, 1))
        logits = np.concatenate((logits, column), axis=-1)
        seen = np.concatenate((seen, np.ones((length, 1), dtype=bool)), axis=-1)
        bare = None if bare is None else np.concatenate((bare, column), axis=-1)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    std, ratio = sharpness(logits, weights, seen)
    if bare is not None:
        std, ratio = over_slopes(bare, _slopes(architecture, min(architecture.n_heads, MOST_SLOPES)), seen)
    else:
        known = fluctuation if expected is not None else None
        std, ratio = averaged(std, known), averaged(ratio, known)
    return Heads(queries, keys, weights[..., :length], slope, norms[0], norms[1], std, ratio)


def _ago(length: int) -> Small:
    at = np.arange(length, dtype=np.float32)
    return np.maximum(at[:, None] - at[None, :], 0)


def visible(length: int, window: int | None) -> NDArray[np.bool_]:
    """Return which keys a query sees, (T, T)."""
    ago = np.arange(length)[:, None] - np.arange(length)[None, :]
    seen: NDArray[np.bool_] = (ago >= 0) & (ago < (window or length))
    return seen


def _slopes(shape: Architecture, heads: int) -> Small:
    """Take as many slopes as heads are sampled, evenly from the flattest to the steepest."""
    slopes = sorted(alibi_slopes(shape.n_heads))
    at = (np.arange(heads) + 0.5) / heads * len(slopes)
    return np.array([slopes[int(place)] for place in at], dtype=np.float32)
