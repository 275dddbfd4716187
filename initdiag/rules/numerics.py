"""Rules on numbers that are no numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator

from initdiag.rules.rule import Evidence, Rule, Trouble


def _not_finite(evidence: Evidence) -> Iterator[Trouble]:
    where = _first(evidence)
    if where is not None:
        subject, what = where
        yield Trouble(
            f"{what}; expected finite numbers",
            subject,
            "this is the first place in the order of the forward pass: look at the std of its weights and of what it "
            "reads, or use --dtype float32",
            "init.std",
        )


def _first(evidence: Evidence) -> tuple[str, str] | None:
    """Find the first place that isn't finite, in the order in which a forward pass meets them."""
    measured = evidence.measured
    for parameter in measured.parameters:
        if parameter.not_finite:
            return parameter.name, f"{parameter.name} has {parameter.not_finite} entries that are inf or nan"
    if not math.isfinite(measured.residual.embedding_variance) and measured.residual.branches:
        return "embedding", f"the embedding's variance is {measured.residual.embedding_variance}"
    for branch in measured.residual.branches:
        if not math.isfinite(branch.branch_variance):
            return branch.name, f"the variance of branch {branch.index}, {branch.name}, is {branch.branch_variance}"
        if not math.isfinite(branch.stream_variance):
            return branch.name, f"the stream's variance after {branch.name} is {branch.stream_variance}"
    if not math.isfinite(measured.logits.max_abs) and not evidence.predicted:
        return "logits", f"the largest |logit| is {measured.logits.max_abs}"
    if not math.isfinite(measured.loss.value):
        return "loss", f"the loss is {measured.loss.value}"
    return None


NOT_FINITE = Rule(
    id="NUM001",
    name="not-finite",
    severity="error",
    what="A weight, a branch, the stream, a logit or the loss is inf or nan.",
    why="One of them is enough: the first optimizer step makes every weight nan.",
    example="`--dtype float16` with a std that takes a branch beyond 65,504.",
    instead="A smaller std where it starts; bfloat16 or float32 where the range is the problem.",
    references=(),
    check=_not_finite,
    on_trained=True,
)
