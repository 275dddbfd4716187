"""What was measured in one forward, as values. Definitions, units and healthy ranges: docs/concepts.md. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from initdiag.measure.lens_values import (
    Copy,
    GradientMeasure,
    HeadroomMeasure,
    LabelMeasure,
    ParameterMeasure,
    ProbeMeasure,
    RouterMeasure,
)
from initdiag.schemes import InitPlan, Parameter
from initdiag.subjects import NOT_WATCHED, UNPLANNED, InitHistory

QUERIES = 32  # the last queries, from which attention is seen: they see the most keys; more of them say little more


def total(values: Iterable[float]) -> float:
    """Sum exactly; where a value isn't finite, as floats do (math.fsum raises for inf − inf, and on overflow)."""
    values = list(values)
    try:
        return math.fsum(values)
    except (ValueError, OverflowError):
        return sum(values)


def mean(values: Iterable[float]) -> float:
    """Return the mean, or nan where a value isn't finite."""
    values = list(values)
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan


@dataclass(frozen=True)
class LossMeasure:
    """Cross-entropies in nats, averaged over the N = B·T targets.

    value: on the given targets. uniform_targets: under targets drawn uniformly from the vocabulary, that is
    mean(logsumexp) − mean(logits): the same expectation for random targets, far less noise.
    """

    value: float
    uniform_targets: float
    vocab_size: int

    @property
    def uniform(self) -> float:
        """ln V: the loss of a model that says nothing."""
        return math.log(self.vocab_size)

    @property
    def excess(self) -> float:
        return self.value - self.uniform


@dataclass(frozen=True)
class LogitMeasure:
    """Logits, averaged over positions.

    std: over the vocabulary (population). self_logit: of the current input token, above the mean of the others.
    max_abs: the largest |logit| of all. entropy_ratio: entropy of softmax(logits) over ln V.
    """

    std: float
    self_logit: float
    max_abs: float
    entropy_ratio: float


@dataclass(frozen=True)
class PositionLogits:
    """The logits of one position, as theory needs them: std over the vocabulary without the input token, the input
    token's own logit above the mean of the others, and whether that token is also the target."""

    std: float
    self_logit: float
    target_is_self: bool


@dataclass(frozen=True)
class Read:
    """What the head, or the first matrix product of a branch, reads from the residual stream.

    reader: the weight that reads. normed: whether a norm stands between the stream and it. gain: the norm's gain
    parameter, if it has one. rms: root mean square of what is read, over tokens and features. scaled: it was multiplied
    as well, so that its rms need not be the norm's.
    """

    reader: str
    normed: bool
    gain: str | None
    rms: float
    scaled: bool = False


@dataclass(frozen=True)
class Branch:
    """One addition to the residual stream; variances are over tokens and features (population).

    kind: attention, cross_attention, mlp, moe or other. projection: the weight that wrote it. module: the module in
    whose code the addition ran; source: the line of it, "model.py:41". stream: 0, or 1 for the second stream of an
    encoder-decoder.
    normed: a norm stands between projection and addition (sandwich, reordered norm).
    carried: what happened to the stream since the branch before: "same", "scaled", "normed" (post-norm), "first";
    carried_by: the gain of the norm that it passed on the way, if any.
    joined: the number of branches that were summed before they were added (parallel blocks).
    residue: ‖after − (keep·before + branch)‖/‖after‖, computed from what the tensors hold.
    token_share: share of the stream's variance, after the branch, that differs between sequences (nan for one).
    reads: what its first products read. gradient_norm: ‖∂ loss/∂ branch‖, where a backward was run.
    """

    index: int
    name: str
    layer: int | None
    kind: str
    projection: str | None
    branch_variance: float
    stream_variance: float
    module: str = ""
    source: str | None = None
    stream: int = 0
    normed: bool = False
    carried: str = "same"
    carried_by: str | None = None
    joined: int = 1
    keep: float = 1.0
    residue: float = 0.0
    token_share: float = math.nan
    reads: tuple[Read, ...] = ()
    gradient_norm: float | None = None

    @property
    def ratio(self) -> float:
        """Branch variance over the variance of the stream after it."""
        return self.branch_variance / self.stream_variance if self.stream_variance else math.nan


@dataclass(frozen=True)
class Wiring:
    """How the model is put together, as its operations show.

    placement: "pre", "post", "sandwich" (norms before and after), "reordered" (after the projections), "none", or
    "unknown" where no stream was found.
    head: the weight that produced the logits; head_read: what it read. embedding: the table of the first stream.
    tied: head and embedding are one tensor. head_bias: added to the logits, if any. broken: why the head doesn't read
    the stream, else "". tried: what was looked for where no stream was found, else "".
    """

    placement: str = "unknown"
    d_model: int = 0
    n_layers: int = 0
    head: str | None = None
    head_read: Read | None = None
    embedding: str | None = None
    tied: bool = False
    head_bias: str | None = None
    broken: str = ""
    tried: str = ""


@dataclass(frozen=True)
class ResidualMeasure:
    """The residual stream.

    embedding_variance: its variance before the first branch.
    scaling_ratio: Σ branch variance over the mean variance that one branch would have without the scheme's depth
    scaling. 1/√(2N) promises 1; 2N is no scaling; 1/(2N) is scaling twice. nan where no branch was drawn at all.
    """

    embedding_variance: float
    branches: tuple[Branch, ...]
    scaling_ratio: float

    @property
    def branch_variance_sum(self) -> float:
        return total(branch.branch_variance for branch in self.branches)


@dataclass(frozen=True)
class AttentionMeasure:
    """One attention, seen from its last queries and averaged over batch, heads and those queries.

    logit_std: over the visible keys (population). entropy_ratio: entropy of the attention over ln(visible keys).
    """

    name: str
    layer: int | None
    logit_std: float
    entropy_ratio: float


@dataclass(frozen=True)
class Measurements:
    """All that was observed in one run; the later fields are empty where they were not looked at.

    roles: every parameter, with the role that the operations show. plan: what the parameters were drawn from, or, of a
    module that was taken as it is, what its init code was seen to draw.
    """

    loss: LossMeasure
    logits: LogitMeasure
    positions: tuple[PositionLogits, ...]
    residual: ResidualMeasure
    attention: tuple[AttentionMeasure, ...]
    parameters: tuple[ParameterMeasure, ...]
    wiring: Wiring = Wiring()
    routers: tuple[RouterMeasure, ...] = ()
    copies: tuple[Copy, ...] = ()
    labels: LabelMeasure | None = None
    probe: ProbeMeasure | None = None
    headroom: HeadroomMeasure | None = None
    gradients: GradientMeasure | None = None
    history: InitHistory = NOT_WATCHED
    buffers: tuple[ParameterMeasure, ...] = ()
    roles: tuple[Parameter, ...] = ()
    plan: InitPlan = UNPLANNED
