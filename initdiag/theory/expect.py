"""What the numbers of a run should be, from its init plan. No weights, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from initdiag.measure import Branch, Measurements, mean, total
from initdiag.schemes import Constant, InitPlan, Role
from initdiag.schemes.roles import RESIDUAL_PROJECTIONS
from initdiag.subjects import Subject
from initdiag.subjects.translated_plan import plan_of
from initdiag.theory.loss import expected_loss, sampling_allowance
from initdiag.theory.planned import UnlikeError, UnpredictableError
from initdiag.tokens import TokenBatch

if TYPE_CHECKING:
    from initdiag.theory.forward import Prediction

TEXT_FLOOR = 0.05  # nats: real text has structure that random targets lack


@dataclass(frozen=True)
class Expectations:
    """loss and uniform_targets, in nats, are explained by the measured logits; chance may take the loss `allowance`
    away from it.

    prediction: of every number of the forward, from the plan alone; None where there is none, and `unpredicted` says
    why. promised: the model that it should be, where somebody said so. logit_std: predicted, or of a module
    σ_head·√d_model times what the head was seen to read; None where no norm makes it so. scaling_ratio: what the plan
    promises: Σ over branches of (std / unscaled std)²; None where nobody promised anything, or all branches are 0.
    """

    loss: float
    uniform_targets: float
    allowance: float
    logit_std: float | None
    scaling_ratio: float | None
    prediction: Prediction | None = None
    unpredicted: str = ""
    promised: Subject | None = None

    @property
    def branches(self) -> dict[int, Branch]:
        """Predicted branches, by their index."""
        return {at.index: at for at in self.prediction.values.residual.branches} if self.prediction else {}


def expect(
    subject: Subject, batch: TokenBatch, measured: Measurements, promised: Subject | None = None
) -> Expectations:
    """Predict the numbers of a run.

    Args:
        measured: the loss is expected from the logits of every position; of a module without an architecture, the
            logits from what its head was seen to read; of one that is like one of ours, its plan from its weights.
        promised: the model that it should be, where somebody says so.

    Raises:
        UnpredictableError: theory has nothing to say about the model that is promised.
    """
    from initdiag.theory.forward import predict  # numpy, which not every command needs

    random, positions = batch.source == "random", measured.positions
    vocab_size = measured.loss.vocab_size
    allowance = sampling_allowance(
        vocab_size, positions, batch.batch * batch.length if random else batch.distinct_targets
    )
    prediction, unpredicted = None, ""
    try:
        model = promised or _like(subject, measured)
        prediction = predict(model, batch, backward=measured.gradients is not None)
        _require_branches(prediction.values, measured)
    except UnlikeError as error:
        prediction, unpredicted = None, str(error)
    except UnpredictableError as error:
        if promised:
            raise UnpredictableError(f"{promised.name}, which is expected: {error}") from error
        prediction, unpredicted = None, str(error)
    return Expectations(
        loss=expected_loss(vocab_size, positions),
        uniform_targets=expected_loss(vocab_size, positions, uniform_targets=True),
        allowance=allowance if random else allowance + TEXT_FLOOR,
        logit_std=prediction.values.logits.std if prediction else read_logit_std(subject, measured),
        scaling_ratio=promised_scaling(subject.plan) if subject.drawn_by_us else None,
        prediction=prediction,
        unpredicted=unpredicted,
        promised=promised,
    )


def _like(subject: Subject, measured: Measurements) -> Subject:
    """Return the reference Transformer that a module is like, with its own plan."""
    if subject.likeness is None:
        return subject
    moments = {one.name: (one.mean, one.std) for one in measured.parameters}
    plan = plan_of(subject.likeness, measured.plan, moments)
    if plan is None:
        raise UnpredictableError(
            f"the parameters of {subject.name} aren't those that its config promises: nothing is expected of it"
        )
    return replace(subject, architecture=subject.likeness, plan=plan)


def _require_branches(predicted: Measurements, measured: Measurements) -> None:
    """Check that the branches that were measured are those that were predicted."""
    expected = [at.kind for at in predicted.residual.branches]
    found = [at.kind for at in measured.residual.branches]
    if found != expected:
        raise UnlikeError(_difference(found, expected))


def _difference(found: Sequence[str], expected: Sequence[str]) -> str:
    first = next((k for k, pair in enumerate(zip(found, expected, strict=False)) if pair[0] != pair[1]), None)
    kind = f"branch {first + 1} is of kind {found[first]}, not {expected[first]}" if first is not None else ""
    if len(found) == len(expected):
        return kind
    return f"{len(found)} branches were found where {len(expected)} are expected" + (f"; {kind}" if kind else "")


def read_logit_std(subject: Subject, measured: Measurements) -> float | None:
    """Return σ_head·√d_model times the RMS of what the head was seen to read; None where it reads no norm."""
    read, head = measured.wiring.head_read, subject.plan.by_name.get(measured.wiring.head or "")
    if read is None or head is None or not read.normed:
        return None
    return head.distribution.std * math.sqrt(head.parameter.fan_in) * read.rms


def promised_scaling(plan: InitPlan) -> float | None:
    """Return Σ (std / unscaled std)² over the branches: 1 for 1/√(2N), 2N without scaling.

    None where all branches start at 0, by their matrices or by learned multipliers: there is nothing to scale. Several
    matrices that write one branch, such as experts and shared experts, count once, by their mean.
    """
    multipliers = [entry.distribution for entry in plan.with_role(Role.MULTIPLIER)]
    if multipliers and all(one == Constant(0.0) for one in multipliers):
        return None
    factors: dict[tuple[int | None, Role], list[float]] = {}
    for entry in plan.with_role(*RESIDUAL_PROJECTIONS):
        factor = entry.distribution.std / entry.unscaled_std if entry.unscaled_std else 0.0
        factors.setdefault((entry.parameter.layer, entry.parameter.role), []).append(factor * factor)
    return total(mean(squares) for squares in factors.values()) or None
