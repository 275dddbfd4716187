"""What a view of a random parameter stands for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from initdiag.weightless.source import Source


@dataclass(frozen=True)
class Weight:
    """scale · (a view of the source) + plus; `layout` is the view, on the meta device, of a contiguous whole."""

    source: Source
    layout: Tensor
    scale: float = 1.0
    plus: Tensor | None = None

    def viewed(self, function: Any, *args: Any, **kwargs: Any) -> Weight:
        """Return another view of it."""
        plus = None if self.plus is None else function(self.plus, *args, **kwargs)
        return replace(self, layout=function(self.layout, *args, **kwargs), plus=plus)

    def times(self, factor: float) -> Weight:
        plus = None if self.plus is None else self.plus * factor
        return replace(self, scale=self.scale * factor, plus=plus)
