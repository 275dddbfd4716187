"""A matrix of independent N(0, 1) entries that exists only as far as it has been asked.

Asked for W x with new x, it draws only what x has not determined yet. With rows as vectors, let Q (r, n) be an
orthonormal basis of the inputs asked so far and A = Q Wᵀ (r, m) what was answered; P (s, m) and B = P W (s, n) the
same of the other side. Then, given both, W = Aᵀ Q + Pᵀ B (1 − QᵀQ) + (1 − PᵀP) G (1 − QᵀQ) with G fresh and iid
(docs/weightless.md). So a new direction q is answered by q Wᵀ = (q Bᵀ) P + g (1 − PᵀP), g ~ N(0, 1)^m.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from initdiag.weightless.normals import Normals
from initdiag.weightless.span import Bases, NotFiniteError, Span


@dataclass
class Side:
    """One side: the directions asked, and the answers to them, a block (r, width of the other side) for each."""

    size: int
    span: Span
    answers: list[Tensor] = field(default_factory=list)


class Matrix:
    """W (m, n), iid N(0, 1), drawn from `normals` under `name`.

    bases: shared by the matrices that may meet the same vectors. fixed: rows of W that are known beforehand, as
    (row numbers (f,), their entries (f, n)).
    """

    def __init__(
        self,
        normals: Normals,
        name: str,
        m: int,
        n: int,
        bases: Bases | None = None,
        fixed: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        bases = bases or Bases()
        self.shape = (m, n)
        self._normals, self._name, self._fixed = normals, name, fixed
        self._inputs, self._outputs = Side(n, Span(bases)), Side(m, Span(bases))
        self._questions = 0
        self._entries: Tensor | None = None

    @property
    def asked(self) -> bool:
        """Whether anything but the fixed rows is known."""
        return bool(self._questions) or self._entries is not None

    @property
    def real(self) -> bool:
        """Whether its entries exist."""
        return self._entries is not None

    def right(self, x: Tensor, scale: float = 1.0) -> Tensor:
        """Return scale·x Wᵀ, (k, m), of x (k, n)."""
        if self._entries is not None:
            return (x * scale) @ self._entries.T
        return self._ask(x, self._inputs, self._outputs, scale)

    def left(self, y: Tensor) -> Tensor:
        """Return y W, (k, n), of y (k, m)."""
        if self._entries is not None:
            return y @ self._entries
        if self._fixed is None:
            return self._ask(y, self._outputs, self._inputs)
        at, rows = self._fixed
        known = y[:, at] @ rows
        return known + self._ask(y.index_fill(1, at, 0.0), self._outputs, self._inputs)

    def worn(self, side: str, more: int) -> bool:
        """Whether `more` vectors would use up half of what a side ("right", "left") can be asked."""
        own = self._inputs if side == "right" else self._outputs
        return self._entries is None and 2 * (own.span.rank + more) > own.size

    def entries(self) -> Tensor:
        """Return W itself, which from now on is real, and agrees with all that was answered."""
        if self._entries is not None:
            return self._entries
        m, n = self.shape
        w = self._normals(f"{self._name}/entries", m, n)
        q, p = self._inputs, self._outputs
        # (1 − PᵀP) (G (1 − QᵀQ) + …): first what the right side knows, then what the left one does
        if q.answers:
            seen = torch.cat(q.answers)
            w += q.span.combine((seen - q.span.along(w).T).T)
        if p.answers:
            heard = torch.cat(p.answers)
            w += p.span.combine((heard - p.span.along(w.T).T).T).T
        if self._fixed is not None:
            w[self._fixed[0]] = self._fixed[1]
        self._entries = w
        return w

    def _ask(self, x: Tensor, own: Side, other: Side, scale: float = 1.0) -> Tensor:
        if not len(x):
            return x.new_zeros(0, other.size)
        try:
            old, new, block = own.span.extend(x)
        except NotFiniteError:  # what such a vector gives is as undefined, and tells nothing of W
            finite = x.isfinite().all(dim=1)
            undefined = x.new_full((len(x), other.size), torch.nan)
            undefined[finite] = self._ask(x[finite], own, other, scale)
            return undefined
        if scale != 1:  # of the small factors, not of the answer
            old, new = None if old is None else old * scale, new * scale
        answer = None if old is None else old @ torch.cat(own.answers)
        if block is not None:
            fresh = self._normals(f"{self._name}/{self._questions}", block.rank, other.size)
            self._questions += 1
            if other.answers:
                told = block.along(torch.cat(other.answers)).T  # (r, s): what the other side has said of them
                fresh += other.span.combine(told - other.span.along(fresh))
            if self._fixed is not None and own is self._inputs:
                fresh[:, self._fixed[0]] = block.along(self._fixed[1]).T
            own.answers.append(fresh)
            answer = new @ fresh if answer is None else answer + new @ fresh
        return x.new_zeros(len(x), other.size) if answer is None else answer
