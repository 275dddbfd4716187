"""Rules on the head."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from initdiag.rules.cures import all_drawn, head_drawn, head_places, logits_multiplied, round_down, written
from initdiag.rules.finding import Severity
from initdiag.rules.freshness import head_prior
from initdiag.rules.rule import Evidence, Rule, Trouble, as_python
from initdiag.subjects import Subject

if TYPE_CHECKING:
    from initdiag.config.schema import Gate

INSIDE = 0.9  # of a limit is where advice aims: a draw of a few thousand logits is off by a few per cent
WIDE_TABLE = 0.5  # std from which on logits times 1/√d_model are those of a usual head, of std 0.5 and more


def _hot(evidence: Evidence) -> Iterator[Trouble]:
    std, gate, subject = evidence.measured.logits.std, evidence.gate, evidence.subject
    if not math.isfinite(std) or std <= hot_from(gate) or head_prior(evidence):
        return
    failed = std > gate.max_logit_std
    frozen = math.sqrt(2 * math.log(evidence.measured.loss.vocab_size))
    state = (
        f"beyond √(2 ln V) = {frozen:.2f} one token takes all" if std > frozen else f"it costs {std * std / 2:.3g} nats"
    )
    wanted = INSIDE * gate.warn_logit_std * subject.head_std / std
    own = evidence.measured.logits.self_logit
    if own > own_limit(evidence) and not multiplier_declared(evidence):  # LOGIT002 wants as much
        wanted = min(wanted, _identity_std(evidence))
    right = round_down(wanted)
    yield Trouble(
        f"logit std {std:.3f}; expected at most {gate.warn_logit_std:g}"
        + (f", and more than {gate.max_logit_std:g} fails" if failed else "")
        + f"; {state}",
        subject.head,
        head_cure(subject, right, INSIDE * gate.warn_logit_std / std),
        head_places(subject),
        Severity.ERROR if failed else Severity.WARNING,
        written(
            head_drawn(subject, right),
            all_drawn(subject, right),
            logits_multiplied(subject, INSIDE * gate.warn_logit_std / std),
        ),
    )


def _predicts_input(evidence: Evidence) -> Iterator[Trouble]:
    subject, own, limit = evidence.subject, evidence.measured.logits.self_logit, own_limit(evidence)
    if own <= limit or not math.isfinite(own):
        return
    declared = multiplier_declared(evidence)
    tied = f"; the head is tied to an embedding of std {subject.head_std:.3g}" if evidence.measured.wiring.tied else ""
    yield Trouble(
        f"the model predicts its own input: the input token's logit is {own:.1f} above the others, expected at most "
        f"{limit:.1f} (ln V + {evidence.gate.max_self_logit:g}){tied}",
        subject.head,
        identity_cure(evidence, declared),
        head_places(subject),
        Severity.WARNING if declared else Severity.ERROR,
        identity_cures(evidence, declared),
    )


def hot_from(gate: Gate) -> float:
    """The logit std up to which there is no finding (LOGIT001)."""
    return min(gate.warn_logit_std, gate.max_logit_std)


def head_cure(subject: Subject, std: str, factor: float) -> str:
    """Say how logits become narrower: by a std of the head, or a factor of them all."""
    return (
        f"draw {subject.head} with a std of {std} (now {subject.head_std:.3g}): {_drawn(subject, std)}"
        + _or_all(subject, std)
        + _or_multiplied(subject, factor)
    )


def own_limit(evidence: Evidence) -> float:
    """Up to where the input token's own logit is no finding (LOGIT002)."""
    return evidence.measured.loss.uniform + evidence.gate.max_self_logit


def multiplier_declared(evidence: Evidence) -> bool:
    """Whether an embedding multiplier that the config declares explains the own logit."""
    return evidence.subject.declares_multiplier(evidence.measured.wiring.tied)


def _identity_std(evidence: Evidence) -> float:
    """The own logit goes with the table's std, or where branches are larger with its square; at ln V it costs ln 2."""
    return min(0.02, evidence.subject.head_std * evidence.measured.loss.uniform / evidence.measured.logits.self_logit)


def identity_cure(evidence: Evidence, declared: bool) -> str:
    """Say what makes the input token's own logit smaller; `declared`: an embedding multiplier explains it."""
    subject, own = evidence.subject, evidence.measured.logits.self_logit
    enough = evidence.measured.loss.uniform / own  # there it costs ln 2
    if declared:
        return (
            "known of tied heads behind an embedding multiplier or norm, and it shrinks with depth; to be rid of it, "
            + _untied(subject)
            + _or_multiplied(subject, enough)
        )
    std = round_down(_identity_std(evidence))
    head = subject.plan.by_name.get(subject.head)
    as_t5 = head is not None and subject.head_std >= WIDE_TABLE
    return f"draw the embedding with std {std} ({_drawn(subject, std)}) or {_untied(subject)}" + (
        _or_multiplied(subject, head.parameter.fan_in**-0.5, " (1/√d_model, as T5 does)") if head and as_t5 else ""
    )


def identity_cures(evidence: Evidence, declared: bool) -> tuple[str, ...]:
    """The same as lines of a config."""
    subject, own = evidence.subject, evidence.measured.logits.self_logit
    enough = evidence.measured.loss.uniform / own
    drawn = "" if declared else head_drawn(subject, round_down(_identity_std(evidence)))
    return written(drawn, "model.tied: false", logits_multiplied(subject, enough))


def _or_multiplied(subject: Subject, factor: float, why: str = "") -> str:
    if subject.architecture is None:
        return f"; or, in your model's code, multiply the logits by {round_down(factor)}{why}"
    key = logits_multiplied(subject, factor)
    return f"; or {key}{why}" if key else ""


def _drawn(subject: Subject, std: str) -> str:
    if subject.architecture is not None:
        return f"in the config, {head_drawn(subject, std)}"
    line = f", `nn.init.normal_({as_python(subject.head)}, std={std})`" if " " not in subject.head else ""
    return f"in its init function{line}"


def _or_all(subject: Subject, std: str) -> str:
    line = all_drawn(subject, std)
    return f"; or, for all matrices, {line}" if line else ""


def _untied(subject: Subject) -> str:
    where = "model.tied" if subject.architecture is not None else "of a Hugging Face config, tie_word_embeddings"
    return f"untie the head ({where}: false)"


HOT = Rule(
    id="LOGIT001",
    name="hot-logits",
    severity="warning above gate.warn_logit_std, error above gate.max_logit_std",
    what="The standard deviation of the logits over the vocabulary is too large.",
    why="A logit std of s costs s²/2 nats at once, since the softmax of wide logits is confident at random. Beyond "
    "√(2 ln V), about 4.6 for GPT-2's vocabulary, a single token takes all of the probability and nearly all "
    "gradients vanish.",
    example="An nn.Linear head redrawn with std 1 at d_model 256: logit std 16, loss 66 where ln V is 10.4.",
    instead="Head std at most about 1/√d_model; 0.02 up to d_model 2048; or a logit multiplier, as muP has it, whose "
    "base_width is then not to be wider than the model.",
    references=("docs/concepts.md, logit std",),
    check=_hot,
)

PREDICTS_INPUT = Rule(
    id="LOGIT002",
    name="head-predicts-input",
    severity="error; warning where a declared embedding multiplier explains it",
    what="The logit of the current input token is more than ln V + gate.max_self_logit above the other logits.",
    why="A tied head reads the final state with the very rows that were written into it. The input token's own logit "
    "is then ‖e‖²/std(stream): about d_model/std(stream) for an N(1) embedding. The model is certain that every "
    "token repeats, and the loss starts at about that number.",
    example="`model.head.weight = model.wte.weight` with PyTorch's default nn.Embedding, N(1): GPT-2 small starts at "
    "480 instead of 10.98.",
    instead="Draw the shared matrix with std 0.02 (GPT-2) or 1/√d_model; or tie the other way round, so that the "
    "embedding takes nn.Linear's weights; or scale the logits by 1/√d_model (T5, PaLM), in a config "
    "`model.logit_multiplier`.",
    references=("arXiv 1608.05859 (tying)", "arXiv 1910.10683 (T5: logits scaled when tied)"),
    check=_predicts_input,
)
