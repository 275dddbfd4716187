"""One forward, observed: the tracer finds stream, attention and roles, and every number is taken while it is there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from initdiag.errors import RunError
from initdiag.measure.copies import find_copies
from initdiag.measure.gradients import BranchGradients, backward, mean_cross_entropy
from initdiag.measure.labels import explain_loss
from initdiag.measure.lens_values import GradientMeasure, LabelMeasure, ParameterMeasure, ProbeMeasure
from initdiag.measure.logits import measure_logits
from initdiag.measure.probes import LONGEST, probe
from initdiag.measure.revival import dead_parameters
from initdiag.measure.scaling import scaling_ratio, unscaled_stds
from initdiag.measure.sizes import sizes_seen
from initdiag.measure.values import Measurements, ResidualMeasure, Wiring
from initdiag.measure.watch import Watch
from initdiag.measure.weights import measure_buffers, measure_parameters
from initdiag.measure.wiring import wiring_of
from initdiag.schemes import AsFound, InitPlan, Parameter, PlannedParameter, Role
from initdiag.subjects import UNPLANNED, Subject
from initdiag.subjects.calling import Outcome, call, raise_explained
from initdiag.tokens import TokenBatch
from initdiag.trace import Tracer
from initdiag.weightless.lazy import is_lazy

STEPS = 3  # of SGD, after which a parameter without a gradient is dead: zero head and zero branches need two


@dataclass(frozen=True)
class Traced:
    """What one traced forward gave: logits (B, T, V), or states (B, T, d) and the way from them to logits."""

    watch: Watch
    tracer: Tracer
    wiring: Wiring
    outcome: Outcome | None
    states: Tensor | None
    starts: tuple[str, ...] = ()


def observe(subject: Subject, module: nn.Module, batch: TokenBatch, *, backward: bool = False) -> Measurements:
    """Run the module once on the batch and measure it; with `backward`, its gradients too.

    Modes, existing gradients and global state are the caller's business.
    """
    device = next(module.parameters()).device
    inputs = torch.tensor(batch.inputs, device=device)
    targets = torch.tensor(batch.targets, device=device)
    traced = _traced(subject, module, inputs, targets, backward)
    loss, logits, positions = _logits(subject, module, traced, inputs, targets)
    gradients = _gradients(subject, module, traced, inputs, targets) if backward else None
    parameters = measure_parameters(module)
    roles = traced.tracer.notes.parameters(module)
    plan = subject.plan if subject.plan is not UNPLANNED else as_built(subject, roles, parameters)
    branches = traced.watch.measured_branches()
    stds = {parameter.name: parameter.std for parameter in parameters}
    return Measurements(
        loss=loss,
        logits=logits,
        positions=positions,
        residual=ResidualMeasure(traced.watch.embedding_variance, branches, scaling_ratio(branches, stds, plan)),
        attention=tuple(traced.watch.attentions),
        parameters=parameters,
        wiring=traced.wiring,
        routers=tuple(traced.watch.routers.values()),
        copies=find_copies(module, {parameter.name: parameter.role for parameter in roles}),
        labels=_labels(traced.outcome, inputs, targets),
        probe=_probe(subject, module, traced, inputs),
        headroom=traced.watch.headroom,
        gradients=gradients,
        history=subject.history,
        buffers=measure_buffers(module),
        roles=roles,
        plan=plan,
    )


def survey(subject: Subject, module: nn.Module, batch: TokenBatch) -> tuple[tuple[Parameter, ...], dict[str, float]]:
    """Run the module once only to see how it is put together: its parameters' roles, and its sizes."""
    device = next(module.parameters()).device
    inputs, targets = torch.tensor(batch.inputs, device=device), torch.tensor(batch.targets, device=device)
    traced = _traced(subject, module, inputs, targets, False)
    roles, watch = traced.tracer.notes.parameters(module), traced.watch
    return roles, sizes_seen(roles, watch.measured_branches(), traced.wiring, watch.heads, subject.vocab_size)


def as_built(subject: Subject, roles: tuple[Parameter, ...], measured: tuple[ParameterMeasure, ...]) -> InitPlan:
    """The plan of a module that is taken as it is: what its init code was seen to draw, else what it holds."""
    by_name, drawn = {parameter.name: parameter for parameter in measured}, subject.history.drawn
    stds = {name: drawn[name].std if name in drawn else parameter.std for name, parameter in by_name.items()}
    unscaled = unscaled_stds(roles, stds)
    entries = []
    for parameter in roles:
        found = by_name[parameter.name]
        distribution = drawn.get(parameter.name) or AsFound(found.std, found.kurtosis)
        entries.append(PlannedParameter(parameter, distribution, unscaled.get(parameter.name, distribution.std)))
    return replace(UNPLANNED, entries=tuple(entries))


def _traced(subject: Subject, module: nn.Module, inputs: Tensor, targets: Tensor, backward: bool) -> Traced:
    """Run once; where no stream is found, and one product brings the embedding to another width, from there again."""
    traced = _trace(subject, module, inputs, targets, backward)
    starts = set(traced.tracer.entries)
    if traced.tracer.additions or len(starts) != 1:
        return traced
    again = _trace(subject, module, inputs, targets, backward, tuple(starts))
    return again if again.tracer.additions else traced


def _trace(
    subject: Subject, module: nn.Module, inputs: Tensor, targets: Tensor, backward: bool, starts: tuple[str, ...] = ()
) -> Traced:
    watch = Watch((inputs.shape[0], inputs.shape[1]), BranchGradients() if backward else None)
    tracer = Tracer(module, inputs, callbacks=watch.callbacks, starts=starts)
    outcome: Outcome | None = None
    states: Tensor | None = None
    with torch.set_grad_enabled(backward):
        with tracer:
            if subject.states and subject.logits:
                states = subject.states(module, inputs)
                last = subject.logits(module, states, slice(0, 1))  # one token's logit shows which weight is the head
            else:
                outcome = call(subject, module, inputs, targets)
                last = outcome.logits
        watch.callbacks.between()
        lineage = tracer.of(last)
        if lineage.projection:
            tracer.notes.note(lineage.projection, Role.LM_HEAD, "it produced the logits")
        return Traced(watch, tracer, wiring_of(tracer, lineage, watch), outcome, states, starts)


def _logits(subject: Subject, module: nn.Module, traced: Traced, inputs: Tensor, targets: Tensor):  # type: ignore[no-untyped-def]
    states, head = traced.states, subject.logits
    if states is not None and head is not None:
        return measure_logits(
            states.detach(), lambda rows, part: head(module, rows, part), inputs, targets, subject.vocab_size
        )
    assert traced.outcome is not None
    logits = traced.outcome.logits.detach()
    return measure_logits(logits, lambda rows, part: rows[..., part], inputs, targets, real_vocabulary(logits))


def real_vocabulary(logits: Tensor) -> int:
    """Return V without the padding at its end whose logits are masked to −inf everywhere."""
    masked = (logits[0, 0] == -math.inf).tolist()
    width = len(masked)
    while width > 1 and masked[width - 1]:
        width -= 1
    return width


def _probe(subject: Subject, module: nn.Module, traced: Traced, inputs: Tensor) -> ProbeMeasure | None:
    """Ask for leaks and order; not of the reference Transformer, whose mask and positions are not in question."""
    if subject.architecture is not None:
        return None
    source = inputs[:1]

    def forward(ids: Tensor) -> Tensor:
        return _all_logits(subject, module, ids, ids, source[:, : ids.shape[1]].expand(ids.shape))

    causal = subject.causal is not False
    length = inputs.shape[1]
    for longest in dict.fromkeys((min(LONGEST, length), length)):  # some forwards take no length but the batch's
        try:
            return probe(module, forward, inputs, subject.vocab_size, causal, traced.starts, longest)
        except RunError:
            continue
    return ProbeMeasure(math.nan, math.nan, causal)


def _all_logits(
    subject: Subject, module: nn.Module, ids: Tensor, targets: Tensor, source: Tensor | None = None
) -> Tensor:
    """Run the module again for the logits of some ids, all at once; `source` is what an encoder reads besides."""
    if subject.states and subject.logits:
        return subject.logits(module, subject.states(module, ids), slice(0, subject.vocab_size))
    return call(subject, module, ids, targets, source).logits


def _labels(outcome: Outcome | None, inputs: Tensor, targets: Tensor) -> LabelMeasure | None:
    if outcome is None or outcome.loss is None:
        return None
    return explain_loss(
        outcome.logits.detach(), inputs, targets, outcome.loss.detach(), outcome.argument, outcome.shifted
    )


def _gradients(subject: Subject, module: nn.Module, traced: Traced, inputs: Tensor, targets: Tensor) -> GradientMeasure:
    """One backward of the mean cross-entropy, and whether what got no gradient can get one."""

    def loss_of(model: nn.Module) -> Tensor:
        return mean_cross_entropy(_all_logits(subject, model, inputs, targets), targets)

    with torch.enable_grad():
        if traced.outcome is not None:
            loss = mean_cross_entropy(traced.outcome.logits, targets)
        else:
            assert traced.states is not None and subject.logits is not None
            logits = subject.logits(module, traced.states, slice(0, subject.vocab_size))
            loss = mean_cross_entropy(logits, targets)
        try:
            seen = backward(loss, module)
        except Exception as error:
            raise_explained(subject, module, error, inputs, "backward of its loss")
        if not seen.zero:
            return seen
        if any(map(is_lazy, module.parameters())):
            return replace(seen, skipped="parameters without entries can't be trained (--engine dense)")
        revival = dead_parameters(module, loss_of, seen.zero, STEPS)
        return replace(seen, dead=revival.dead, steps=revival.steps, skipped=revival.skipped)
