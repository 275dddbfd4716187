"""The gradient of a weight as a sum of thin products, and its norm from T×T products: an m×n gradient never exists.

∂L/∂W = Σ Lᵀ R with L (k, m) and R (k, n), k tokens. ‖Σ LᵢᵀRᵢ‖² = Σᵢⱼ ⟨Lᵢ Lⱼᵀ, Rᵢ Rⱼᵀ⟩. A table's gradient has rows R
at the tokens' ids: L is then one-hot, and is kept as the ids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from initdiag.weightless.basis import gram_of


@dataclass(frozen=True)
class Term:
    """leftᵀ right, at (row, column) of one of the matrices of a gradient (…, m, n).

    left: (k, rows), or k ids of rows. right: (k, columns).
    """

    left: Tensor
    right: Tensor
    matrix: int = 0
    row: int = 0
    column: int = 0
    height: int = 0  # rows, where left holds ids

    @property
    def ids(self) -> bool:
        return not self.left.is_floating_point()

    @property
    def rows(self) -> int:
        return self.height if self.ids else self.left.shape[1]

    @property
    def flipped(self) -> Term:
        """Its transpose; of one with ids, the one-hot vectors are written out."""
        left = _one_hot(self.left, self.height, self.right.dtype) if self.ids else self.left
        return Term(self.right, left, self.matrix, self.column, self.row)

    def entries(self) -> Tensor:
        """Return leftᵀ right, (rows, columns)."""
        if self.ids:
            return self.right.new_zeros(self.height, self.right.shape[1]).index_add_(0, self.left, self.right)
        return self.left.T @ self.right


@dataclass(frozen=True)
class Gradient:
    """Terms of a tensor of `shape` (E, m, n); `layout`, on the meta device, is the view of it that is meant."""

    shape: tuple[int, int, int]
    layout: Tensor
    terms: tuple[Term, ...]

    def times(self, factor: float) -> Gradient:
        return replace(self, terms=tuple(replace(term, right=term.right * factor) for term in self.terms))

    def norm(self) -> float:
        """Return the Frobenius norm."""
        by_matrix: dict[int, list[Term]] = {}
        for term in self.terms:
            by_matrix.setdefault(term.matrix, []).append(term)
        squares = []
        for terms in by_matrix.values():
            if len(terms) == 1 and (square := _square(terms[0])) is not None:
                squares.append(square)
                continue
            if not all(math.isfinite(_largest(term)) for term in terms):
                return math.nan
            pairs = [(one, two) for at, one in enumerate(terms) for two in terms[: at + 1]]
            squares += [_inner(one, two) * (1 if one is two else 2) for one, two in pairs]
        return math.sqrt(max(math.fsum(squares), 0.0))

    def entries(self) -> Tensor:
        """Return the view itself, made real."""
        matrices = torch.zeros(self.shape, dtype=self.terms[0].right.dtype if self.terms else torch.float32)
        for term in self.terms:
            rows, columns = slice(term.row, term.row + term.rows), slice(term.column, term.column + term.right.shape[1])
            matrices[term.matrix, rows, columns] += term.entries()
        return matrices.as_strided(self.layout.shape, self.layout.stride(), self.layout.storage_offset())

    def upright(self) -> Gradient | None:
        """Return the same view of a tensor whose memory lies in the view's order; None where that isn't easily had."""
        sides = [(size, step) for size, step in zip(self.layout.shape, self.layout.stride(), strict=True) if size > 1]
        count, m, n = self.shape
        whole = self.layout.numel() == count * m * n
        plain = [(size, step) for size, step in ((count, m * n), (m, n), (n, 1)) if size > 1]
        turned = [(size, step) for size, step in ((count, m * n), (n, 1), (m, n)) if size > 1]
        layout = torch.empty(self.layout.shape, device="meta")
        if whole and self.layout.is_contiguous():
            return replace(self, layout=layout)
        if whole and sides == plain:
            return replace(self, layout=layout)
        if whole and sides == turned:
            return Gradient((count, n, m), layout, tuple(term.flipped for term in self.terms))
        return None


def gradient(shape: tuple[int, ...], terms: tuple[Term, ...]) -> Gradient:
    """Return the gradient of a tensor of shape (m, n) or (…, m, n)."""
    layout = torch.empty(shape, device="meta")
    return Gradient((math.prod(shape[:-2]), shape[-2], shape[-1]), layout, terms)


def _square(term: Term) -> float | None:
    """‖term‖² from the Gram matrices that its products left behind; None where float32 doesn't hold the squares."""
    if term.ids:
        return None
    left, right = gram_of(term.left), gram_of(term.right)
    square = float((left * right).sum())
    return square if 0 < square < math.inf else None


def _inner(one: Term, two: Term) -> float:
    """⟨one, two⟩ over what both cover."""
    top, bottom = max(one.row, two.row), min(one.row + one.rows, two.row + two.rows)
    first = max(one.column, two.column)
    last = min(one.column + one.right.shape[1], two.column + two.right.shape[1])
    if top >= bottom or first >= last:
        return 0.0
    size = _largest(one) * _largest(two)
    if not size:
        return 0.0
    across = (
        one.right[:, first - one.column : last - one.column]
        / _peak(one.right)
        @ (two.right[:, first - two.column : last - two.column] / _peak(two.right)).T
    )
    return float((_left_products(one, two, top, bottom).double() * across.double()).sum()) * size


def _left_products(one: Term, two: Term, top: int, bottom: int) -> Tensor:
    """Lᵢ Lⱼᵀ over rows top … bottom − 1, each divided by its largest entry."""
    if one.ids and two.ids:
        a, b = one.left + one.row, two.left + two.row
        return ((a[:, None] == b[None, :]) & (a >= top)[:, None] & (a < bottom)[:, None]).to(one.right.dtype)
    if two.ids:
        return _left_products(two, one, top, bottom).T
    if one.ids:
        at = one.left + one.row
        inside = (at >= top) & (at < bottom)
        rows = (at - two.row).clamp(0, two.rows - 1)
        return (two.left[:, rows] / _peak(two.left) * inside).T
    a, b = one.left[:, top - one.row : bottom - one.row], two.left[:, top - two.row : bottom - two.row]
    return a / _peak(one.left) @ (b / _peak(two.left)).T


def _largest(term: Term) -> float:
    """The product of the largest entries of both factors; squares of small gradients would vanish in float32."""
    return float(_peak(term.right)) * (1.0 if term.ids else float(_peak(term.left)))


def _peak(x: Tensor) -> float:
    if not x.numel():
        return 1.0
    low, high = x.aminmax()
    peak = max(-float(low), float(high))
    return math.nan if math.isnan(float(low)) else peak or 1.0


def _one_hot(ids: Tensor, height: int, dtype: torch.dtype) -> Tensor:
    return torch.zeros(len(ids), height, dtype=dtype).scatter_(1, ids.unsqueeze(1), 1.0)
