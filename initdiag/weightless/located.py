"""Which part of which matrix a view shows, read from its strides."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Located:
    """W[rows, columns] of one matrix, or its transpose."""

    matrix: int
    rows: range
    columns: range
    transposed: bool

    @property
    def flipped(self) -> Located:
        return Located(self.matrix, self.rows, self.columns, not self.transposed)


def located(view: Tensor, m: int, n: int) -> Located | None:
    """Locate a 2-D view on a contiguous tensor (…, m, n); None where it is no part of one of its matrices."""
    (a, b), (down, across) = map(int, view.shape), view.stride()
    start = int(view.storage_offset())
    plain = _part(start, a, down, b, across, m, n)
    if plain is not None:
        return Located(*plain, False)
    turned = _part(start, b, across, a, down, m, n)
    return None if turned is None else Located(*turned, True)


def _part(start: int, a: int, down: int, b: int, across: int, m: int, n: int) -> tuple[int, range, range] | None:
    """Read `down` as a step over rows and `across` as one over columns; the stride of a single row means nothing."""
    step = 1 if a == 1 else down // n
    if (a > 1 and (down % n or down == 0)) or (b > 1 and not across > 0):
        return None
    width = 1 if b == 1 else across
    row, column = divmod(start, n)
    matrix, row = divmod(row, m)
    if row + (a - 1) * step >= m or column + (b - 1) * width >= n:
        return None
    return matrix, range(row, row + (a - 1) * step + 1, step), range(column, column + (b - 1) * width + 1, width)
