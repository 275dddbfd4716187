"""Rules on the range of the number format that the model will run in."""

from __future__ import annotations

import math
from collections.abc import Iterator

from initdiag.rules.rule import Evidence, Rule, Trouble

LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
HEADROOM = 8  # activations of a model in training grow by more than that, and a product of two passes the square


def _overflow(evidence: Evidence) -> Iterator[Trouble]:
    headroom = evidence.measured.headroom
    dtype = _narrowest(evidence)
    largest = LARGEST[dtype]
    if headroom is None or math.isnan(headroom.max_abs) or headroom.max_abs <= largest / HEADROOM:
        return
    beyond = headroom.max_abs > largest
    yield Trouble(
        f"the largest activation is {headroom.max_abs:.3g}, made by {headroom.where}; {dtype} "
        + (f"ends at {largest:.5g}" if beyond else f"ends at {largest:.5g}, and an {HEADROOM}-fold margin is expected"),
        headroom.where,
        f"draw {headroom.where} and what it reads with a smaller std, scale attention logits by 1/√head_dim"
        + (", or train in bfloat16" if dtype == "float16" else ""),
        "init.std",
    )


def _narrowest(evidence: Evidence) -> str:
    """Return the format of the smallest range: of the gate's, and what the parameters are kept in."""
    dtypes = {getattr(evidence.gate, "headroom_dtype", "bfloat16")}
    dtypes |= {parameter.dtype for parameter in evidence.measured.parameters if parameter.dtype in LARGEST}
    return min(dtypes, key=lambda dtype: LARGEST[dtype])


OVERFLOW = Rule(
    id="NUM002",
    name="low-precision-overflow",
    severity="error",
    what="The largest |activation| of the forward is above 1/8 of the largest number of gate.headroom_dtype, or of the "
    "format of the parameters if that has a smaller range: 8,188 for float16, 4.2e37 for bfloat16. Masks are left out.",
    why="What doesn't fit becomes inf, and the first inf makes every weight nan. Activations grow in training, so a "
    "model that starts at the edge goes over it. In float32, where this was measured, nothing shows.",
    example="Attention logits without 1/√head_dim over an N(1) embedding, in float16.",
    instead="A smaller std where the activation is made; bfloat16, which has the range of float32.",
    references=("arXiv 1710.03740 (mixed precision training)",),
    check=_overflow,
    on_trained=True,
)
