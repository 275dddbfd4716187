"""The operation graph of one forward: residual stream, branches, attention. Needs torch."""

from __future__ import annotations

from initdiag.trace.tracer import Addition, Attention, FusedAttention, SoftmaxAttention, Tracer

__all__ = ["Addition", "Attention", "FusedAttention", "SoftmaxAttention", "Tracer"]
