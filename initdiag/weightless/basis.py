"""An orthonormal basis of some vectors, without forming it.

Vectors are rows. A block of them is V (k, n) and stands for the orthonormal rows Q = T·V (r, n): T (r, k) is small, so
x Qᵀ = (x Vᵀ) Tᵀ and c Q = (c T) V cost two thin products each. T is the inverse Cholesky factor of the Gram matrix
V Vᵀ, in float64 (CholeskyQR); where that is singular, its eigenvectors give the rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from initdiag.errors import InitdiagError
from initdiag.weightless.met import Mark, Met, OverwrittenError, mark

STEP = 2**13  # entries of a row that are multiplied in the vectors' own precision before float64 takes over
SAFE = 1e-2  # of pivot over length, squared, below which T·V loses digits
WELL = 1e-4  # and below which the Gram matrix is worth the price of float64 throughout
FITS = 1e-25  # a squared length from which the squares of float32 don't vanish
ALIKE = 1e-6  # of a cosine to 1, from which two rows are looked at
NOISE = 64  # roundings: a direction that is no longer than this part of the longest vector is rounding, not a direction


class NotFiniteError(InitdiagError):
    """Vectors with a NaN or an infinity have no basis."""


@dataclass(frozen=True)
class Block:
    """Q = transform · vectors: r orthonormal rows. `marked` is the mark of the vectors when they were met.

    factor: L (r, r) in float64, of vectors = diag(lengths) L Q; None where the vectors are Q.
    """

    vectors: Tensor
    marked: Mark | None
    factor: Tensor | None = None
    lengths: Tensor | None = None

    @property
    def rank(self) -> int:
        return len(self.vectors)

    @cached_property
    def transform(self) -> Tensor:
        """T (r, r), which only the other side, or another question, needs."""
        if self.factor is None or self.lengths is None:
            return torch.eye(self.rank, dtype=self.vectors.dtype)
        return _inverse(self.factor, self.lengths).to(self.vectors.dtype)

    def along(self, x: Tensor) -> Tensor:
        """Return x Qᵀ, (k, r)."""
        self._same()
        return (x @ self.vectors.T) @ self.transform.T

    def combine(self, c: Tensor) -> Tensor:
        """Return c Q, (k, n)."""
        self._same()
        return (c @ self.transform) @ self.vectors

    def _same(self) -> None:
        if self.marked is not None and mark(self.vectors) != self.marked:
            raise OverwrittenError


# Gram matrices of the run that is going on: a basis, and the norm of a gradient, need the same ones. Six are what the
# inputs and gradients of one MLP need; forgotten with the answers.
GRAMS: Met[Tensor] = Met(6)


def gram_of(x: Tensor) -> Tensor:
    """Return x xᵀ, (k, k), in float64, of products in the precision of x."""
    return GRAMS.of(x, _gram)


def orthonormal(x: Tensor, squares: Tensor | None = None) -> tuple[Block, Tensor]:
    """Factor x (k, n) = L Q: returns the block of Q (r, n), and L (k, r).

    Rows are measured by their own length: a short one beside a long one is no rounding.

    Args:
        squares: (k,) squared lengths beside which what is left of x may be rounding; default: those of x.

    Raises:
        NotFiniteError: x has a NaN or an infinity.
    """
    return _factored(x, gram_of(x), squares)


def _factored(x: Tensor, products: Tensor, squares: Tensor | None) -> tuple[Block, Tensor]:
    """The same, by the products x xᵀ."""
    gram, lengths = _normalized(products, squares)
    factor, smallest = _cholesky(gram)
    if smallest >= SAFE:
        return Block(x, mark(x), factor, lengths), (lengths.unsqueeze(1) * factor).to(x.dtype)
    first = _firsts(x, gram)
    if len(kept := list(dict.fromkeys(first))) < len(x):
        block, few = _factored(x[kept], products[kept][:, kept], None if squares is None else squares[kept])
        places = {row: at for at, row in enumerate(kept)}
        return block, few[[places[row] for row in first]]
    q = _inverse(factor, lengths).to(x.dtype) @ x if smallest >= WELL else _of_eigenvectors(x, squares)
    # T·V has lost digits by cancellation: Q itself is kept, made orthonormal once more (CholeskyQR2; Yamamoto,
    # Nakatsukasa, Yanagisawa and Fukaya, ETNA 44, 2015: enough for condition numbers up to 1/√eps, 3e3 in float32)
    q = torch.linalg.inv(torch.linalg.cholesky(_gram(q))).to(x.dtype) @ q
    coefficients = x @ q.T
    return Block(q, mark(q)), coefficients


def _firsts(x: Tensor, gram: Tensor) -> list[int]:
    """Return for each row the first one that is equal to it: equal tokens are common, and no reason to round."""
    close = ((gram - 1).abs() < ALIKE).tril(-1)
    found = list(range(len(x)))
    for later in close.any(1).nonzero().flatten().tolist():
        earlier = int(close[later].int().argmax())
        if torch.equal(x[later], x[earlier]):
            found[later] = found[earlier]
    return found


def _of_eigenvectors(x: Tensor, squares: Tensor | None) -> Tensor:
    """Return nearly orthonormal rows (r, n) that span nearly dependent ones, in float64 up to the end.

    Raises:
        NotFiniteError: x has a NaN or an infinity.
    """
    wide = x.double()
    gram, lengths = _normalized(wide @ wide.T, squares)
    if not bool(gram.isfinite().all()):
        raise NotFiniteError
    floor = max((NOISE * torch.finfo(x.dtype).eps) ** 2, len(x) * NOISE * torch.finfo(torch.float64).eps)
    values, vectors = torch.linalg.eigh(gram)
    kept = values > floor
    rows: Tensor = ((vectors[:, kept] / values[kept].sqrt()).T / lengths) @ wide
    return rows.to(x.dtype)


def _inverse(factor: Tensor, lengths: Tensor) -> Tensor:
    """Return L⁻¹ diag(1 / lengths), (k, k)."""
    inverse: Tensor = torch.linalg.solve_triangular(factor, torch.diag(1 / lengths), upper=False)
    return inverse


def _normalized(gram: Tensor, squares: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the Gram matrix of rows of length 1, and their lengths; 1 stands for that of a row of zeros."""
    lengths = (gram.diagonal() if squares is None else squares).sqrt()
    lengths = torch.where(lengths > 0, lengths, torch.ones_like(lengths))
    return gram / lengths / lengths.unsqueeze(1), lengths


def _cholesky(gram: Tensor) -> tuple[Tensor, float]:
    """Return the factor and its smallest pivot, 0 where there is none."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    smallest = 0.0 if int(failed) else float(factor.diagonal().min()) ** 2
    return factor, smallest if math.isfinite(smallest) else 0.0


def _gram(x: Tensor) -> Tensor:
    """Return x xᵀ in float64, of products of short pieces in the precision of x where that holds their squares."""
    if x.dtype == torch.float64:
        return x @ x.T
    first, *others = x.split(STEP, dim=1)
    total: Tensor = (first @ first.T).double()
    for piece in others:
        total += piece @ piece.T
    squares = total.diagonal()
    if len(x) and float(squares.min()) >= FITS and float(squares.max()) < math.inf:
        return total
    few = squares < FITS
    small = bool(few.any()) and bool((x[few] != 0).any())
    return x.double() @ x.double().T if small or not bool(squares.isfinite().all()) else total
