"""Rules on the loss."""

from __future__ import annotations

import math
from collections.abc import Iterator

from initdiag.rules.cures import head_places, round_down
from initdiag.rules.finding import Severity
from initdiag.rules.freshness import head_prior
from initdiag.rules.logits import (
    INSIDE,
    head_cure,
    hot_from,
    identity_cure,
    identity_cures,
    multiplier_declared,
    own_limit,
)
from initdiag.rules.rule import Evidence, Rule, Trouble
from initdiag.theory import log_sum_exp

LEAST_EXCESS = 0.001  # nats, of a gate of 0 or less, which nothing passes
FEWEST_LOGITS = 16  # a handful of logits is no distribution


def _judged(evidence: Evidence) -> bool:
    """A handful of logits is no distribution; and with a prior in the head, random tokens are not what it is for."""
    return evidence.measured.loss.vocab_size >= FEWEST_LOGITS and not head_prior(evidence)


def _above(evidence: Evidence) -> Iterator[Trouble]:
    loss, expected = evidence.measured.loss.value, evidence.expected
    if _judged(evidence) and loss - expected.loss > expected.allowance:
        yield Trouble(
            f"loss {loss:.3f} nats is above the {expected.loss:.3f} ± {expected.allowance:.3f} that its own logits "
            "explain",
            "loss",
            "look at the head for rows with a spread of their own (new tokens, padding rows, one shard drawn "
            "differently), and at the targets",
            "init",
        )


def _below(evidence: Evidence) -> Iterator[Trouble]:
    loss, expected = evidence.measured.loss.value, evidence.expected
    if _judged(evidence) and expected.loss - loss > expected.allowance:
        yield Trouble(
            f"loss {loss:.3f} nats is below the {expected.loss:.3f} ± {expected.allowance:.3f} that untrained logits "
            "can reach",
            "loss",
            "check that the weights are fresh (not a checkpoint), that the targets are the next tokens and that no "
            "position sees its own target",
            "tokens",
        )


def _excess(evidence: Evidence) -> Iterator[Trouble]:
    loss, gate, logits = evidence.measured.loss, evidence.gate, evidence.measured.logits
    if loss.excess > gate.max_excess and not head_prior(evidence):
        # is the input token's own logit what the loss is made of, or the spread of all of them?
        identity = logits.self_logit > max(log_sum_exp(loss.vocab_size, logits.std, -math.inf), 0.0)
        declared = identity and multiplier_declared(evidence)
        cause = f"the input token's own logit, {logits.self_logit:.1f}," if identity else f"logit std {logits.std:.3g}"
        yield Trouble(
            f"loss {loss.value:.3f} nats is {loss.excess:.3f} over ln V = {loss.uniform:.3f}; the gate allows "
            f"{gate.max_excess:g}; {cause} explains it",
            "loss",
            f"{_cure(evidence, identity, declared)}; if this start is meant, raise gate.max_excess",
            head_places(evidence.subject),
            Severity.WARNING if declared else Severity.ERROR,
            identity_cures(evidence, declared) if identity else (),
        )


def _cure(evidence: Evidence, identity: bool, declared: bool) -> str:
    """Name the finding that says what to do, or do so where there is none."""
    gate, logits = evidence.gate, evidence.measured.logits
    if not identity and logits.std > hot_from(gate):
        return "cure the head first (LOGIT001)"
    if not identity:  # s²/2 is to be no more than the gate allows
        factor = INSIDE * math.sqrt(2 * max(gate.max_excess, LEAST_EXCESS)) / logits.std
        return head_cure(evidence.subject, round_down(evidence.subject.head_std * factor), factor)
    if logits.self_logit > own_limit(evidence):
        return "cure the head first (LOGIT002)"
    return identity_cure(evidence, declared)


ABOVE = Rule(
    id="LOSS001",
    name="loss-above-expectation",
    severity="error",
    what="The cross-entropy is further above the loss that the logit distribution explains than chance can take it. "
    "That loss is ln((V−1)·exp(s²/2) + exp(m)) per position, with the measured logit std s and self-logit m; chance "
    "is 5·√(s²/n + (exp(s²)−1)/V) for n targets. Vocabularies below 16 are not judged.",
    why="An untrained head gives Gaussian logits. When the loss is higher than a Gaussian of the measured width "
    "allows, some logits come from somewhere else: rows of the head with another spread, or targets that the "
    "model is turned against.",
    example="A vocabulary grown from 50,257 to 50,304 rows, the new ones drawn at N(1) beside rows at N(0.02): they "
    "take all of the softmax.",
    instead="Draw new rows with the std of the old ones, e.g. `weight[old:].normal_(std=0.02)`.",
    references=("docs/concepts.md, expected loss",),
    check=_above,
)

BELOW = Rule(
    id="LOSS002",
    name="loss-below-expectation",
    severity="error",
    what="The cross-entropy is further below the loss that the logit distribution explains than chance can take it. "
    "Vocabularies below 16 are not judged.",
    why="Before the first step a model knows nothing about the targets. If it does, the weights are not fresh, the "
    "labels are the inputs, or the future leaks; the run would measure something else than it says.",
    example="A checkpoint loaded by a line that should have been removed: loss 6.1 where 10.98 is expected.",
    instead="Start from fresh weights; let the targets be the inputs moved by exactly one.",
    references=("docs/concepts.md, expected loss",),
    check=_below,
    on_trained=True,
)

EXCESS = Rule(
    id="LOSS003",
    name="excess-loss",
    severity="error; warning where a declared embedding multiplier explains it",
    what="The loss is more than gate.max_excess above ln V, the loss of a model that says nothing.",
    why="Every nat above ln V is confidence in nothing. The first steps are spent on unlearning it, with gradients "
    "that are large and all alike; the curve drops like a hockey stick and hides how the model really learns. "
    "An excess of 2 nats is a logit std of 2.",
    example="A head with std 1/√d_model has excess 0.5, PyTorch's own nn.Linear 1/6, GPT-2 small 0.154; a head tied "
    "to an N(1) embedding 470.",
    instead="Draw the head so that std·√d_model stays below about 1, e.g. `init: {scheme: gpt2, std: 0.02}`.",
    references=("docs/concepts.md, excess",),
    check=_excess,
)
