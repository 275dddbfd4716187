"""A scheme's plan for a module that it has never seen: by the roles that a forward showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from initdiag.schemes import AsFound, InitPlan, Parameter, PlannedParameter, Role, Scheme, make_plan
from initdiag.weightless.lazy import source_of

KEPT = (Role.NORM_SCALE, Role.NORM_BIAS, Role.MULTIPLIER, Role.OTHER)


def plan_by_role(
    scheme: Scheme,
    roles: Sequence[Parameter],
    sizes: Mapping[str, float],
    given: Mapping[str, float | str],
    module: nn.Module,
) -> InitPlan:
    """Plan a module's parameters.

    Norms keep what they hold, since what a gain of 1 is called differs (Gemma's is 1 + w); so do multipliers and
    parameters whose role no operation showed.

    Raises:
        UsageError, PlanError: as make_plan.
    """
    tensors = dict(module.named_parameters())
    drawn = make_plan(scheme, [one for one in roles if one.role not in KEPT and one.role in scheme.roles], sizes, given)
    entries = []
    for parameter in roles:
        entry = drawn.by_name.get(parameter.name)
        if entry is None:
            source = source_of(tensors[parameter.name])
            std = (
                source.law.pieces[0].std
                if source
                else float(tensors[parameter.name].detach().float().std(correction=0))
            )
            entry = PlannedParameter(parameter, AsFound(std), std)
        entries.append(entry)
    return replace(drawn, entries=tuple(entries))
