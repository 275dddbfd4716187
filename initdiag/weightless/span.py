"""The directions that a random matrix has been asked, block by block."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from initdiag.weightless.basis import GRAMS, Block, orthonormal
from initdiag.weightless.met import Met


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
