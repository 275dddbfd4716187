"""The operation graph of one forward: residual stream, branches, attention, roles. Needs torch."""

from __future__ import annotations

from initdiag.trace.events import Addition, Attention, Callbacks, FusedAttention, Reading, Routing, SoftmaxAttention
from initdiag.trace.tracer import Tracer

__all__ = [
    "Addition",
    "Attention",
    "Callbacks",
    "FusedAttention",
    "Reading",
    "Routing",
    "SoftmaxAttention",
    "Tracer",
]
