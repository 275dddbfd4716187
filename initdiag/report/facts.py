"""The numbers of a run that every human renderer shows: one list, so that no two tables disagree.

A fact's `key` is its heading in docs/concepts.md, where it is defined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from initdiag.report.numbers import layers, number, parameters
from initdiag.report.report import Run


@dataclass(frozen=True)
class Fact:
    """A number, its unit, and what it is expected to be (None: nothing is claimed)."""

    key: str
    unit: str
    measured: Callable[[Run], float]
    expected: Callable[[Run], float | None]
    meaning: str
    digits: int = 4


def _nothing(_: Run) -> None:
    return None


FACTS: tuple[Fact, ...] = (
    Fact(
        "loss",
        "nats",
        lambda run: run.measured.loss.value,
        lambda run: run.expected.loss,
        "cross-entropy on the given targets; expected is what the measured logit distribution explains",
        digits=5,
    ),
    Fact(
        "loss, uniform targets",
        "nats",
        lambda run: run.measured.loss.uniform_targets,
        lambda run: run.expected.uniform_targets,
        "the same under uniform targets: mean log-sum-exp less mean logit",
        digits=5,
    ),
    Fact(
        "excess over ln V",
        "nats",
        lambda run: run.measured.loss.excess,
        lambda run: run.expected.loss - run.measured.loss.uniform,
        "loss − ln V: what confidence in nothing costs",
    ),
    Fact(
        "logit std",
        "logits",
        lambda run: run.measured.logits.std,
        lambda run: run.expected.logit_std,
        "over the vocabulary, averaged over positions; expected is σ_head·√d_model, less where the norm's eps matters",
    ),
    Fact(
        "self-logit",
        "logits",
        lambda run: run.measured.logits.self_logit,
        _nothing,
        "the input token's own logit above the mean of the others",
    ),
    Fact(
        "largest |logit|",
        "logits",
        lambda run: run.measured.logits.max_abs,
        _nothing,
        "over all positions and the whole vocabulary",
    ),
    Fact(
        "softmax entropy",
        "of ln V",
        lambda run: run.measured.logits.entropy_ratio,
        _nothing,
        "mean entropy of the predicted distribution as a fraction of ln V",
    ),
    Fact(
        "embedding variance",
        "variance",
        lambda run: run.measured.residual.embedding_variance,
        _nothing,
        "of the residual stream before the first branch",
    ),
    Fact(
        "final stream variance",
        "variance",
        lambda run: run.measured.residual.branches[-1].stream_variance if run.measured.residual.branches else math.nan,
        _nothing,
        "of the residual stream after the last branch",
    ),
    Fact(
        "Σ branch variance",
        "variance",
        lambda run: run.measured.residual.branch_variance_sum,
        _nothing,
        "sum of what all branches add to the stream",
    ),
    Fact(
        "scaling ratio",
        "ratio",
        lambda run: run.measured.residual.scaling_ratio,
        lambda run: run.expected.scaling_ratio,
        "Σ branch variance over one unscaled branch: 1/√(2N) promises 1, no scaling gives 2N",
    ),
    Fact(
        "attn entropy, min",
        "of ln keys",
        lambda run: min((layer.entropy_ratio for layer in run.measured.attention), default=math.nan),
        _nothing,
        "entropy of the attention weights as a fraction of ln(visible keys), in the layer where it is least",
    ),
    Fact(
        "attn-logit std, max",
        "logits",
        lambda run: max((layer.logit_std for layer in run.measured.attention), default=math.nan),
        _nothing,
        "std of the attention logits over visible keys, in the layer where it is largest",
    ),
)


def expectation(fact: Fact, run: Run) -> str:
    """Return what a number is expected to be, the loss with its allowance."""
    expected = number(fact.expected(run), fact.digits)
    return f"{expected} ± {number(run.expected.allowance, 3)}" if fact.key == "loss" else expected


def size(run: Run) -> str:
    """Return the size of the model in words."""
    wiring, shape = run.measured.wiring, run.subject.architecture
    n_layers, d_model = (shape.n_layers, shape.d_model) if shape else (wiring.n_layers, wiring.d_model)
    sizes = f"{layers(n_layers)}, d_model {d_model:,}, vocabulary {run.measured.loss.vocab_size:,}"
    return f"{sizes}, {parameters(run.subject.plan.numel)}"


def branch_cells(run: Run) -> list[tuple[str, ...]]:
    """Return a row for each branch: index, name, variance, expected variance, stream variance and ratio."""
    return [
        (
            str(branch.index),
            branch.name,
            number(branch.branch_variance),
            number(run.expected.branch_variances.get(branch.projection or "")),
            number(branch.stream_variance),
            number(branch.ratio, 3),
        )
        for branch in run.measured.residual.branches
    ]
