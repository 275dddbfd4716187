"""A walk through the blocks that takes alike ones together where the stream hardly changes.

A branch follows from the stream's Gram, and a norm sees only how that changes relative to itself: after ℓ alike blocks
by 1/ℓ from one to the next. So what a stride of blocks adds is summed up along the line through the last two blocks
that were looked at, and put right by the line to the next (Adams–Bashforth and Adams–Moulton of second order: Hairer,
Nørsett and Wanner, Solving Ordinary Differential Equations I, section III.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np

from initdiag.model.architecture import of_branch
from initdiag.theory.activations import Array
from initdiag.theory.blocks import Block, block
from initdiag.theory.grams import Stream, mean_square
from initdiag.theory.planned import Model

SHALLOW = 16  # layers, up to which there is nothing to be gained

# What a stride may add to the stream, and by how much what is added, and each branch of it, may change over it. Half of
# it is a quarter of the error: with these, of 64 layers, the stream is off by 0.12 % and a branch by 0.3 % at most
# (docs/theory.md).
PART = 1 / 4
BEND = 1 / 16
BRANCH_BEND = 1 / 4  # more, as the few heads that are drawn let a branch differ by some percent from block to block


def walked(
    model: Model, stream: Stream, shape: tuple[int, int], heads: int, every: bool = False
) -> Iterator[tuple[int, Block]]:
    """Yield layers and their blocks: the first two and the last of alike ones, and of the others as many as it takes.

    Args:
        shape: (B, T). heads: how many to sample in each. every: leave no block out.
    """
    if every or model.shape.n_layers <= SHALLOW:
        for layer in range(model.shape.n_layers):
            at = block(model, layer, stream, shape, heads)
            yield layer, at
            stream = at.end
        return
    runs, layer, stride = _runs(model), 0, 1
    before = slope = np.zeros_like(stream.gram)
    sizes_before = (0.0, 0.0)
    while layer < model.shape.n_layers:
        at = block(model, layer, stream, shape, heads)
        added = at.attention.gram + at.mlp.gram
        if layer:
            steeper = (added - before) / stride
            if stride > 1:
                at = _moved(at, _beyond(steeper - slope, stride))
            slope = steeper
        yield layer, at
        stream = at.end
        sizes = (mean_square(at.attention.gram), mean_square(at.mlp.gram))
        first, last = runs[layer]
        most = _most(mean_square(stream.gram), sizes, sizes_before, stride)
        stride = int(min(most, 2 * stride, last - layer)) if first < layer < last and most > 1 else 1
        if stride > 1:
            stream = stream.plus((stride - 1) * added + _beyond(slope, stride))
        before, sizes_before, layer = added, sizes, layer + stride


def _runs(model: Model) -> list[tuple[int, int]]:
    """The first and the last layer of the alike ones that each layer stands among."""
    shape, laws = model.shape, [_multipliers(model, layer) for layer in range(model.shape.n_layers)]
    for entry in model.plan.entries:
        room, _, rest = entry.parameter.name.partition(".")
        if room == "blocks":
            layer, _, name = rest.partition(".")
            laws[int(layer)][name] = entry.distribution
    ends = [layer for layer in range(shape.n_layers - 1) if laws[layer] != laws[layer + 1]] + [shape.n_layers - 1]
    return [(first + 1, last) for first, last in pairwise([-1, *ends]) for _ in range(last - first)]


def _multipliers(model: Model, layer: int) -> dict[str, object]:
    """What else layers have of their own. Where the stream isn't only added to, no layer is like another."""
    shape, pair = model.shape, (2 * layer + 1, 2 * layer + 2)
    kept = [of_branch(shape.stream_multiplier, branch) for branch in pair]
    return {
        "window": shape.window(layer),
        "multipliers": [of_branch(shape.residual_multiplier, branch) for branch in pair],
        "layer": layer if shape.placement == "post" or kept != [1, 1] else None,
    }


def _most(whole: float, sizes: tuple[float, float], before: tuple[float, float], stride: int) -> float:
    """How many blocks to take at most, by the size of the stream and of both branches, now and a stride before.

    They add no more than PART to the stream, what they add changes by no more than BEND, and a branch of it by no more
    than BRANCH_BEND. 1 where nothing is known, as of what overflows.
    """
    total = sum(sizes)
    if not 0 < total < math.inf:
        return 1
    bends = [(BEND, total, sum(before)), *((BRANCH_BEND, *pair) for pair in zip(sizes, before, strict=True))]
    limits = [
        PART * whole / total,
        *(stride * bend * now / abs(now - then) for bend, now, then in bends if now != then),
    ]
    return 1 if any(map(math.isnan, limits)) else min(limits)


def _beyond(slope: Array, stride: int) -> Array:
    """What a line sums up to over a stride beyond its start: slope·(0 + 1 + … )."""
    return slope * (stride * (stride - 1) / 2)


def _moved(at: Block, by: Array) -> Block:
    """A block whose stream is another."""
    attention, mlp = (replace(one, after=one.after.plus(by)) for one in (at.attention, at.mlp))
    return replace(at, attention=attention, mlp=mlp, end=at.end.plus(by))
