"""Closed forms for the reference Transformer: its logits, and the branches of its MLPs. No torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

from initdiag.errors import PlanError
from initdiag.model.architecture import Architecture, of_branch
from initdiag.schemes import Constant, InitPlan
from initdiag.subjects import Subject
from initdiag.theory.gaussian import ACTIVATIONS, mean_square, second_moment


def logit_std(subject: Subject, stream: float = math.inf) -> float | None:
    """Return σ_head·√d_model times the RMS of the final state, as the forward pass multiplies and caps it.

    d_model products of iid weights with a normed state; a bias adds its variance. None where no norm makes the state.

    Args:
        stream: the variance that the last norm reads; inf neglects its eps.
    """
    shape, plan = reference(subject), subject.plan
    if not shape.final_norm and shape.placement != "post":
        return None
    head = "token_embedding" if shape.tied else "head"
    last = "final_norm" if shape.final_norm else f"blocks.{shape.n_layers - 1}.mlp_norm"
    state = _normed(subject, last, math.inf if shape.final_norm and shape.placement == "post" else stream)
    if state is None:
        return None
    std = math.sqrt(_output_variance(plan, head, shape.d_model * state)) * shape.logit_multiplier
    cap = shape.logit_softcap
    return std if cap is None else math.sqrt(second_moment(lambda u: cap * math.tanh(u / cap), std))


def mlp_branch_variances(subject: Subject, reads: Mapping[str, float] | None = None) -> dict[str, float]:
    """Return the branch variance of every MLP that reads a norm, or whose output a norm takes, by its last matrix.

    d_ff·σ_out²·E[φ(u)²] + σ_bias², u ~ N(0, d_model·σ_in²·state² + σ_bias²), where `state²` is the mean square of what
    the norm gives: gain²·v/(v + eps). A gated MLP has E[φ(u)²]·E[w²] in place of E[φ(u)²], u from the gate and w from
    the input projection. A norm after it makes it gain²·v/(v + eps) again. Multipliers of branches follow. Layers of
    experts are left out: how many share a token's weight depends on the router.

    Args:
        reads: the variance v of the stream that each MLP's branch begins with, by the MLP's last matrix; eps is
            neglected where it isn't given.
    """
    shape = reference(subject)
    variances: dict[str, float] = {}
    for layer in range(shape.n_layers):
        last = f"blocks.{layer}.mlp.out.weight"
        stream = (reads or {}).get(last, math.inf)
        state = _read(subject, layer, stream)
        if shape.has_experts(layer) or state is None:
            continue
        branch = _mlp(subject, f"blocks.{layer}.mlp", state)
        after = f"blocks.{layer}.mlp_post_norm"
        given = branch if branch is None or not shape.normed_after else _normed(subject, after, branch)
        gain = _gain(subject.plan, f"blocks.{layer}.mlp_gain")
        if given is not None and gain is not None:
            variances[last] = given * (gain * of_branch(shape.residual_multiplier, 2 * layer + 2)) ** 2
    return variances


def reference(subject: Subject) -> Architecture:
    """The architecture of the reference Transformer; of other modules none is known."""
    if subject.architecture is None:
        raise PlanError(f"{subject.name} is a module: its branches have no closed form")
    return subject.architecture


# the norm whose output the MLP of a block reads; in a reordered block it reads the stream itself
NORM_BEFORE = {"post": "attention_norm", "parallel_shared": "attention_norm"}


def _read(subject: Subject, layer: int, stream: float) -> float | None:
    """Return the mean square of what an MLP reads; None where nothing is known of it."""
    placement = reference(subject).placement
    if placement == "none":
        return None
    if placement == "reordered":  # a norm follows, so that its size matters only beside eps
        return stream if math.isfinite(stream) else 1.0
    return _normed(subject, f"blocks.{layer}.{NORM_BEFORE.get(placement, 'mlp_norm')}", stream)


def _mlp(subject: Subject, mlp: str, state: float) -> float | None:
    shape, plan = reference(subject), subject.plan
    into = _output_variance(plan, f"{mlp}.input", shape.d_model * state)
    if shape.gated:
        gate, limit = math.sqrt(_output_variance(plan, f"{mlp}.gate", shape.d_model * state)), shape.gate_limit
        if limit is None:
            hidden = mean_square(shape.activation, gate) * into
        else:
            act = ACTIVATIONS[shape.activation]
            clamped = second_moment(lambda w: max(-limit, min(w, limit)), math.sqrt(into))
            hidden = second_moment(lambda u: act(min(u, limit)), gate) * (clamped + 1)  # E[(w + 1)²], w symmetric
    else:
        hidden = mean_square(shape.activation, math.sqrt(into))
    if shape.inner_norm:
        normed = _normed(subject, f"{mlp}.inner_norm", hidden)
        if normed is None:
            return None
        hidden = normed
    return _output_variance(plan, f"{mlp}.out", shape.d_ff * hidden)


def _output_variance(plan: InitPlan, linear: str, input_square_sum: float) -> float:
    """Return the variance of one output of a linear layer whose inputs' squares sum to `input_square_sum`."""
    bias = plan.by_name.get(f"{linear}.bias")
    weight = plan[f"{linear}.weight"].distribution
    return input_square_sum * weight.std * weight.std + (bias.distribution.std * bias.distribution.std if bias else 0.0)


def _gain(plan: InitPlan, name: str) -> float | None:
    """Return a planned learned multiplier; 1 where there is none, None where it isn't planned constant."""
    entry = plan.by_name.get(f"{name}.weight")
    if entry is None:
        return 1.0
    return entry.distribution.value if isinstance(entry.distribution, Constant) else None


def _normed(subject: Subject, norm: str, variance: float) -> float | None:
    """Return the mean square of a norm's output, gain²·v/(v + eps), or None where its gain is not planned constant."""
    shape = reference(subject)
    gain = _gain(subject.plan, norm)
    if gain is None or math.isnan(variance):
        return None
    if shape.norm_scale == "one_plus":
        gain += 1
    return gain * gain * (1.0 if math.isinf(variance) else variance / (variance + shape.eps))
