"""What is read off a predicted stream, in the terms of a measurement: branches, what they read, the wiring."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from initdiag.measure import Wiring
from initdiag.measure.values import Branch, Read
from initdiag.model.architecture import Architecture
from initdiag.theory.activations import Array
from initdiag.theory.blocks import Added, Block
from initdiag.theory.grams import Stream, mean_square
from initdiag.theory.planned import Model


def branches_of(model: Model, layer: int, at: Block, shape: tuple[int, int]) -> Iterator[Branch]:
    """Yield the two branches of a block; shape is (B, T)."""
    joined = 2 if model.shape.placement.startswith("parallel") else 1
    for part, added in (("attention", at.attention), ("mlp", at.mlp)):
        index = 2 * layer + (1 if part == "attention" else 2)
        yield Branch(
            index=index,
            name=f"blocks.{layer}.{part}.out",
            layer=layer,
            kind=added.kind,
            projection=f"blocks.{layer}.{part}.out.weight",
            branch_variance=mean_square(added.gram),
            stream_variance=added.after.variance,
            normed=model.shape.normed_after,
            carried=_carried(model.shape, index),
            joined=joined,
            token_share=token_share(added.after, shape),
            reads=(_read(model, layer, part, added),),
        )


def _carried(shape: Architecture, index: int) -> str:
    if index == 1:
        return "first"
    return "normed" if shape.placement == "post" else "same"


def _read(model: Model, layer: int, part: str, added: Added) -> Read:
    """What the first product of a branch reads."""
    shape = model.shape
    first = "gate" if shape.gated else "input"
    reader = f"blocks.{layer}.attention.query" if part == "attention" else f"blocks.{layer}.mlp.{first}"
    normed = shape.placement not in ("reordered", "none")
    if shape.placement == "post" and layer == 0 and part == "attention":  # what the embedding gives
        normed = shape.embedding_norm
    return Read(f"{reader}.weight", normed, None, rms(added.read))


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
