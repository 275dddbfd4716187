"""Numbers out of a trace. The values need no torch; `observe` (the door) does."""

from __future__ import annotations

from initdiag.measure.lens_values import (
    Copy,
    GradientMeasure,
    HeadroomMeasure,
    LabelMeasure,
    ParameterMeasure,
    ProbeMeasure,
    RouterMeasure,
)
from initdiag.measure.values import (
    AttentionMeasure,
    Branch,
    LogitMeasure,
    LossMeasure,
    Measurements,
    PositionLogits,
    Read,
    ResidualMeasure,
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
