"""What was measured in one forward, as values. Definitions, units and healthy ranges: docs/concepts.md. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


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
class Branch:
    """One addition to the residual stream; variances are over tokens and features (population)."""

    index: int
    name: str
    layer: int | None
    kind: str
    projection: str | None
    branch_variance: float
    stream_variance: float

    @property
    def ratio(self) -> float:
        """Branch variance over the variance of the stream after it."""
        return self.branch_variance / self.stream_variance if self.stream_variance else math.nan


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
class ParameterMeasure:
    """One parameter as it stands in the module: mean, std (population) and how many entries are not finite."""

    name: str
    mean: float
    std: float
    not_finite: int


@dataclass(frozen=True)
class Measurements:
    """All that was observed in one run."""

    loss: LossMeasure
    logits: LogitMeasure
    positions: tuple[PositionLogits, ...]
    residual: ResidualMeasure
    attention: tuple[AttentionMeasure, ...]
    parameters: tuple[ParameterMeasure, ...]
