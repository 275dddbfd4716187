"""The reference Transformer. `architecture` and `parameters` need no torch; `transformer` does."""

from __future__ import annotations

from initdiag.model.architecture import Architecture
from initdiag.model.parameters import parameters, sizes

__all__ = ["Architecture", "parameters", "sizes"]
