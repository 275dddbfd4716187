"""A matrix of independent N(0, 1) entries that exists only as far as it has been asked.

Asked for W x with new x, it draws only what x has not determined yet. With rows as vectors, let Q (r, n) be an
orthonormal basis of the inputs asked so far and A = Q Wᵀ (r, m) what was answered; P (s, m) and B = P W (s, n) the
same of the other side. Then, given both, W = Aᵀ Q + Pᵀ B (1 − QᵀQ) + (1 − PᵀP) G (1 − QᵀQ) with G fresh and iid
(docs/weightless.md). So a new direction q is answered by q Wᵀ = (q Bᵀ) P + g (1 − PᵀP), g ~ N(0, 1)^m.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from initdiag.weightless.basis import Block, NotFiniteError
from initdiag.weightless.normals import Normals
from initdiag.weightless.span import Bases, Span


@dataclass
class Side:
    """One side: the directions asked, and the answers to them, a block (r, width of the other side) for each.

    Answers that are nothing but fresh numbers are drawn again when somebody needs them: most forwards don't.
    """

    size: int
    span: Span
    _answers: list[Tensor] = field(default_factory=list)
    _unheld: list[Callable[[], Tensor]] = field(default_factory=list)  # those that came after them

    @property
    def asked(self) -> bool:
        return bool(self.span.blocks)

    @property
    def answers(self) -> Tensor:
        """All of them, (rank, width of the other side)."""
        self._answers += [draw() for draw in self._unheld]
        self._unheld.clear()
        if len(self._answers) > 1:
            self._answers = [torch.cat(self._answers)]
        return self._answers[0]

    def add(self, answer: Callable[[], Tensor]) -> None:
        """Add the answer to the block that the span got last; it is called for once, and then kept."""
        self._unheld.append(answer)


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
        if q.asked:
            w += q.span.combine((q.answers - q.span.along(w).T).T)
        if p.asked:
            w += p.span.combine((p.answers - p.span.along(w.T).T).T).T
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
        answer = None if old is None else old @ own.answers
        if block is not None:
            said = self._answer(block, new, own, other)
            answer = said if answer is None else answer.add_(said)
        return x.new_zeros(len(x), other.size) if answer is None else answer

    def _answer(self, block: Block, new: Tensor, own: Side, other: Side) -> Tensor:
        """Return new (k, r) times the answer to the r directions of a block, which nobody has asked before."""
        normals, name, rank, width = self._normals, f"{self._name}/{self._questions}", block.rank, other.size
        self._questions += 1
        fixed = self._fixed if own is self._inputs else None
        if not other.asked and fixed is None:
            own.add(lambda: normals(name, rank, width))  # no self: a cycle would keep activations
            return normals.times(new, name, width)
        fresh = normals(name, rank, width)
        if other.asked:
            told = block.along(other.answers).T  # (r, s): what the other side has said of them
            fresh += other.span.combine(told - other.span.along(fresh))
        if fixed is not None:
            fresh[:, fixed[0]] = block.along(fixed[1]).T
        own.add(lambda: fresh)
        return new @ fresh
