"""The same numbers, predicted in closed form. No torch. The door is `expect`."""

from __future__ import annotations

from initdiag.theory.expect import Expectations, expect

__all__ = ["Expectations", "expect"]
