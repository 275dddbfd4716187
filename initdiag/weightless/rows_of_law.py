"""The numbers that a law gives to rows of a parameter, as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from initdiag.schemes import Uniform
from initdiag.schemes.distributions import Truncated
from initdiag.weightless.law import Law
from initdiag.weightless.normals import HALF, bent_

Moments = tuple[Tensor | float, Tensor | float]


def moments_between(law: Law, start: int, stop: int, dtype: torch.dtype) -> Moments:
    """Return std and mean of rows start … stop − 1: numbers where they are alike, else (rows,)."""
    pieces = law.pieces
    if len(pieces) > 1:
        pieces = tuple(piece for piece in pieces if piece.start < stop and piece.stop > start)
    if len(pieces) == 1:
        return pieces[0].std, pieces[0].centre
    std, mean = (torch.empty(stop - start, dtype=dtype) for _ in range(2))
    for piece in pieces:
        at = slice(max(piece.start, start) - start, min(piece.stop, stop) - start)
        std[at], mean[at] = piece.std, piece.centre
    return std, mean


def moments_of(law: Law, rows: Sequence[int], dtype: torch.dtype) -> Moments:
    """Return std and mean of single rows: numbers where all rows are alike, else (len(rows), 1)."""
    if len(law.pieces) == 1:
        return law.pieces[0].std, law.pieces[0].centre
    found = [next(piece for piece in law.pieces if piece.start <= row < piece.stop) for row in rows]
    columns = ([getattr(piece, name) for piece in found] for name in ("std", "centre"))
    std, mean = (torch.tensor(values, dtype=dtype).view(-1, 1) for values in columns)
    return std, mean


def bent_rows(law: Law, rows: Sequence[int], drawn: Tensor) -> Tensor:
    """Give rows of N(0, 1) numbers the shape of their law, with variance 1: rows that are looked up are exact."""
    for piece in law.pieces:
        if isinstance(piece.distribution, Uniform | Truncated):
            at = [i for i, row in enumerate(rows) if piece.start <= row < piece.stop]
            drawn[at] = bent_(drawn[at] * HALF, piece.distribution) / piece.std
    return drawn
