"""Closed forms for the reference Transformer: its logits, and the branches of its MLPs. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from initdiag.errors import PlanError
from initdiag.model.architecture import Architecture, of_branch
from initdiag.schemes import Constant, InitPlan
from initdiag.subjects import Subject
from initdiag.theory.gaussian import ACTIVATIONS, first_moment, mean_square, second_moment


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
    if shape.final_norm and shape.placement == "post":  # it reads what the norm of the last block gives
        between = _normed(subject, f"blocks.{shape.n_layers - 1}.mlp_norm", stream)
        stream = math.inf if between is None else between
    state = _normed(subject, last, stream)
    variance = math.nan if state is None else _output_variance(plan, head, shape.d_model * state)
    if math.isnan(variance):
        return None
    std, cap = math.sqrt(variance) * shape.logit_multiplier, shape.logit_softcap
    return std if cap is None else math.sqrt(second_moment(lambda u: cap * math.tanh(u / cap), std))


def mlp_branch_variances(
    subject: Subject, reads: Mapping[str, float] | None = None, least: float = math.inf
) -> dict[str, float]:
    """Return the branch variance of every MLP that reads a norm, or whose output a norm takes, by its last matrix.

    d_ff·σ_out²·E[φ(u)²] + σ_bias², u ~ N(0, d_model·σ_in²·state² + σ_bias²), where `state²` is the mean square of what
    the norm gives: gain²·v/(v + eps). A gated MLP has E[φ(u)²]·E[w²] in place of E[φ(u)²], u from the gate and w from
    the input projection. A norm after it makes it gain²·v/(v + eps) again. Multipliers of branches follow.

    Left out are layers of experts (how many share a token's weight depends on the router), MLPs that read the stream
    itself where the eps behind them counts, and whatever weights, biases or gains of more than one kind would decide
    (a matrix or bias that is a constant but not 0, a gain that is drawn).

    Args:
        reads: the variance v of the stream that each MLP's branch begins with, by the MLP's last matrix; eps is
            neglected where it isn't given.
        least: the variance of the embedding, which no token's stream falls below.
    """
    shape, variances = reference(subject), {}
    for layer in range(shape.n_layers):
        last = f"blocks.{layer}.mlp.out.weight"
        given = _branch(subject, layer, (reads or {}).get(last, math.inf))
        if given is None:
            continue
        # without a norm before it, an MLP reads streams of many sizes, of which only the mean is known
        lowest = _branch(subject, layer, least) if shape.placement == "reordered" else given
        if lowest is not None:
            least += lowest
            if lowest >= ALIKE * given:
                variances[last] = given
    return variances


def _branch(subject: Subject, layer: int, stream: float) -> float | None:
    """Return the branch variance of the MLP of a layer, for a stream of that variance; None where it isn't known."""
    shape = reference(subject)
    state = _read(subject, layer, stream)
    if shape.has_experts(layer) or state is None:
        return None
    branch = _mlp(subject, f"blocks.{layer}.mlp", state)
    if branch is not None and shape.normed_after:
        branch = _normed(subject, f"blocks.{layer}.mlp_post_norm", branch)
    gain = _gain(subject.plan, f"blocks.{layer}.mlp_gain")
    if branch is None or gain is None:
        return None
    return branch * (gain * of_branch(shape.residual_multiplier, 2 * layer + 2)) ** 2


def reference(subject: Subject) -> Architecture:
    """The architecture of the reference Transformer; of other modules none is known."""
    if subject.architecture is None:
        raise PlanError(f"{subject.name} is a module: its branches have no closed form")
    return subject.architecture


ALIKE = 0.95  # of the largest: what one draw of the weights is off by as well
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
    gate = _output_variance(plan, f"{mlp}.gate", shape.d_model * state) if shape.gated else 0.0
    if math.isnan(into) or math.isnan(gate):
        return None
    hidden = _hidden(shape, math.sqrt(gate), math.sqrt(into))
    if shape.inner_norm:
        mean = _hidden_mean(shape, math.sqrt(gate), math.sqrt(into)) if shape.norm == "layernorm" else 0.0
        normed = _normed(subject, f"{mlp}.inner_norm", hidden - mean * mean)  # LayerNorm takes the mean away
        if normed is None:
            return None
        hidden = normed
    variance = _output_variance(plan, f"{mlp}.out", shape.d_ff * hidden)
    return None if math.isnan(variance) else variance


def _hidden(shape: Architecture, gate: float, into: float) -> float:
    """Return E[h²] of a hidden unit, from the std of its gate and of its input."""
    limit = shape.gate_limit
    if not shape.gated:
        return mean_square(shape.activation, into)
    if limit is None:
        return mean_square(shape.activation, gate) * into * into
    clamped = second_moment(lambda w: max(-limit, min(w, limit)), into)
    return second_moment(_cut(shape), gate) * (clamped + 1)  # E[(w + 1)²] = E[w²] + 1, w symmetric


def _hidden_mean(shape: Architecture, gate: float, into: float) -> float:
    """Return E[h] of a hidden unit; that of its input is 0, and with a limit 1 is added to it."""
    if not shape.gated:
        return first_moment(ACTIVATIONS[shape.activation], into)
    return 0.0 if shape.gate_limit is None else first_moment(_cut(shape), gate)


def _cut(shape: Architecture) -> Callable[[float], float]:
    """Return the activation of a gate, cut at the limit where there is one."""
    act, limit = ACTIVATIONS[shape.activation], math.inf if shape.gate_limit is None else shape.gate_limit
    return lambda u: act(min(u, limit))


def _output_variance(plan: InitPlan, linear: str, input_square_sum: float) -> float:
    """Return the variance of one output of a linear layer whose inputs' squares sum to `input_square_sum`.

    nan where weight or bias is a constant other than 0: then outputs have a mean in common.
    """
    bias = plan.by_name.get(f"{linear}.bias")
    drawn = [plan[f"{linear}.weight"].distribution, *([bias.distribution] if bias else [])]
    if any(isinstance(one, Constant) and one.value != 0 for one in drawn):
        return math.nan
    return input_square_sum * drawn[0].std ** 2 + sum(one.std**2 for one in drawn[1:])


def _gain(plan: InitPlan, name: str) -> float | None:
    """Return a planned learned multiplier; 1 where there is none, None where it isn't planned constant."""
    entry = plan.by_name.get(f"{name}.weight")
    if entry is None:
        return 1.0
    return entry.distribution.value if isinstance(entry.distribution, Constant) else None


def _normed(subject: Subject, norm: str, variance: float) -> float | None:
    """Return the mean square of a norm's output, gain²·v/(v + eps) + σ_bias².

    None where its gain is not planned constant, or its bias is a constant other than 0.
    """
    shape = reference(subject)
    gain, bias = _gain(subject.plan, norm), subject.plan.by_name.get(f"{norm}.bias")
    shift = bias.distribution if bias else Constant(0.0)
    if gain is None or math.isnan(variance) or (isinstance(shift, Constant) and shift.value != 0):
        return None
    if shape.norm_scale == "one_plus":
        gain += 1
    return gain * gain * (1.0 if math.isinf(variance) else variance / (variance + shape.eps)) + shift.std**2
