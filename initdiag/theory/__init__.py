"""The same numbers, predicted in closed form. No torch. The door is `expect`."""

from __future__ import annotations

from initdiag.theory.expect import Expectations, expect
from initdiag.theory.loss import log_sum_exp

__all__ = ["Expectations", "expect", "log_sum_exp"]
