"""One number for a whole run, out of what was measured in many places; nan where it is not, or could not be, known."""

from __future__ import annotations

import math

from initdiag.measure import Measurements
from initdiag.rules.gradients import blocks_of


def token_information(of: Measurements) -> float:
    """Share of the final stream's variance that differs between sequences."""
    branches = [branch for branch in of.residual.branches if branch.stream == 0]
    return branches[-1].token_share if branches else math.nan


def order_effect(of: Measurements) -> float:
    """Relative change of the first attention's output when earlier tokens are permuted."""
    return of.probe.position if of.probe else math.nan


def future_leak(of: Measurements) -> float:
    """Largest change of earlier logits when later tokens change, over the std of the logits."""
    return of.probe.leak if of.probe else math.nan


def expected_leak(of: Measurements) -> float | None:
    """0 where the model is causal; nothing is claimed of others."""
    return 0.0 if of.probe and of.probe.causal else None


def norm_output(of: Measurements) -> float:
    """Of all that is read through a norm, the RMS that is furthest from 1 on a log scale."""
    reads = [read for branch in of.residual.branches for read in branch.reads]
    if of.wiring.head_read:
        reads.append(of.wiring.head_read)
    normed = [read.rms for read in reads if read.normed and not math.isnan(read.rms)]
    return max(normed, key=lambda rms: abs(math.log(rms)) if rms > 0 else math.inf, default=math.nan)


def largest_activation(of: Measurements) -> float:
    """The largest |activation| of the forward."""
    return of.headroom.max_abs if of.headroom else math.nan


def own_loss(of: Measurements) -> float:
    """The loss that the model returned itself, in nats."""
    return of.labels.value if of.labels else math.nan


def reference_loss(of: Measurements) -> float | None:
    """The cross-entropy of the model's own logits with the next token, in nats."""
    return of.labels.reference if of.labels else None


def router_share(of: Measurements) -> float:
    """The largest share of its assignments that any router gave to one expert."""
    return max((router.max_share for router in of.routers), default=math.nan)


def gradient_ratio(of: Measurements) -> float:
    """GRAD001's factor per block: the steps' geometric mean is the first norm over the last, to the 1/steps."""
    branches = [branch for branch in of.residual.branches if branch.stream == 0]
    blocks = blocks_of([branch for branch in branches if branch.gradient_norm is not None])
    if len(blocks) < 2 or not blocks[-1].norm > 0:
        return math.nan
    return math.pow(blocks[0].norm / blocks[-1].norm, 1 / (len(blocks) - 1))


def dead_tensors(of: Measurements) -> float:
    """How many parameters never got a gradient."""
    found = of.gradients
    return len(found.dead) if found and not found.skipped else math.nan
