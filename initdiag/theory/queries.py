"""Queries and keys of sampled heads: drawn from the Gram of what is read, normed and turned as in the model."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from initdiag.model.architecture import Architecture
from initdiag.model.frequencies import rotary_frequencies
from initdiag.schemes import Constant
from initdiag.theory.activations import Array
from initdiag.theory.grams import linear, mean_square, normed
from initdiag.theory.planned import Model

Small = Array  # float32: of sampled heads, whose noise is far above its rounding
Turn = tuple[Small, Small]  # cos and sin of rotary angles
JITTER = 1e-9  # of the mean variance: tokens that are alike make a Gram singular


def root(gram: Array) -> Small:
    """Return L with L·Lᵀ = gram, (n, n)."""
    jitter, gram = JITTER * max(mean_square(gram), 1e-300), gram.copy()
    for times in (1.0, 1e3, 1e6):  # far more than rounding leaves below 0
        gram.flat[:: len(gram) + 1] += times * jitter
        try:
            factor: Array = np.linalg.cholesky(gram)
        except np.linalg.LinAlgError:
            continue
        return factor.astype(np.float32)
    return np.diag(np.sqrt(np.maximum(np.diagonal(gram), 0))).astype(np.float32)


def drawn(
    model: Model, linear_name: str, factor: Small, inputs: int, count: tuple[int, int], random: np.random.Generator
) -> Small:
    """Draw outputs of a linear layer, (S, n, features): √inputs·σ·L·z, and a bias that all tokens share."""
    heads, features = count
    z = random.standard_normal((heads, len(factor), features), dtype=np.float32)
    given: Small = factor @ z
    given *= np.float32(math.sqrt(inputs * model.weight(linear_name)))
    bias = model.bias(linear_name)
    if bias:
        given += np.float32(math.sqrt(bias)) * random.standard_normal((heads, 1, features), dtype=np.float32)
    return given


def vector(model: Model, name: str, count: int, random: np.random.Generator) -> Small | None:
    """Draw a vector, such as sinks or biases of a router: (count,); None where the model hasn't got it."""
    law = model.law(name)
    if law is None:
        return None
    if isinstance(law, Constant):
        return np.full(count, law.value, dtype=np.float32)
    return (law.std * random.standard_normal(count)).astype(np.float32)


def plain(
    model: Model,
    name: str,
    read: Array,
    turn: Turn | None,
    heads: int,
    random: np.random.Generator,
) -> tuple[Small, Small, Small | None, Small | None]:
    """Queries and keys (S, n, h) straight from what is read, and by what norms multiplied them."""
    architecture, factor = model.shape, root(read)
    parts, norms = [], []
    for part in ("query", "key"):
        x = drawn(model, f"{name}.{part}", factor, architecture.d_model, (heads, architecture.head_dim), random)
        x, times = _qk_normed(model, f"{name}.{part}", x, read)
        parts.append(rotated(x, turn))
        norms.append(times)
    return parts[0], parts[1], norms[0], norms[1]


def _qk_normed(model: Model, part: str, x: Small, read: Array) -> tuple[Small, Small | None]:
    """Norm queries or keys, and return by what: each head by its own size, or all by that of the full, wide vector."""
    shape, name = model.shape, f"{part}_norm"
    if shape.qk_norm == "none":
        return x, None
    gain = np.float32(math.sqrt(model.gain(name)))
    if shape.qk_norm == "full":
        square = np.diagonal(linear(model, part, read, shape.d_model)).astype(np.float32)[:, None]
    else:
        if shape.norm == "layernorm":
            x = x - x.mean(axis=-1, keepdims=True)
        square = (x * x).mean(axis=-1, keepdims=True)
    times = gain / np.sqrt(square + np.float32(shape.eps))
    return times * x, times


def latents(
    model: Model,
    name: str,
    read: Array,
    turn: Turn | None,
    heads: int,
    random: np.random.Generator,
) -> tuple[Small, Small, None, None]:
    """Queries and keys from latents; the part of a key that turns is one for all heads (arXiv 2405.04434, 2.1)."""
    mla, architecture = model.shape.mla, model.shape
    assert mla is not None
    source, inputs = read, architecture.d_model
    if mla.query_rank:
        down = linear(model, f"{name}.query_down", read, architecture.d_model)
        source, inputs = normed(model, f"{name}.query_norm", down).gram, mla.query_rank
    queries = drawn(model, f"{name}.query", root(source), inputs, (heads, architecture.head_dim), random)
    still, turning = queries[..., : mla.nope_dim], queries[..., mla.nope_dim :]
    keys = drawn(model, f"{name}.key", root(latent(model, name, read)), mla.kv_rank, (heads, mla.nope_dim), random)
    shared = drawn(model, f"{name}.rotary_key", root(read), architecture.d_model, (heads, mla.rope_dim), random)
    return (
        np.concatenate((still, rotated(turning, turn)), axis=-1),
        np.concatenate((keys, rotated(shared, turn)), axis=-1),
        None,
        None,
    )


def latent(model: Model, name: str, read: Array) -> Array:
    """Return the Gram of the latents that keys and values are made of, after their norm."""
    down = linear(model, f"{name}.latent_down", read, model.shape.d_model)
    return normed(model, f"{name}.latent_norm", down).gram


@lru_cache(maxsize=16)
def rotation(shape: Architecture, tokens: tuple[int, int], window: int | None) -> Turn | None:
    """Return cos and sin of the rotary angles of every token, each (n, rotary_dims / 2); None without rotary."""
    if shape.position != "rotary":
        return None
    batch, length = tokens
    angles = np.tile(np.outer(np.arange(length), rotary_frequencies(shape, window is not None)), (batch, 1))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def rotated(x: Small, turn: Turn | None, back: bool = False) -> Small:
    """Turn feature i with feature i + pairs of the first 2·pairs features; `back` turns the other way."""
    if turn is None:
        return x
    cos, sin = turn[0], -turn[1] if back else turn[1]
    pairs = cos.shape[-1]
    first, second, rest = x[..., :pairs], x[..., pairs : 2 * pairs], x[..., 2 * pairs :]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin, rest), axis=-1)
