"""One forward, observed: the tracer finds stream and attention, and every number is taken while it is there."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor, nn

from initdiag.measure.attention import sharpness
from initdiag.measure.logits import measure_logits
from initdiag.measure.statistics import moments, variance
from initdiag.measure.values import (
    AttentionMeasure,
    Branch,
    Measurements,
    ParameterMeasure,
    ResidualMeasure,
    total,
)
from initdiag.schemes import InitPlan
from initdiag.subjects import Subject
from initdiag.tokens import TokenBatch
from initdiag.trace import Addition, Attention, Tracer


def observe(subject: Subject, module: nn.Module, batch: TokenBatch) -> Measurements:
    """Run the module once on the batch and measure it. Gradients and modes are the caller's business."""
    device = next(module.parameters()).device
    inputs = torch.tensor(batch.inputs, device=device)
    targets = torch.tensor(batch.targets, device=device)
    stream, attention = _Stream(), _Attention()
    with Tracer(module, inputs, stream.add, attention.add):
        states = subject.states(module, inputs)
    loss, logits, positions = measure_logits(
        states, lambda rows, part: subject.logits(module, rows, part), inputs, targets, subject.vocab_size
    )
    parameters = measure_parameters(module)
    branches = tuple(stream.branches)
    residual = ResidualMeasure(stream.embedding_variance, branches, scaling_ratio(branches, parameters, subject.plan))
    return Measurements(loss, logits, positions, residual, tuple(attention.measures), parameters)


def measure_parameters(module: nn.Module) -> tuple[ParameterMeasure, ...]:
    """Measure every parameter of a module (a tied one once), in the module's order."""
    return tuple(_parameter(name, parameter) for name, parameter in module.named_parameters())


def _parameter(name: str, tensor: Tensor) -> ParameterMeasure:
    mean, spread, not_finite = moments(tensor)
    return ParameterMeasure(name, mean, spread**0.5, not_finite)


def scaling_ratio(branches: tuple[Branch, ...], parameters: tuple[ParameterMeasure, ...], plan: InitPlan) -> float:
    """Return Σ branch variance over the mean unscaled branch variance (see ResidualMeasure).

    An unscaled branch is the measured one times (unscaled std of the plan / measured std of its projection)²: the
    weights as they are tell what was scaled, the plan tells from what.
    """
    stds = {parameter.name: parameter.std for parameter in parameters}
    unscaled = []
    for branch in branches:
        if branch.projection in plan.by_name and stds[branch.projection] > 0:
            times = plan[branch.projection].unscaled_std / stds[branch.projection]
            unscaled.append(branch.branch_variance * times * times)
    mean = total(unscaled) / len(unscaled) if unscaled else 0.0
    return total(branch.branch_variance for branch in branches) / mean if mean else math.nan


class _Stream:
    """Collects residual additions; a branch is named after the weight that wrote it."""

    def __init__(self) -> None:
        self.embedding_variance = float("nan")
        self.branches: list[Branch] = []

    def add(self, addition: Addition) -> None:
        if not self.branches:
            self.embedding_variance = variance(addition.before)
        index = len(self.branches) + 1
        name = _module_of(addition.projection) if addition.projection else f"branch {index}"
        self.branches.append(
            Branch(
                index=index,
                name=name,
                layer=_layer_of(name),
                kind=addition.kind,
                projection=addition.projection,
                branch_variance=variance(addition.branch),
                stream_variance=variance(addition.after),
            )
        )


class _Attention:
    """Collects attentions, named after the module whose query they use."""

    def __init__(self) -> None:
        self.measures: list[AttentionMeasure] = []

    def add(self, attention: Attention) -> None:
        source = attention.source or ""
        name = _module_of(_module_of(source)) or f"attention {len(self.measures) + 1}"
        logit_std, entropy_ratio = sharpness(attention)
        self.measures.append(AttentionMeasure(name, _layer_of(name), logit_std, entropy_ratio))


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]


def _layer_of(name: str) -> int | None:
    """Return the first number in a dotted path: 'blocks.3.attention.out' is in layer 3."""
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(number.group(1)) if number else None
