"""Rules on the loss that a model returns itself: which tokens it compares, and how it is reduced."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from initdiag.rules.finding import Severity
from initdiag.rules.rule import Evidence, Rule, Trouble

if TYPE_CHECKING:
    from initdiag.measure import LabelMeasure

BELOW = 0.99  # terms that are added to a cross-entropy are not negative; label smoothing takes no more than this
ABOVE = 2.5  # one head for the token after next adds its full ln V at most, and balance losses 0.01 a layer

FACTORS = {
    "sum": "summed over all tokens",
    "sum over positions": "summed over positions",
    "sum over sequences": "summed over sequences",
    "mean over all positions": "divided by B·T, although fewer positions have a target",
}


def _causal(evidence: Evidence) -> bool:
    probe, subject = evidence.measured.probe, evidence.subject
    for known in (probe.causal if probe else None, subject.causal, subject.declared.causal):
        if known is not None:
            return known
    return True


def _shifts_itself(evidence: Evidence) -> bool:
    """Whether the class follows the convention of transformers: labels are the ids, and the model shifts them."""
    module = evidence.subject.module
    return module is not None and any(base.__module__.startswith("transformers.") for base in type(module).__mro__)


def _misaligned(evidence: Evidence) -> Iterator[Trouble]:
    labels = evidence.measured.labels
    if labels is None or labels.shift in (None, 1) or not _causal(evidence):
        return
    found = f"the loss {labels.value:.4f} compares the logits at t with the token at t"
    told = f"{labels.reference:.4f}, the mean against the token at t+1"
    if labels.shift == 2:
        yield Trouble(
            f"{found}+2; expected {told}",
            "loss",
            "shift once: "
            + (
                f"'{labels.argument}' was given the next tokens already, so F.cross_entropy(logits.flatten(0, 1), "
                f"{labels.argument}.flatten()); a module that shifts itself takes the ids, and is right"
                if labels.shifted
                else f"F.cross_entropy(logits[:, :-1].flatten(0, 1), {labels.argument}[:, 1:].flatten())"
            ),
            "tokens",
        )
    elif labels.shifted or _shifts_itself(evidence):
        right = "logits" if labels.shifted else "logits[:, :-1]"
        wanted = labels.argument if labels.shifted else f"{labels.argument}[:, 1:]"
        yield Trouble(
            f"{found}, its own input; expected {told}",
            "loss",
            f"compare with the next token: F.cross_entropy({right}.flatten(0, 1), {wanted}.flatten())",
            "tokens",
        )
    else:
        yield Trouble(
            f"{found}, where '{labels.argument}' held the input ids; expected {told}, if the module is to shift them",
            "loss",
            f"two readings: the module wants '{labels.argument}' shifted by its caller, then all is well if the data "
            f"loader does that; or it should shift itself: F.cross_entropy(logits[:, :-1].flatten(0, 1), "
            f"{labels.argument}[:, 1:].flatten())",
            "tokens",
            Severity.WARNING,
        )


def _reduction(evidence: Evidence) -> Iterator[Trouble]:
    labels = evidence.measured.labels
    if labels is None or labels.reduction == "mean":
        return
    if labels.reduction in FACTORS:
        yield Trouble(
            f"the loss {labels.value:.4f} is {FACTORS[labels.reduction]}, {labels.value / labels.reference:.4g} times "
            f"the mean cross-entropy {labels.reference:.4f}",
            "loss",
            'F.cross_entropy(logits, targets) with its default reduction="mean"; else the learning rate and the '
            "clipping of gradients depend on the batch's shape",
            "tokens",
        )
    elif not math.isfinite(labels.value) and math.isfinite(labels.reference):
        yield Trouble(
            f"the model returned {labels.value} as its loss; its own logits give {labels.reference:.4f}",
            "loss",
            "look at the loss function: all targets ignored, a logarithm of 0, or a sum that overflows",
            "tokens",
        )
    elif math.isfinite(labels.reference):
        yield _unexplained(labels)


def _unexplained(labels: LabelMeasure) -> Trouble:
    more = labels.value - labels.reference
    usual = BELOW * labels.reference <= labels.value <= ABOVE * labels.reference
    return Trouble(
        f"the loss {labels.value:.4f} is {abs(more):.4g} {'above' if more > 0 else 'below'} {labels.reference:.4f}, "
        "the mean cross-entropy of the model's own logits; no shift or reduction explains it",
        "loss",
        "an auxiliary loss does that (router balance, z-loss, label smoothing, heads for later tokens), and ignored "
        "targets do; this tool judges the cross-entropy of the logits"
        if usual
        else "auxiliary losses are small beside the cross-entropy, and positive: look for a factor, such as a division "
        "by accumulation steps, a weight per token, or logits that are scaled after the loss was taken",
        "tokens",
        Severity.INFO if usual else Severity.WARNING,
    )


MISALIGNED = Rule(
    id="LABEL001",
    name="misaligned-labels",
    severity="error; warning where a module of one's own may want labels that its caller shifts",
    what="The loss that the model returns is the cross-entropy of its own logits at t against the token at t, or at "
    "t+2, and not against the token at t+1. Cross-entropies at the three shifts differ by 1e-3 even in an "
    "untrained model, and rounding is below 1e-5, so they can be told apart. Bidirectional models predict tokens in "
    "place and are not judged.",
    why="At shift 0 the model learns to copy its input and the loss falls to zero; at shift 2, where data loader and "
    "model both shift, it learns to skip a token. All of them start at ln V.",
    example="A loader that yields `(ids[:-1], ids[1:])` and a Hugging Face model, which shifts `labels` once more.",
    instead="Shift once: targets[t] = ids[t+1].",
    references=("transformers: ForCausalLMLoss",),
    check=_misaligned,
    on_trained=True,
)

REDUCTION = Rule(
    id="LABEL002",
    name="loss-reduction",
    severity="error; warning or info where nothing explains the difference",
    what="The loss that the model returns is a sum, or a mean over other counts than the positions that have a target. "
    "A loss that no shift and no reduction explains is reported with its difference: info up to 2.5 times the "
    "cross-entropy and no more than 1 % below it, else a warning.",
    why="A sum makes gradients as large as the batch: the learning rate, the clipping threshold and the logged loss "
    "mean something else on every batch shape.",
    example='`F.cross_entropy(logits, targets, reduction="sum")`: 3,548 for a mean of 6.93 over 512 tokens.',
    instead="`F.cross_entropy(logits, targets)`; auxiliary losses are added to the mean.",
    references=("torch.nn.functional.cross_entropy",),
    check=_reduction,
    on_trained=True,
)
