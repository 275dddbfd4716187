"""The numbers of a run that every human renderer shows: one list, so that no two tables disagree.

A fact's `key` is its heading in docs/concepts.md, where it is defined.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from initdiag.report.numbers import layers, number, parameters
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


@dataclass(frozen=True)
class Fact:
    """A number, its unit, and what it is expected to be (None: nothing is claimed).

    measured: nan where it was not, or could not be measured; a table leaves it out then, unless it is `always` shown.
    digits: significant ones; 0 for a count.
    """

    key: str
    unit: str
    measured: Callable[[Run], float]
    expected: Callable[[Run], float | None]
    meaning: str
    digits: int = 4
    always: bool = False


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
        always=True,
    ),
    Fact(
        "loss, uniform targets",
        "nats",
        lambda run: run.measured.loss.uniform_targets,
        lambda run: run.expected.uniform_targets,
        "the same under uniform targets: mean log-sum-exp less mean logit",
        digits=5,
        always=True,
    ),
    Fact(
        "excess over ln V",
        "nats",
        lambda run: run.measured.loss.excess,
        lambda run: run.expected.loss - run.measured.loss.uniform,
        "loss − ln V: what confidence in nothing costs",
        always=True,
    ),
    Fact(
        "logit std",
        "logits",
        lambda run: run.measured.logits.std,
        lambda run: run.expected.logit_std,
        "over the vocabulary, averaged over positions; expected is σ_head·√d_model, less where the norm's eps matters",
        always=True,
    ),
    Fact(
        "self-logit",
        "logits",
        lambda run: run.measured.logits.self_logit,
        _nothing,
        "the input token's own logit above the mean of the others",
        always=True,
    ),
    Fact(
        "largest |logit|",
        "logits",
        lambda run: run.measured.logits.max_abs,
        _nothing,
        "over all positions and the whole vocabulary",
        always=True,
    ),
    Fact(
        "softmax entropy",
        "of ln V",
        lambda run: run.measured.logits.entropy_ratio,
        _nothing,
        "mean entropy of the predicted distribution as a fraction of ln V",
        always=True,
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
        lambda run: run.measured.residual.branch_variance_sum if run.measured.residual.branches else math.nan,
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
    Fact(
        "token information",
        "of variance",
        token_information,
        _nothing,
        "share of the variance of the final stream that differs between sequences; 0: all tokens look alike",
    ),
    Fact(
        "order effect",
        "of output",
        order_effect,
        _nothing,
        "relative change of the first attention's output at the last position when earlier tokens are permuted",
    ),
    Fact(
        "future leak",
        "of logit std",
        future_leak,
        expected_leak,
        "largest change of the logits of earlier positions when later tokens change; expected 0 where causal",
    ),
    Fact(
        "norm output RMS, worst",
        "RMS",
        norm_output,
        lambda run: None if math.isnan(norm_output(run)) else 1.0,
        "of what branches and head read through a norm, the one furthest from 1",
    ),
    Fact(
        "largest |activation|",
        "activation",
        largest_activation,
        _nothing,
        "of the forward, masks left out: float16 ends at 65504",
    ),
    Fact(
        "own loss",
        "nats",
        own_loss,
        reference_loss,
        "that the model returns for labels; expected is the cross-entropy of its own logits with the next token",
        digits=5,
    ),
    Fact(
        "router share, max",
        "of assignments",
        router_share,
        _nothing,
        "that went to one expert of a router, in the router where it is largest; E experts alike give 1/E",
    ),
    Fact(
        "gradient ratio per layer",
        "ratio",
        gradient_ratio,
        _nothing,
        "of the gradient norm before a layer to that after it, geometric mean over layers (--backward)",
    ),
    Fact(
        "dead parameters",
        "tensors",
        dead_tensors,
        lambda run: 0.0 if run.measured.gradients else None,
        "without any gradient, at step zero and after a few small steps on a copy (--backward)",
        digits=0,
    ),
)


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
    """Return what a number is expected to be, the loss with its allowance."""
    expected = number(fact.expected(run), fact.digits)
    return f"{expected} ± {number(run.expected.allowance, 3)}" if fact.key == "loss" else expected


def size(run: Run) -> str:
    """Return the size of the model in words."""
    wiring, shape = run.measured.wiring, run.subject.architecture
    n_layers, d_model = (shape.n_layers, shape.d_model) if shape else (wiring.n_layers, wiring.d_model)
    said = [layers(n_layers)] if n_layers else []  # without a stream nobody knows
    said += [f"d_model {d_model:,}"] if d_model else []
    said += [f"vocabulary {run.measured.loss.vocab_size:,}", parameters(run.subject.plan.numel)]
    return ", ".join(said)
