"""Matrices of independent random entries that are drawn only as far as they are asked. `law` needs no torch.

Everything else of this room does; whoever knocks here imports the module that is meant.
"""

from __future__ import annotations

from initdiag.weightless.law import Law, Piece, uniform_law

__all__ = ["Law", "Piece", "uniform_law"]
