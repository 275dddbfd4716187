"""WIRE003: where a model first does something else than the architecture and the init that it should have."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from initdiag.measure import Measurements
from initdiag.rules.rule import Evidence, Rule, Trouble

if TYPE_CHECKING:
    from initdiag.model import Architecture
    from initdiag.theory.spread import Spreads

# What a number may be off by, besides six standard deviations of its spread over draws: the theory is one of wide
# models, and its errors at width 128 stay inside (benchmarks/theory.py). A wiring fault changes a variance twofold.
SIGMAS = 6.0
VARIANCE, RMS, ATTENTION = 0.25, 0.05, 0.25
NARROW, FEW = 8.0, 2.0  # over d_model, and over head_dim, more: what is left out falls like 1/width
BRANCHES = 2  # of a model without norms that are compared: its first block
APART = 0.2  # of the stream differs between sequences: below, what keys differ in is a small remainder, left to chance
SMALLEST = 1e-30  # of what float32 can still square
NEAR = math.log(1.15)  # a factor is taken for one that explains it when it is this close


@dataclass(frozen=True)
class _Step:
    """One number on the way of the stream: what it is, where, measured and expected, and its relative allowance."""

    kind: str
    where: str
    index: int
    measured: float
    expected: float
    spread: float
    floor: float

    @property
    def departs(self) -> bool:
        if not (math.isfinite(self.measured) and SMALLEST < self.expected < math.inf):
            return False  # a number that isn't finite has a rule of its own
        allowed = max(math.log1p(self.floor), SIGMAS * _finite(self.spread) / self.expected)
        return self.measured <= 0 or abs(math.log(self.measured / self.expected)) > allowed

    @property
    def factor(self) -> float:
        return self.measured / self.expected


def _departs(evidence: Evidence) -> Iterator[Trouble]:
    expected = evidence.expected
    if expected.prediction is None:
        if expected.promised is not None:
            yield Trouble(
                f"it isn't wired as {expected.promised.name} is: {expected.unpredicted}",
                "wiring",
                f"compare the forward with the architecture of {expected.promised.name}, or expect another config",
                "model",
            )
        return
    shape = _architecture(evidence)
    narrow = NARROW / shape.d_model if shape else 0.0
    few = FEW / shape.head_dim if shape else 0.0
    found = _steps(evidence.measured, expected.prediction.values, expected.prediction.spreads)
    if evidence.measured.wiring.placement == "none":  # without norms what one branch is off by goes into all after it
        found = tuple(step for step in found if step.kind == "embedding" or 0 < step.index <= BRANCHES)
    if evidence.measured.wiring.placement == "reordered":  # attention reads the stream as large as it is
        found = tuple(step for step in found if step.kind != "attention" or step.index == 1)
    steps = [
        replace(step, floor=step.floor + (narrow if step.kind != "reads" else 0.0) + few * (step.kind == "attention"))
        for step in found
    ]
    first = next((step for step in steps if step.departs), None)
    if first is None:
        yield from _otherwise_tied(evidence)
        return
    source = expected.promised.name if expected.promised else "its config and its weights"
    later = sum(step.departs for step in steps) - 1  # what follows from it
    why = _reason(first, shape) if shape else ""
    yield Trouble(
        f"{_named(first)} is {first.measured:.4g}, and {source} would have it at {first.expected:.4g}: "
        f"{first.factor:.3g} times{why}"
        + ("" if first is steps[0] else ". All before it is as expected")
        + (f"; {later} more after it depart as well" if later else ""),
        first.where,
        f"look at the code of {first.where}: {_look(first)}",
        "model",
    )


def _otherwise_tied(evidence: Evidence) -> Iterator[Trouble]:
    """A head may be tied, or not, without any other number showing it than its own."""
    promised, wiring = evidence.expected.promised, evidence.measured.wiring
    if promised is None or promised.architecture is None or promised.architecture.tied == wiring.tied:
        return
    words = ("tied to the embedding", "a matrix of its own")
    found, expected = words if wiring.tied else words[::-1]
    yield Trouble(
        f"the head, {wiring.head}, is {found}, and {promised.name} would have it {expected}",
        wiring.head or "the head",
        "tie it or not as the config says, or expect --set model.tied=" + ("true" if wiring.tied else "false"),
        "model",
    )


def _architecture(evidence: Evidence) -> Architecture | None:
    promised, subject = evidence.expected.promised, evidence.subject
    return (promised.architecture if promised else None) or subject.architecture or subject.likeness


def _steps(measured: Measurements, expected: Measurements, spreads: Spreads) -> tuple[_Step, ...]:
    """Return what can be compared, in the order in which a forward comes by."""
    return tuple(step for step in _all_steps(measured, expected, spreads) if not math.isnan(step.expected))


def _all_steps(measured: Measurements, expected: Measurements, spreads: Spreads) -> Iterator[_Step]:
    residual, other = measured.residual, expected.residual
    embedding = measured.wiring.embedding or "the embedding"
    yield _Step(
        "embedding",
        embedding,
        0,
        residual.embedding_variance,
        other.embedding_variance,
        spreads.embedding_variance,
        VARIANCE,
    )
    apart = math.nan  # share of the stream that differs between sequences
    attentions = iter(zip(measured.attention, expected.attention, spreads.attention_std, strict=False))
    for k, (at, foreseen) in enumerate(zip(residual.branches, other.branches, strict=True)):
        if at.reads and foreseen.reads and foreseen.reads[0].normed:
            yield _Step("reads", at.reads[0].reader, at.index, at.reads[0].rms, foreseen.reads[0].rms, 0.0, RMS)
        if at.kind == "attention" and (pair := next(attentions, None)):
            seen, wanted, spread = pair
            if not apart < APART:
                yield _Step("attention", seen.name, at.index, seen.logit_std, wanted.logit_std, spread, ATTENTION)
        apart = foreseen.token_share
        yield _Step(
            "branch", at.name, at.index, at.branch_variance, foreseen.branch_variance, spreads.branches[k], VARIANCE
        )
        yield _Step(
            "stream", at.name, at.index, at.stream_variance, foreseen.stream_variance, spreads.streams[k], VARIANCE
        )
    head = measured.wiring.head or "the head"
    if measured.wiring.head_read and expected.wiring.head_read and expected.wiring.head_read.normed:
        yield _Step("reads", head, 0, measured.wiring.head_read.rms, expected.wiring.head_read.rms, 0.0, RMS)
    yield _Step("logits", head, 0, measured.logits.std, expected.logits.std, spreads.logit_std, VARIANCE)


def _finite(spread: float) -> float:
    return spread if math.isfinite(spread) else 0.0


def _named(step: _Step) -> str:
    return {
        "embedding": f"the variance of the stream that {step.where} begins",
        "reads": f"the RMS of what {step.where} reads, behind a norm,",
        "attention": f"the std of the attention logits of {step.where}",
        "branch": f"the variance of branch {step.index}, {step.where},",
        "stream": f"the variance of the stream after branch {step.index}, {step.where},",
        "logits": f"the std of the logits that {step.where} gives",
    }[step.kind]


def _look(step: _Step) -> str:
    return {
        "embedding": "what multiplies, norms or is added to the embedding before the first block",
        "reads": "the norm that should stand before it, its gain (w or 1 + w) and its eps",
        "attention": "the division by √head_dim, norms on queries and keys, positions and caps",
        "branch": "its activation, its multiplier, and the std that its matrices were drawn with",
        "stream": "what is added to what: the stream itself, not what a norm gave, times what the config says",
        "logits": "the norm before it and what multiplies or caps the logits",
    }[step.kind]


def _reason(step: _Step, shape: Architecture) -> str:
    """Name what explains the factor, where something that one forgets does."""
    for factor, reason in _known(step, shape):
        if factor > 0 and factor != 1 and abs(math.log(step.factor / factor if step.factor > 0 else math.inf)) < NEAR:
            return f", {reason}"
    return ""


def _known(step: _Step, shape: Architecture) -> Iterator[tuple[float, str]]:
    if step.kind == "embedding":
        yield shape.embedding_multiplier**-2, f"as if it weren't multiplied by {shape.embedding_multiplier:.4g}"
        yield float(shape.d_model), "as if it were multiplied by √d_model"
    if step.kind == "reads":
        yield 2.0, "as if the norm multiplied by 1 + w, with w = 1"
    if step.kind == "attention":
        scale = shape.attention_scale
        yield 1 / scale, f"as if they weren't multiplied by {scale:.4g}, which is 1/√{1 / scale**2:.4g}"
        yield scale, f"as if they were multiplied by {scale:.4g} twice"
    if step.kind == "branch":
        from initdiag.model.architecture import of_branch  # whose models `initdiag rule` needs not

        times = of_branch(shape.residual_multiplier, step.index)
        yield times**-2, f"as if it weren't multiplied by {times:.4g}"
        yield 2.0 * shape.n_layers, f"as if its std weren't divided by √(2N) = {math.sqrt(2 * shape.n_layers):.4g}"
        yield 1 / (2.0 * shape.n_layers), f"as if its std were divided by √(2N) = {math.sqrt(2 * shape.n_layers):.4g}"
    if step.kind == "logits":
        yield 1 / shape.logit_multiplier, f"as if they weren't multiplied by {shape.logit_multiplier:.4g}"


DEPARTS = Rule(
    id="WIRE003",
    name="departs-from-theory",
    severity="error",
    what="The first number on the stream's way, from the embedding over every branch to the logits, that isn't what "
    "theory expects of the architecture and the weights: a variance or the std of attention logits by more than a "
    "quarter, the RMS behind a norm by more than a twentieth, and more than six standard deviations of what draws of "
    "the weights differ by. Asked of configs, of Hugging Face classes of known families, and of any module with "
    "`--expect CONFIG`.",
    why="A forgotten multiplier, a missing 1/√head_dim, a norm that multiplies by 1 + w where w starts at 1, a branch "
    "that is added to the wrong tensor: the loss starts at ln V in spite of them all, and nothing raises. The place "
    "where measured and expected part is where the code is wrong.",
    example="`F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)`: attention logits 8 times too wide "
    "at a head_dim of 64.",
    instead="What the finding says; where the model is meant to be another one, give --expect the config of that one.",
    references=("docs/theory.md",),
    check=_departs,
)
