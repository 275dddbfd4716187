"""Numbers out of a trace. The values need no torch; `observe` (the door) does."""

from __future__ import annotations

from initdiag.measure.values import (
    AttentionMeasure,
    Branch,
    Copy,
    GradientMeasure,
    HeadroomMeasure,
    LabelMeasure,
    LogitMeasure,
    LossMeasure,
    Measurements,
    ParameterMeasure,
    PositionLogits,
    ProbeMeasure,
    Read,
    ResidualMeasure,
    RouterMeasure,
    Wiring,
    mean,
    total,
)
from initdiag.subjects import InitHistory

__all__ = [
    "AttentionMeasure",
    "Branch",
    "Copy",
    "GradientMeasure",
    "HeadroomMeasure",
    "InitHistory",
    "LabelMeasure",
    "LogitMeasure",
    "LossMeasure",
    "Measurements",
    "ParameterMeasure",
    "PositionLogits",
    "ProbeMeasure",
    "Read",
    "ResidualMeasure",
    "RouterMeasure",
    "Wiring",
    "mean",
    "total",
]
