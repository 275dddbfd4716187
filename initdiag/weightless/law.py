"""What the entries of one parameter are drawn from, row by row. No torch.

Rows are those of the parameter as a matrix: all axes but the last, flattened. One law for all rows is the rule;
several stand where init code wrote parts of a tensor by themselves (a padding row, packed projections, experts).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from initdiag.schemes import Constant, Distribution, Normal, Packed

# Entries from which a parameter may do without them: 1 MiB of float32, drawn in 2 ms. Below, real ones are as cheap.
LARGE = 2**18


@dataclass(frozen=True)
class Piece:
    """Rows start … stop − 1: every entry is mean + a draw from the (centred) distribution; a Constant is added too."""

    start: int
    stop: int
    distribution: Distribution
    mean: float = 0.0

    @property
    def std(self) -> float:
        return self.distribution.std

    @property
    def centre(self) -> float:
        """The mean of the entries."""
        return self.mean + (self.distribution.value if isinstance(self.distribution, Constant) else 0.0)


@dataclass(frozen=True)
class Law:
    """Pieces in order, which cover all rows once."""

    pieces: tuple[Piece, ...]

    @property
    def mean(self) -> float:
        """Of all entries together."""
        return self._over_rows([piece.centre for piece in self.pieces])

    @property
    def std(self) -> float:
        """Of all entries together."""
        mean = self.mean
        return math.sqrt(self._over_rows([piece.std**2 + (piece.centre - mean) ** 2 for piece in self.pieces]))

    def _over_rows(self, values: Iterable[float]) -> float:
        pairs = zip(values, self.pieces, strict=True)
        return math.fsum(value * (piece.stop - piece.start) for value, piece in pairs) / self.pieces[-1].stop

    @property
    def exact(self) -> bool:
        """Whether products of a wide matrix with these entries are Gaussian whatever its width."""
        return all(isinstance(piece.distribution, Normal | Constant) for piece in self.pieces)


def law_of(distribution: Distribution, shape: tuple[int, ...]) -> Law:
    """The law of a parameter of that shape, (…, outputs, inputs) where it is packed; (…, inputs, outputs) has no rows
    that are drawn alike, and its law stays packed."""
    rows = math.prod(shape[:-1])
    if not isinstance(distribution, Packed) or distribution.axis == -1:
        return uniform_law(distribution, rows)
    axis = len(shape) - 2 if distribution.axis == -2 else 0  # of a convolution, whose trailing axes of 1 may be gone
    each = math.prod(shape[axis + 1 : -1])
    pieces = [
        Piece(first + start * each, first + stop * each, piece.distribution)
        for first in range(0, rows, shape[axis] * each)
        for piece in distribution.pieces
        for start, stop in piece.rows
    ]
    return Law(tuple(sorted(pieces, key=lambda piece: piece.start)))


def uniform_law(distribution: Distribution, rows: int, mean: float = 0.0) -> Law:
    """One distribution for every row."""
    return Law((Piece(0, rows, distribution, mean),))
