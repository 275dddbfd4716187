"""Weights made of parts that lie nowhere as one matrix: concatenated ones, heads of a 3-D weight side by side, and
experts that were picked by their ids.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from initdiag.weightless.weight import Weight


@dataclass(frozen=True)
class Joined:
    """2-D parts, one below the other (axis 0), side by side (axis 1), or a stack of them (axis −1: (S, p, q)).

    layout: of the shape of the whole, on the meta device; axes of size 1 may stand in front of the two of a matrix.
    """

    parts: tuple[Weight, ...]
    axis: int
    layout: Tensor

    @property
    def flipped(self) -> Joined:
        """Its transpose, of the last two axes."""
        parts = tuple(part.viewed(torch.t) for part in self.parts)
        return Joined(parts, {0: 1, 1: 0, -1: -1}[self.axis], self.layout.transpose(-2, -1))

    def times(self, factor: float) -> Joined:
        return replace(self, parts=tuple(part.times(factor) for part in self.parts))


def concatenated(tensors: Sequence[Weight], dim: int) -> Joined:
    """Join matrices below one another (dim 0) or side by side (dim 1)."""
    shape = list(tensors[0].layout.shape)
    shape[dim] = sum(part.layout.shape[dim] for part in tensors)
    return Joined(tuple(tensors), dim, torch.empty(shape, device="meta"))


def picked(weight: Weight, ids: Sequence[int]) -> Joined:
    """The matrices of a stack (E, p, q) by their numbers: (S, p, q)."""
    return stack_of([weight.viewed(torch.select, 0, at) for at in ids])


def stack_of(parts: Sequence[Weight]) -> Joined:
    """Matrices of one shape as a stack (S, p, q)."""
    return Joined(tuple(parts), -1, torch.empty((len(parts), *parts[0].layout.shape), device="meta"))


def flattened(weight: Weight, shape: Sequence[int]) -> Joined | None:
    """View a weight whose axes can't be merged in memory as a matrix (…, p, q), of its parts; None where it is none.

    So (n_heads, d_model, d_head), permuted to (d_model, n_heads, d_head), is n_heads matrices side by side.
    """
    target = list(shape)
    if -1 in target:
        target[target.index(-1)] = weight.layout.numel() // -math.prod(target)
    if len(target) == 3 and target[-2:] == list(weight.layout.shape[-2:]) and weight.layout.dim() > 3:  # expanded
        leading = weight.layout.shape[:-2]
        picks = [torch.unravel_index(torch.tensor(at), leading) for at in range(math.prod(leading))]
        parts = tuple(weight.viewed(lambda one, pick=pick: one[tuple(map(int, pick))]) for pick in picks)
        return Joined(parts, -1, torch.empty(target, device="meta"))
    if len(target) < 2 or any(size != 1 for size in target[:-2]):
        return None
    sizes = [size for size in weight.layout.shape if size != 1]
    if len(sizes) != 3:
        return None
    squeezed = weight.viewed(lambda tensor: tensor.reshape(sizes) if tensor.is_contiguous() else tensor.squeeze())
    a, b, c = sizes
    layout = torch.empty(target, device="meta")
    if target[-2:] == [a, b * c]:
        return Joined(tuple(squeezed.viewed(torch.select, 1, at) for at in range(b)), 1, layout)
    if target[-2:] == [a * b, c]:
        return Joined(tuple(squeezed.viewed(torch.select, 0, at) for at in range(a)), 0, layout)
    return None


def reshaped(joined: Joined, layout: Tensor) -> Joined | None:
    """The same under a shape that differs in leading axes of size 1."""
    same = layout.shape[-2:] == joined.layout.shape[-2:] and layout.numel() == joined.layout.numel()
    return replace(joined, layout=layout) if same and layout.dim() >= 2 and joined.axis >= 0 else None
