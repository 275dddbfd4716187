"""One number for a whole run, out of what was measured in many places; nan where it is not, or could not be, known."""

from __future__ import annotations

import math

from initdiag.report.report import Run
from initdiag.rules.gradients import blocks_of


def token_information(run: Run) -> float:
    """Share of the final stream's variance that differs between sequences."""
    branches = [branch for branch in run.measured.residual.branches if branch.stream == 0]
    return branches[-1].token_share if branches else math.nan


def order_effect(run: Run) -> float:
    """Relative change of the first attention's output when earlier tokens are permuted."""
    return run.measured.probe.position if run.measured.probe else math.nan


def future_leak(run: Run) -> float:
    """Largest change of earlier logits when later tokens change, over the std of the logits."""
    return run.measured.probe.leak if run.measured.probe else math.nan


def expected_leak(run: Run) -> float | None:
    """0 where the model is causal; nothing is claimed of others."""
    return 0.0 if run.measured.probe and run.measured.probe.causal else None


def norm_output(run: Run) -> float:
    """Of all that is read through a norm, the RMS that is furthest from 1 on a log scale."""
    reads = [read for branch in run.measured.residual.branches for read in branch.reads]
    if run.measured.wiring.head_read:
        reads.append(run.measured.wiring.head_read)
    normed = [read.rms for read in reads if read.normed and not math.isnan(read.rms)]
    return max(normed, key=lambda rms: abs(math.log(rms)) if rms > 0 else math.inf, default=math.nan)


def largest_activation(run: Run) -> float:
    """The largest |activation| of the forward."""
    return run.measured.headroom.max_abs if run.measured.headroom else math.nan


def own_loss(run: Run) -> float:
    """The loss that the model returned itself, in nats."""
    return run.measured.labels.value if run.measured.labels else math.nan


def reference_loss(run: Run) -> float | None:
    """The cross-entropy of the model's own logits with the next token, in nats."""
    return run.measured.labels.reference if run.measured.labels else None


def router_share(run: Run) -> float:
    """The largest share of its assignments that any router gave to one expert."""
    return max((router.max_share for router in run.measured.routers), default=math.nan)


def gradient_ratio(run: Run) -> float:
    """GRAD001's factor per block: the steps' geometric mean is the first norm over the last, to the 1/steps."""
    branches = [branch for branch in run.measured.residual.branches if branch.stream == 0]
    blocks = blocks_of([branch for branch in branches if branch.gradient_norm is not None])
    if len(blocks) < 2 or not blocks[-1].norm > 0:
        return math.nan
    return math.pow(blocks[0].norm / blocks[-1].norm, 1 / (len(blocks) - 1))


def dead_tensors(run: Run) -> float:
    """How many parameters never got a gradient."""
    found = run.measured.gradients
    return len(found.dead) if found and not found.skipped else math.nan
