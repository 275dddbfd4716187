"""Numbers out of a trace. The values need no torch; `observe` (the door) does."""

from __future__ import annotations

from initdiag.measure.values import (
    AttentionMeasure,
    Branch,
    LogitMeasure,
    LossMeasure,
    Measurements,
    ParameterMeasure,
    PositionLogits,
    ResidualMeasure,
    mean,
    total,
)

__all__ = [
    "AttentionMeasure",
    "Branch",
    "LogitMeasure",
    "LossMeasure",
    "Measurements",
    "ParameterMeasure",
    "PositionLogits",
    "ResidualMeasure",
    "mean",
    "total",
]
