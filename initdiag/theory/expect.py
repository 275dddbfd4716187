"""What the numbers should be, in closed form, from the init plan. No weights, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from initdiag.errors import PlanError
from initdiag.measure import Measurements, total
from initdiag.schemes import Constant, InitPlan, Role
from initdiag.subjects import Subject
from initdiag.theory.gaussian import mean_square
from initdiag.theory.loss import expected_loss, sampling_allowance
from initdiag.tokens import TokenBatch

if TYPE_CHECKING:
    from initdiag.model import Architecture

TEXT_FLOOR = 0.05  # nats: real text has structure that random targets lack


@dataclass(frozen=True)
class Expectations:
    """loss and uniform_targets, in nats, are explained by the measured logits; chance may take the loss `allowance`
    away from it.

    logit_std: σ_head·√d_model for a normed final state; None where no norm makes it so.
    branch_variances: by residual projection, for MLPs that read a norm.
    scaling_ratio: what the plan promises: Σ over branches of (std / unscaled std)²; None where nobody
    promised anything.
    """

    loss: float
    uniform_targets: float
    allowance: float
    logit_std: float | None
    branch_variances: Mapping[str, float]
    scaling_ratio: float | None


def expect(subject: Subject, batch: TokenBatch, measured: Measurements) -> Expectations:
    """Predict the numbers of a run.

    Args:
        measured: the loss is expected from the logits of every position; and what a norm makes of its eps depends on
            the variance of the stream that it reads. Nothing else of it is looked at.
    """
    random, positions = batch.source == "random", measured.positions
    vocab_size, shape = measured.loss.vocab_size, subject.architecture
    allowance = sampling_allowance(
        vocab_size, positions, batch.batch * batch.length if random else batch.distinct_targets
    )
    streams = [measured.residual.embedding_variance, *(at.stream_variance for at in measured.residual.branches)]
    reads = {at.projection: streams[at.index - 1] for at in measured.residual.branches if at.projection}
    return Expectations(
        loss=expected_loss(vocab_size, positions),
        uniform_targets=expected_loss(vocab_size, positions, uniform_targets=True),
        allowance=allowance if random else allowance + TEXT_FLOOR,
        logit_std=logit_std(subject, streams[-1]) if shape else read_logit_std(subject, measured),
        branch_variances=mlp_branch_variances(subject, reads) if shape else {},
        scaling_ratio=promised_scaling(subject.plan) if subject.drawn_by_us else None,
    )


def read_logit_std(subject: Subject, measured: Measurements) -> float | None:
    """Return σ_head·√d_model times the RMS of what the head was seen to read; None where it reads no norm."""
    read, head = measured.wiring.head_read, subject.plan.by_name.get(measured.wiring.head or "")
    if read is None or head is None or not read.normed:
        return None
    return head.distribution.std * math.sqrt(head.parameter.fan_in) * read.rms


def logit_std(subject: Subject, stream: float = math.inf) -> float | None:
    """Return σ_head·√d_model times the RMS of the final state: d_model products of iid weights with a normed state.

    Args:
        stream: the variance that the last norm reads; inf neglects its eps.
    """
    shape, plan = _reference(subject), subject.plan
    if not shape.final_norm and shape.placement == "pre":
        return None
    head = plan["token_embedding.weight" if shape.tied else "head.weight"].distribution
    last = "final_norm" if shape.final_norm else f"blocks.{shape.n_layers - 1}.mlp_norm"
    state = _normed(subject, shape.eps, last, math.inf if shape.final_norm and shape.placement == "post" else stream)
    return None if state is None else head.std * math.sqrt(shape.d_model * state)


def mlp_branch_variances(subject: Subject, reads: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return d_ff·σ_out²·E[φ(u)²] + σ_bias², u ~ N(0, d_model·σ_in²·state² + σ_bias²), for every MLP.

    `state²` is the mean square of what the norm gives: gain²·v/(v + eps). A gated MLP has E[φ(u)²]·E[w²] in place of
    E[φ(u)²], u from the gate and w from the input projection.

    Args:
        reads: the variance v that the norm before each MLP reads, by the MLP's residual projection; eps is neglected
            where it isn't given.
    """
    shape, plan = _reference(subject), subject.plan
    variances: dict[str, float] = {}
    for layer in range(shape.n_layers):
        mlp = f"blocks.{layer}.mlp"
        norm = "attention_norm" if shape.placement == "post" else "mlp_norm"  # the norm whose output the MLP reads
        state = _normed(subject, shape.eps, f"blocks.{layer}.{norm}", (reads or {}).get(f"{mlp}.out.weight", math.inf))
        if state is None:
            continue
        into = _output_variance(plan, f"{mlp}.input", shape.d_model * state)
        if shape.gated:
            gate = _output_variance(plan, f"{mlp}.gate", shape.d_model * state)
            hidden = mean_square(shape.activation, math.sqrt(gate)) * into
        else:
            hidden = mean_square(shape.activation, math.sqrt(into))
        variances[f"{mlp}.out.weight"] = _output_variance(plan, f"{mlp}.out", shape.d_ff * hidden)
    return variances


def promised_scaling(plan: InitPlan) -> float:
    """Return Σ (std / unscaled std)² over the residual projections: 1 for 1/√(2N), 2N without scaling."""
    residual = plan.with_role(Role.ATTENTION_OUT, Role.MLP_OUT)
    factors = [entry.distribution.std / entry.unscaled_std if entry.unscaled_std else 0.0 for entry in residual]
    return total(factor * factor for factor in factors)


def _reference(subject: Subject) -> Architecture:
    """The architecture of the reference Transformer; of other modules none is known."""
    if subject.architecture is None:
        raise PlanError(f"{subject.name} is a module: its branches have no closed form")
    return subject.architecture


def _output_variance(plan: InitPlan, linear: str, input_square_sum: float) -> float:
    """Return the variance of one output of a linear layer whose inputs' squares sum to `input_square_sum`."""
    bias = plan.by_name.get(f"{linear}.bias")
    weight = plan[f"{linear}.weight"].distribution
    return input_square_sum * weight.std * weight.std + (bias.distribution.std * bias.distribution.std if bias else 0.0)


def _normed(subject: Subject, eps: float, norm: str, stream: float) -> float | None:
    """Return the mean square of a norm's output, gain²·v/(v + eps), or None where its gain is not planned constant."""
    scale = subject.plan[f"{norm}.weight"].distribution
    if not isinstance(scale, Constant) or math.isnan(stream):
        return None
    shrink = 1.0 if math.isinf(stream) else stream / (stream + eps)
    return scale.value * scale.value * shrink
