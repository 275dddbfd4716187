"""The same numbers, predicted: by closed forms and by the kernel recursion of the wide limit. No torch.

The doors are `expect`, for a run that was measured, and `predict`, for one that is not; only they import numpy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from initdiag.theory.expect import Expectations, expect
from initdiag.theory.loss import log_sum_exp
from initdiag.theory.planned import UnpredictableError

if TYPE_CHECKING:
    from initdiag.subjects import Subject
    from initdiag.theory.forward import Prediction
    from initdiag.tokens import TokenBatch


def predict(subject: Subject, batch: TokenBatch, *, backward: bool = False, brief: bool = False) -> Prediction:
    """See initdiag.theory.forward."""
    from initdiag.theory.forward import predict as found

    return found(subject, batch, backward=backward, brief=brief)


__all__ = ["Expectations", "UnpredictableError", "expect", "log_sum_exp", "predict"]
