"""What is read off a predicted stream, in the terms of a measurement: branches, what they read, the wiring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from initdiag.measure import Wiring
from initdiag.measure.values import Branch, Read
from initdiag.model.architecture import Architecture
from initdiag.theory.activations import Array
from initdiag.theory.blocks import Added, Block
from initdiag.theory.grams import Stream, mean_square
from initdiag.theory.planned import Model
from initdiag.theory.spread import unevenness


class SeenBranch(NamedTuple):
    """The numbers of a branch.

    variance, stream, token_share: as a measurement has them. read: the root mean square of what it reads. drawn, inner,
    uneven: relative variances over draws, `drawn` of d_model features of its output projection, `inner` of all that it
    is given, `uneven` of d_model features of the stream after it. alike: the part of a mean square that tokens of one
    sequence have in common in what it gives. between: their mean product in what is added.
    """

    variance: float
    stream: float
    token_share: float
    read: float
    drawn: float
    inner: float
    uneven: float
    alike: float
    between: float


class SeenHeads(NamedTuple):
    """Attention-logit std and entropy ratio of a layer, and the variance of a mean over its heads about them."""

    std: float
    entropy: float
    std_chance: float
    entropy_chance: float


Seen = tuple[SeenBranch, SeenBranch, SeenHeads]


def seen(model: Model, at: Block, shape: tuple[int, int]) -> Seen:
    """Return the numbers of attention, MLP and heads of a block; shape is (B, T)."""
    std, entropy = at.heads.logit_std, at.heads.entropy_ratio
    heads = SeenHeads(
        float(std.mean()), float(entropy.mean()), _of_heads(std, model.shape), _of_heads(entropy, model.shape)
    )
    return _branch(at.attention, shape), _branch(at.mlp, shape), heads


def _branch(added: Added, shape: tuple[int, int]) -> SeenBranch:
    variance, raw = mean_square(added.gram), mean_square(added.raw)
    return SeenBranch(
        variance=variance,
        stream=added.after.variance,
        token_share=token_share(added.after, shape),
        read=rms(added.read),
        drawn=unevenness(added.raw),
        inner=added.inner,
        uneven=unevenness(added.after.gram),
        alike=min(between(added.raw, shape) / raw, 1.0) if raw else 0.0,
        between=between(added.gram, shape),
    )


def between(gram: Array, shape: tuple[int, int]) -> float:
    """The mean product of two tokens of one sequence."""
    batch, length = shape
    if length < 2:
        return 0.0
    places = gram.reshape(batch, length, batch, length)
    inside = sum(float(places[at, :, at, :].sum()) for at in range(batch))
    return (inside - float(np.trace(gram))) / (batch * length * (length - 1))


def _of_heads(sampled: Array, shape: Architecture) -> float:
    """The variance of the mean over a layer's heads, about a mean over sampled ones.

    Heads that share keys, in latent attention the part of them that turns, count as one: an upper bound.
    """
    if len(sampled) < 2:
        return math.nan
    shared = shape.mla.rope_dim / shape.head_dim if shape.mla else 0.0
    own = shared + (1 - shared) / shape.n_heads if shape.mla else 1 / shape.n_kv_heads
    return float(sampled.var(ddof=1)) * (own + 1 / len(sampled))


def of_all_layers(found: Mapping[int, Seen], layers: int) -> Iterator[Seen]:
    """Yield the numbers of every layer: of those that were left out, by the line between their neighbours."""
    if len(found) == layers:
        yield from found.values()
        return
    rows = np.array([[*attention, *mlp, *heads] for attention, mlp, heads in found.values()])
    every = [np.interp(np.arange(layers), list(found), column) for column in rows.T]
    size = len(SeenBranch._fields)
    for row in zip(*(column.tolist() for column in every), strict=True):
        yield SeenBranch(*row[:size]), SeenBranch(*row[size : 2 * size]), SeenHeads(*row[2 * size :])


def branches_of(shape: Architecture, layer: int, attention: SeenBranch, mlp: SeenBranch) -> Iterator[Branch]:
    """Yield the two branches of a block."""
    kinds = ("attention", "moe" if shape.has_experts(layer) else "mlp")
    for part, kind, one in zip(("attention", "mlp"), kinds, (attention, mlp), strict=True):
        index = 2 * layer + (1 if part == "attention" else 2)
        yield Branch(
            index=index,
            name=f"blocks.{layer}.{part}.out",
            layer=layer,
            kind=kind,
            projection=f"blocks.{layer}.{part}.out.weight",
            branch_variance=one.variance,
            stream_variance=one.stream,
            normed=shape.normed_after,
            carried=_carried(shape, index),
            joined=2 if shape.placement.startswith("parallel") else 1,
            token_share=one.token_share,
            reads=(_read(shape, layer, part, one.read),),
        )


def _carried(shape: Architecture, index: int) -> str:
    if index == 1:
        return "first"
    return "normed" if shape.placement == "post" else "same"


def _read(shape: Architecture, layer: int, part: str, size: float) -> Read:
    """What the first product of a branch reads."""
    first = "gate" if shape.gated else "input"
    reader = f"blocks.{layer}.attention.query" if part == "attention" else f"blocks.{layer}.mlp.{first}"
    normed = shape.placement not in ("reordered", "none")
    if shape.placement == "post" and layer == 0 and part == "attention":  # what the embedding gives
        normed = shape.embedding_norm
    return Read(f"{reader}.weight", normed, None, size)


def rms(gram: Array) -> float:
    """The root mean square of vectors, over tokens and features."""
    return math.sqrt(mean_square(gram))


def token_share(stream: Stream, shape: tuple[int, int]) -> float:
    """The share of the stream's variance that differs between sequences at the same position; nan for a single one.

    Half the mean squared distance of two tokens at one position, over the variance.
    """
    batch, length = shape
    if batch < 2 or not stream.variance:
        return math.nan
    places = stream.gram.reshape(batch, length, batch, length)
    between = np.einsum("atbt->ab", places) / length
    same = float(np.trace(between)) / batch
    other = (float(between.sum()) - same * batch) / (batch * (batch - 1))
    return (same - other) / stream.variance


def wiring_of(model: Model, state: Stream) -> Wiring:
    """Say how the model is put together; `state` is what the head reads."""
    shape = model.shape
    head = "token_embedding.weight" if shape.tied else "head.weight"
    placement = "pre" if shape.placement.startswith("parallel") else shape.placement
    normed = shape.final_norm or shape.placement == "post"
    return Wiring(
        placement=placement,
        d_model=shape.d_model,
        n_layers=shape.n_layers,
        head=head,
        head_read=Read(head, normed, None, rms(state.gram)),
        embedding="token_embedding.weight",
        tied=shape.tied,
    )
