"""An orthonormal basis of the vectors that a random matrix has met, without forming it.

Vectors are rows. A block of them is V (k, n) and stands for the orthonormal rows Q = T·V (r, n): T (r, k) is small, so
x Qᵀ = (x Vᵀ) Tᵀ and c Q = (c T) V cost two thin products each. T is the inverse Cholesky factor of the Gram matrix
V Vᵀ, in float64 (CholeskyQR); where that is singular (equal tokens), its eigenvectors give the rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from initdiag.errors import InitdiagError

STEP = 2**13  # entries of a row that are multiplied in the vectors' own precision before float64 takes over
WELL = 1e-4  # of pivot over length, squared, below which the Gram matrix is worth the price of float64 throughout
FEW = 8  # entries of the first and the last vector, by which a write is told
FITS = 1e-25  # a squared length from which the squares of float32 don't vanish
ALIKE = 1e-6  # of a cosine to 1, from which two rows are looked at
NOISE = 64  # roundings: a direction that is no longer than this part of the longest vector is rounding, not a direction


def version(tensor: Tensor) -> int | None:
    """Return torch's count of writes to a tensor's memory; None for inference tensors, which have none."""
    return None if tensor.is_inference() else tensor._version


Mark = tuple[Any, ...]


def mark(x: Tensor) -> Mark | None:
    """Return what a write to x (k, n) would change: its version, and a few entries, since writes through .data have no
    version. None for inference tensors, of which one can't be sure."""
    if x.is_inference() or not x.numel():
        return None
    few = (*x[0, :FEW].tolist(), *x[-1, -FEW:].tolist())
    return (version(x), *(None if math.isnan(one) else one for one in few))


class OverwrittenError(InitdiagError):
    """Vectors that a basis stands on were written to since: their basis is lost."""


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
        inverse: Tensor = torch.linalg.solve_triangular(self.factor, torch.diag(1 / self.lengths), upper=False)
        return inverse.to(self.vectors.dtype)

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


Found = TypeVar("Found")


@dataclass
class Met(Generic[Found]):
    """What was computed of the vectors that were met last, for as long as nobody writes into them."""

    most: int
    _met: list[tuple[Tensor, Mark | None, Found]] = field(default_factory=list)

    def of(self, x: Tensor, compute: Callable[[Tensor], Found]) -> Found:
        """Return compute(x), known already where x lies in the memory of one of them and reads the same."""
        for met, at, known in self._met:
            if at is not None and _same_memory(met, x) and at == mark(x):
                return known
        found = compute(x)
        self._met = [*self._met[1 - self.most :], (x, mark(x), found)]
        return found

    def forget(self) -> None:
        self._met.clear()


# Gram matrices of the run that is going on: a basis, and the norm of a gradient, need the same ones. Six are what the
# inputs and gradients of one MLP need; forgotten with the answers.
GRAMS: Met[Tensor] = Met(6)


def gram_of(x: Tensor) -> Tensor:
    """Return x xᵀ, (k, k), in float64, of products in the precision of x."""
    return GRAMS.of(x, _gram)


@dataclass
class Bases:
    """Bases of the vectors that were met last: queries, keys and values ask with the same ones.

    copied: keep copies of vectors, where code writes into what it has multiplied.
    """

    copied: bool = False
    _met: Met[tuple[Block, Tensor]] = field(default_factory=lambda: Met(2))

    def of(self, x: Tensor) -> tuple[Block, Tensor]:
        """Return what `orthonormal` does."""
        # x itself: below autograd, what detach() returns has a version of its own
        return self._met.of(x, lambda x: orthonormal(x.clone() if self.copied or x.is_inference() else x))

    def forget(self) -> None:
        self._met.forget()
        GRAMS.forget()


@dataclass
class Span:
    """The basis, grown block by block."""

    bases: Bases
    blocks: list[Block] = field(default_factory=list)

    @property
    def rank(self) -> int:
        return sum(block.rank for block in self.blocks)

    def along(self, x: Tensor) -> Tensor:
        """Return the coefficients x Qᵀ, (k, rank)."""
        return torch.cat([block.along(x) for block in self.blocks], dim=1)

    def combine(self, c: Tensor) -> Tensor:
        """Return c Q, (k, n)."""
        parts = c.split([block.rank for block in self.blocks], dim=1)
        first, *others = (block.combine(part) for block, part in zip(self.blocks, parts, strict=True))
        for other in others:
            first = first + other
        return first

    def extend(self, x: Tensor) -> tuple[Tensor | None, Tensor, Block | None]:
        """Take in the rows of x (k, n).

        Returns:
            (old, new, block) with x = old·Q_before + new·Q_block; old (k, rank before) is None where nothing was
            there, and block is None where x brings no new direction, new being (k, 0) then.
        """
        if not self.blocks:
            block, new = self.bases.of(x)
            return None, new, self._grown(block)
        old = self.along(x)
        rest = x - self.combine(old)
        again = self.along(rest)  # once more: what the first projection left of the old directions is rounding
        rest = rest - self.combine(again)
        block, new = orthonormal(rest, x.double().square().sum(1))
        return old + again, new, self._grown(block)

    def _grown(self, block: Block) -> Block | None:
        if not block.rank:
            return None
        self.blocks.append(block)
        return block


def orthonormal(x: Tensor, squares: Tensor | None = None) -> tuple[Block, Tensor]:
    """Factor x (k, n) = L Q: returns the block of Q (r, n), and L (k, r).

    Rows are measured by their own length: a short one beside a long one is no rounding.

    Args:
        squares: (k,) squared lengths beside which what is left of x may be rounding; default: those of x.

    Raises:
        NotFiniteError: x has a NaN or an infinity.
    """
    gram, lengths = _normalized(gram_of(x), squares)
    factor, smallest = _cholesky(gram)
    if smallest >= WELL:
        return Block(x, mark(x), factor, lengths), (lengths.unsqueeze(1) * factor).to(x.dtype)
    first = _firsts(x, gram)
    if (kept := list(dict.fromkeys(first))) != list(range(len(x))):
        block, coefficients = orthonormal(x[kept], None if squares is None else squares[kept])
        places = {row: at for at, row in enumerate(kept)}
        return block, coefficients[[places[row] for row in first]]
    return _written_out(x, squares)


def _firsts(x: Tensor, gram: Tensor) -> list[int]:
    """Return for each row the first one that is equal to it: equal tokens are common, and no reason to round."""
    first = list(range(len(x)))
    for later, earlier in ((gram - 1).abs() < ALIKE).tril(-1).nonzero().tolist():
        if first[later] == later and first[earlier] == earlier and torch.equal(x[later], x[earlier]):
            first[later] = earlier
    return first


def _written_out(x: Tensor, squares: Tensor | None) -> tuple[Block, Tensor]:
    """The same of nearly dependent rows: T·V would lose digits by cancellation, so that Q itself is kept, refined once.

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
    q = (((vectors[:, kept] / values[kept].sqrt()).T / lengths) @ wide).to(x.dtype)
    q = torch.linalg.solve_triangular(torch.linalg.cholesky(_gram(q)).to(x.dtype), q, upper=False)
    return Block(q, mark(q)), x @ q.T


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


def _same_memory(one: Tensor, two: Tensor) -> bool:
    same = one.data_ptr() == two.data_ptr() and one.dtype == two.dtype
    return same and one.shape == two.shape and one.stride() == two.stride()


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
