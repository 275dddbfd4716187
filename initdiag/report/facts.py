"""The numbers of a run that every human renderer shows: one list, so that no two tables disagree.

A fact's `key` is its heading in docs/concepts.md, where it is defined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from initdiag.measure import Measurements
from initdiag.report.numbers import beside, layers, number, parameters
from initdiag.report.report import Run
from initdiag.report.summaries import (
    dead_tensors,
    expected_leak,
    future_leak,
    gradient_ratio,
    largest_activation,
    norm_output,
    order_effect,
    own_loss,
    reference_loss,
    router_share,
    token_information,
)
from initdiag.theory.loss import SURE

if TYPE_CHECKING:
    from initdiag.theory.spread import Spreads


def _predicted(fact: Fact, run: Run) -> float | None:
    """What theory expects of a number, where it foretold it."""
    prediction = run.expected.prediction
    value = fact.value(prediction.values) if prediction else math.nan
    return None if math.isnan(value) else value


@dataclass(frozen=True)
class Fact:
    """A number, its unit, and what it is expected to be.

    value: of what was measured, or predicted; nan where it was not, or could not be, known; a table leaves it out then,
    unless it is `always` shown. spread: the standard deviation over draws that theory expects. expected: what is
    expected where it isn't the predicted number (None: nothing is claimed). digits: significant ones; 0 for a count.
    """

    key: str
    unit: str
    value: Callable[[Measurements], float]
    meaning: str
    spread: Callable[[Spreads], float] | None = None
    expected: Callable[[Fact, Run], float | None] = _predicted
    digits: int = 4
    always: bool = False

    def measured(self, run: Run) -> float:
        return self.value(run.measured)


FACTS: tuple[Fact, ...] = (
    Fact(
        "loss",
        "nats",
        lambda of: of.loss.value,
        "cross-entropy on the given targets; expected is what the measured logit distribution explains",
        lambda of: of.loss,
        lambda _, run: run.expected.loss,
        digits=5,
        always=True,
    ),
    Fact(
        "loss, uniform targets",
        "nats",
        lambda of: of.loss.uniform_targets,
        "the same under uniform targets: mean log-sum-exp less mean logit",
        lambda of: of.uniform_targets,
        lambda _, run: run.expected.uniform_targets,
        digits=5,
        always=True,
    ),
    Fact(
        "excess over ln V",
        "nats",
        lambda of: of.loss.excess,
        "loss − ln V: what confidence in nothing costs",
        lambda of: of.loss,
        lambda _, run: run.expected.loss - run.measured.loss.uniform,
        always=True,
    ),
    Fact(
        "logit std",
        "logits",
        lambda of: of.logits.std,
        "over the vocabulary, averaged over positions; σ_head·√d_model, less where the norm's eps matters",
        lambda of: of.logit_std,
        lambda _, run: run.expected.logit_std,
        always=True,
    ),
    Fact(
        "self-logit",
        "logits",
        lambda of: of.logits.self_logit,
        "the input token's own logit above the mean of the others",
        lambda of: of.self_logit,
        always=True,
    ),
    Fact(
        "largest |logit|",
        "logits",
        lambda of: of.logits.max_abs,
        "over all positions and the whole vocabulary",
        always=True,
    ),
    Fact(
        "softmax entropy",
        "of ln V",
        lambda of: of.logits.entropy_ratio,
        "mean entropy of the predicted distribution as a fraction of ln V",
        lambda of: of.entropy_ratio,
        always=True,
    ),
    Fact(
        "embedding variance",
        "variance",
        lambda of: of.residual.embedding_variance,
        "of the residual stream before the first branch",
        lambda of: of.embedding_variance,
    ),
    Fact(
        "final stream variance",
        "variance",
        lambda of: of.residual.branches[-1].stream_variance if of.residual.branches else math.nan,
        "of the residual stream after the last branch",
        lambda of: of.streams[-1],
    ),
    Fact(
        "Σ branch variance",
        "variance",
        lambda of: of.residual.branch_variance_sum if of.residual.branches else math.nan,
        "sum of what all branches add to the stream",
        lambda of: of.branch_variance_sum,
    ),
    Fact(
        "scaling ratio",
        "ratio",
        lambda of: of.residual.scaling_ratio,
        "Σ branch variance over one unscaled branch: 1/√(2N) promises 1, no scaling gives 2N",
        lambda of: of.scaling_ratio,
        lambda _, run: run.expected.scaling_ratio,
    ),
    Fact(
        "attn entropy, min",
        "of ln keys",
        lambda of: min((layer.entropy_ratio for layer in of.attention), default=math.nan),
        "entropy of the attention weights as a fraction of ln(visible keys), in the layer where it is least",
        lambda of: max(of.attention_entropy),
    ),
    Fact(
        "attn-logit std, max",
        "logits",
        lambda of: max((layer.logit_std for layer in of.attention), default=math.nan),
        "std of the attention logits over visible keys, in the layer where it is largest",
        lambda of: max(of.attention_std),
    ),
    Fact(
        "token information",
        "of variance",
        token_information,
        "share of the variance of the final stream that differs between sequences; 0: all tokens look alike",
    ),
    Fact(
        "order effect",
        "of output",
        order_effect,
        "relative change of the first attention's output at the last position when earlier tokens are permuted",
    ),
    Fact(
        "future leak",
        "of logit std",
        future_leak,
        "largest change of the logits of earlier positions when later tokens change; expected 0 where causal",
        expected=lambda _, run: expected_leak(run.measured),
    ),
    Fact(
        "norm output RMS, worst",
        "RMS",
        norm_output,
        "of what branches and head read through a norm, the one furthest from 1",
        expected=lambda fact, run: _predicted(fact, run) or (None if math.isnan(norm_output(run.measured)) else 1.0),
    ),
    Fact(
        "largest |activation|",
        "activation",
        largest_activation,
        "of the forward, masks left out: float16 ends at 65504",
    ),
    Fact(
        "own loss",
        "nats",
        own_loss,
        "that the model returns for labels; expected is the cross-entropy of its own logits with the next token",
        expected=lambda _, run: reference_loss(run.measured),
        digits=5,
    ),
    Fact(
        "router share, max",
        "of assignments",
        router_share,
        "that went to one expert of a router, in the router where it is largest; E experts alike give 1/E",
    ),
    Fact(
        "gradient ratio per layer",
        "ratio",
        gradient_ratio,
        "of the gradient norm before a layer to that after it, geometric mean over layers (--backward)",
    ),
    Fact(
        "dead parameters",
        "tensors",
        dead_tensors,
        "without any gradient, at step zero and after a few small steps on a copy (--backward)",
        expected=lambda _, run: 0.0 if run.measured.gradients else None,
        digits=0,
    ),
)


BY_LOGITS = ("loss", "excess over ln V")  # expected of the measured logits, ± a part of the allowance


def shown(runs: Iterable[Run]) -> tuple[Fact, ...]:
    """Return the facts that a table of these runs shows: what was measured in any of them."""
    runs = tuple(runs)
    return tuple(fact for fact in FACTS if fact.always or not all(math.isnan(fact.measured(run)) for run in runs))


def fact_cells(run: Run) -> list[tuple[str, str, str, str]]:
    """Return a row for each fact: its name, what was measured, what was expected, and the unit."""
    return [
        (fact.key, number(fact.measured(run), fact.digits), expectation(fact, run), fact.unit) for fact in shown([run])
    ]


def expectation(fact: Fact, run: Run) -> str:
    """Return what a number is expected to be ± one standard deviation over draws."""
    expected = fact.expected(fact, run)
    std = run.expected.allowance / SURE if fact.key in BY_LOGITS else spread_of(fact, run)
    return number(expected, fact.digits) if expected is None or math.isnan(std) else beside(expected, std)


def spread_of(fact: Fact, run: Run) -> float:
    """Return the standard deviation that theory expects of a number; nan where it doesn't say."""
    prediction = run.expected.prediction
    return fact.spread(prediction.spreads) if prediction and fact.spread else math.nan


def size(run: Run) -> str:
    """Return the size of the model in words."""
    wiring, shape = run.measured.wiring, run.subject.architecture
    n_layers, d_model = (shape.n_layers, shape.d_model) if shape else (wiring.n_layers, wiring.d_model)
    said = [layers(n_layers)] if n_layers else []  # without a stream nobody knows
    said += [f"d_model {d_model:,}"] if d_model else []
    said += [f"vocabulary {run.measured.loss.vocab_size:,}", parameters(run.subject.plan.numel)]
    return ", ".join(said)
