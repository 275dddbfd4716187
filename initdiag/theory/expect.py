"""What the numbers should be, in closed form, from the init plan. No weights, no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from initdiag.measure import PositionLogits
from initdiag.schemes import Constant, InitPlan, Role
from initdiag.subjects import Subject
from initdiag.theory.gaussian import mean_square
from initdiag.theory.loss import expected_loss, sampling_allowance
from initdiag.tokens import TokenBatch

TEXT_FLOOR = 0.05  # nats: real text has structure that random targets lack


@dataclass(frozen=True)
class Expectations:
    """loss and uniform_targets, in nats, are explained by the measured logits; chance may take the loss `allowance`
    away from it.

    logit_std: σ_head·√d_model, for a unit-RMS final state; None where no norm makes the state so.
    branch_variances: by residual projection, for MLPs that read a norm.
    scaling_ratio: what the plan promises: Σ over branches of (std / unscaled std)².
    """

    loss: float
    uniform_targets: float
    allowance: float
    logit_std: float | None
    branch_variances: Mapping[str, float]
    scaling_ratio: float


def expect(subject: Subject, batch: TokenBatch, positions: tuple[PositionLogits, ...]) -> Expectations:
    """Predict the numbers of a run.

    Args:
        positions: the measured logits of every position; only the expected loss depends on them.
    """
    random = batch.source == "random"
    allowance = sampling_allowance(
        subject.vocab_size, positions, batch.batch * batch.length if random else batch.distinct_targets
    )
    return Expectations(
        loss=expected_loss(subject.vocab_size, positions),
        uniform_targets=expected_loss(subject.vocab_size, positions, uniform_targets=True),
        allowance=allowance if random else allowance + TEXT_FLOOR,
        logit_std=logit_std(subject),
        branch_variances=mlp_branch_variances(subject),
        scaling_ratio=promised_scaling(subject.plan),
    )


def logit_std(subject: Subject) -> float | None:
    """Return σ_head·√d_model·gain: d_model products of a unit-RMS state with iid weights."""
    shape, plan = subject.architecture, subject.plan
    if not shape.final_norm and shape.placement == "pre":
        return None
    head = plan["token_embedding.weight" if shape.tied else "head.weight"].distribution
    last = "final_norm" if shape.final_norm else f"blocks.{shape.n_layers - 1}.mlp_norm"
    gain = _gain(plan, f"{last}.weight")
    return None if gain is None else head.std * gain * math.sqrt(shape.d_model)


def mlp_branch_variances(subject: Subject) -> dict[str, float]:
    """Return d_ff·σ_out²·E[φ(u)²] + σ_bias², u ~ N(0, d_model·σ_in²·gain² + σ_bias²), for every MLP.

    A gated MLP has E[φ(u)²]·E[w²] in place of E[φ(u)²], u from the gate and w from the input projection. The norm's
    eps is neglected.
    """
    shape, plan = subject.architecture, subject.plan
    variances: dict[str, float] = {}
    for layer in range(shape.n_layers):
        mlp = f"blocks.{layer}.mlp"
        read = "attention_norm" if shape.placement == "post" else "mlp_norm"  # the norm whose output the MLP reads
        gain = _gain(plan, f"blocks.{layer}.{read}.weight")
        if gain is None:
            continue
        into = _output_variance(plan, f"{mlp}.input", shape.d_model * gain**2)
        if shape.gated:
            gate = _output_variance(plan, f"{mlp}.gate", shape.d_model * gain**2)
            hidden = mean_square(shape.activation, math.sqrt(gate)) * into
        else:
            hidden = mean_square(shape.activation, math.sqrt(into))
        variances[f"{mlp}.out.weight"] = _output_variance(plan, f"{mlp}.out", shape.d_ff * hidden)
    return variances


def promised_scaling(plan: InitPlan) -> float:
    """Return Σ (std / unscaled std)² over the residual projections: 1 for 1/√(2N), 2N without scaling."""
    residual = plan.with_role(Role.ATTENTION_OUT, Role.MLP_OUT)
    return math.fsum(
        (entry.distribution.std / entry.unscaled_std) ** 2 if entry.unscaled_std else 0.0 for entry in residual
    )


def _output_variance(plan: InitPlan, linear: str, input_square_sum: float) -> float:
    """Return the variance of one output of a linear layer whose inputs' squares sum to `input_square_sum`."""
    bias = plan.by_name.get(f"{linear}.bias")
    weight = plan[f"{linear}.weight"].distribution
    return input_square_sum * weight.std**2 + (bias.distribution.std**2 if bias else 0.0)


def _gain(plan: InitPlan, name: str) -> float | None:
    scale = plan[name].distribution
    return scale.value if isinstance(scale, Constant) else None
