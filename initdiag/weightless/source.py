"""A parameter without memory: random matrices, one for each index of its leading axes, scaled as its law says.

Rows of a matrix are independent, so parts of them that are asked by themselves (the head in chunks, packed
projections, experts) are matrices of their own. A part that was asked as a whole stays one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from initdiag.errors import InitdiagError
from initdiag.weightless.law import Law, uniform_law
from initdiag.weightless.matrix import Matrix
from initdiag.weightless.normals import Normals
from initdiag.weightless.rows_of_law import Moments, bent_rows, moments_between, moments_of
from initdiag.weightless.span import Bases

Allow = Callable[[str, int, str, bool], bool]  # see Source


FEW = 4  # rows that may be real without a word: one logit's, by which the head is known


class AskedAgainError(InitdiagError):
    """A parameter is asked when its answers are forgotten: its block ran twice, or is asked by others, or not as
    before."""


@dataclass
class Part:
    """Rows start … stop − 1 of one matrix."""

    start: int
    stop: int
    matrix: Matrix


@dataclass
class Source:
    """The entries of a parameter of `shape` (…, m, n), drawn from `law` by `name`; nothing is drawn until asked.

    allow(name, bytes, why, needed) is asked before a part of it is made real, and may say no where it isn't needed;
    a negative number of bytes gives back what is forgotten.
    """

    name: str
    shape: tuple[int, ...]
    law: Law
    normals: Normals
    allow: Allow
    bases: Bases = field(default_factory=Bases)
    _parts: dict[int, list[Part]] = field(default_factory=dict)
    _rows: dict[int, Tensor] = field(default_factory=dict)  # looked up, N(0, 1), by row of all matrices together
    _lookups: int = 0
    _made: int = 0  # bytes
    closed: bool = False

    @property
    def m(self) -> int:
        return self.shape[-2]

    @property
    def n(self) -> int:
        return self.shape[-1]

    @property
    def asked(self) -> bool:
        return bool(self._parts or self._rows)

    def met(self, matrix: int) -> bool:
        """Whether one of its matrices has been multiplied; rows that were looked up don't count."""
        return any(part.matrix.asked for part in self._parts.get(matrix, ()))

    def seen_as(self, view: Tensor) -> bool:
        """Be one matrix of the shape of a 2-D view of all of it, if nobody has asked yet; say whether it is now."""
        p, q = map(int, view.shape)
        if view.storage_offset() or p * q != math.prod(self.shape) or len(self.law.pieces) > 1 or self.asked:
            return False
        if view.stride() not in ((q, 1), (1, p)):
            return False
        self.shape = (p, q) if view.stride() == (q, 1) else (q, p)
        self.law = uniform_law(self.law.pieces[0].distribution, self.shape[0], self.law.pieces[0].mean)
        return True

    def forget(self, closed: bool = False) -> None:
        """Be as nobody had asked: the same questions will get the same answers. Nothing may be asked while `closed`."""
        self.closed = closed
        self._parts.clear()
        self._rows.clear()
        self._lookups = 0
        if self._made:
            self.allow(self.name, -self._made, "", False)
        self._made = 0

    def right(self, x: Tensor, rows: range, matrix: int = 0) -> Tensor:
        """Return x W[rows]ᵀ, (k, rows), of x (k, n)."""
        self._open()
        std, mean = self._moments(rows, matrix)
        if _any(std):
            scale = 1.0 if isinstance(std, Tensor) else std
            covering = self._covering(rows, matrix, "right", len(x))
            parts = [part.matrix.right(x, scale)[:, within] for part, within in covering]
            answer = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
            if isinstance(std, Tensor):
                answer.mul_(std)  # in place: what a matrix returns is nobody else's
        else:
            answer = x.new_zeros(len(x), len(rows))
        return answer.add_(x.sum(1, keepdim=True) * mean) if _any(mean) else answer

    def left(self, y: Tensor, rows: range, matrix: int = 0) -> Tensor:
        """Return y W[rows], (k, n), of y (k, rows)."""
        self._open()
        std, mean = self._moments(rows, matrix)
        answer = None
        if _any(std):
            scaled = y * std
            at = 0
            for part, within in self._covering(rows, matrix, "left", len(y)):
                width = within.stop - within.start
                piece = scaled[:, at : at + width]
                if width < part.stop - part.start:
                    padded = y.new_zeros(len(y), part.stop - part.start)
                    padded[:, within] = piece
                    piece = padded
                heard = part.matrix.left(piece)
                answer = heard if answer is None else answer.add_(heard)
                at += width
        if answer is None:
            answer = y.new_zeros(len(y), self.n)
        return answer + (y * mean).sum(1, keepdim=True) if _any(mean) else answer

    def look_up(self, ids: Sequence[int]) -> Tensor:
        """Return rows by their numbers over all matrices, (len(ids), n)."""
        self._open()
        distinct = list(dict.fromkeys(ids))
        self._reveal([row for row in distinct if row not in self._rows])
        found = torch.stack([self._rows[row] for row in distinct]) if distinct else self.normals(self.name, 0, self.n)
        std, mean = moments_of(self.law, distinct, self.normals.dtype)
        found = found * std + mean
        places = {row: at for at, row in enumerate(distinct)}
        return found[[places[row] for row in ids]] if len(distinct) < len(ids) else found

    def need(self, rows: range, matrix: int, why: str) -> None:
        """Ask for the room of what isn't real yet of W[rows].

        Raises:
            RunError: it doesn't fit.
        """
        parts = self._parts.get(matrix, [])
        real = sum(len(range(max(rows.start, p.start), min(rows.stop, p.stop))) for p in parts if p.matrix.real)
        if real < len(rows):
            self._take((len(rows) - real) * self.n * self.normals.dtype.itemsize, why, True)

    def _open(self) -> None:
        if self.closed:
            raise AskedAgainError

    def _take(self, size: int, why: str, needed: bool) -> bool:
        allowed = self.allow(self.name, size, why, needed)
        self._made += size if allowed else 0
        return allowed

    def entries(self, rows: range, matrix: int = 0) -> Tensor:
        """Return W[rows], (rows, n): made real."""
        self._open()
        std, mean = self._moments(rows, matrix)
        parts = [part.matrix.entries()[within] for part, within in self._covering(rows, matrix, "right", 0)]
        column = [value.unsqueeze(1) if isinstance(value, Tensor) else value for value in (std, mean)]
        return torch.cat(parts) * column[0] + column[1]

    def _reveal(self, rows: list[int]) -> None:
        """Draw rows that nobody has looked up yet; those of a matrix that has been asked, conditionally."""
        free = []
        for row in rows:
            part = self._part_of(row)
            if part is None or not part.matrix.asked:
                free.append(row)
            else:
                one = torch.zeros(1, part.stop - part.start, dtype=self.normals.dtype)
                one[0, row % self.m - part.start] = 1.0
                self._rows[row] = part.matrix.left(one)[0]
        if free:
            drawn = self.normals(f"{self.name}/rows/{self._lookups}", len(free), self.n)
            drawn = bent_rows(self.law, free, drawn)
            self._lookups += 1
            self._rows.update(zip(free, drawn, strict=True))
            for matrix in {row // self.m for row in free} & set(self._parts):  # untouched: made anew with these rows
                self._parts[matrix] = [part for part in self._parts[matrix] if part.matrix.asked]

    def _part_of(self, row: int) -> Part | None:
        matrix, at = divmod(row, self.m)
        return next((part for part in self._parts.get(matrix, ()) if part.start <= at < part.stop), None)

    def _covering(self, rows: range, matrix: int, side: str, asked: int) -> Iterator[tuple[Part, slice]]:
        """Yield the parts that hold some rows, in order, and which of theirs these are; new ones fill the gaps.

        Where the vectors that will be asked take up half of what can be asked, real entries are cheaper from then on.
        """
        parts = self._parts.setdefault(matrix, [])
        at = rows.start
        while at < rows.stop:
            part = next((one for one in parts if one.start <= at < one.stop), None)
            if part is None:
                stop = min([one.start for one in parts if one.start > at], default=rows.stop)
                part = self._new_part(matrix, at, min(stop, rows.stop))
                parts.append(part)
            if asked and part.matrix.worn(side, asked):
                height = part.stop - part.start
                size = height * self.n * self.normals.dtype.itemsize
                if height <= FEW or self._take(size, "it meets more vectors than half its width", False):
                    part.matrix.entries()
            end = min(part.stop, rows.stop)
            yield part, slice(at - part.start, end - part.start)
            at = end

    def _new_part(self, matrix: int, start: int, stop: int) -> Part:
        first = matrix * self.m
        known = [row for row in self._rows if first + start <= row < first + stop]
        fixed = None
        if known:
            fixed = (
                torch.tensor([row - first - start for row in known]),
                torch.stack([self._rows[row] for row in known]),
            )
        name = f"{self.name}[{matrix}, {start}:{stop}]"
        return Part(start, stop, Matrix(self.normals, name, stop - start, self.n, self.bases, fixed))

    def _moments(self, rows: range, matrix: int) -> Moments:
        first = matrix * self.m
        return moments_between(self.law, first + rows.start, first + rows.stop, self.normals.dtype)


def _any(value: Tensor | float) -> bool:
    return bool(value.any()) if isinstance(value, Tensor) else bool(value) or math.isnan(value)
