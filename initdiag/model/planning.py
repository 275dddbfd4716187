"""What a scheme makes of an architecture: the forward pass that it demands, and a plan for all parameters. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from initdiag.model.architecture import Architecture, of_branch
from initdiag.model.demands import demanded
from initdiag.model.parameters import parameters, sizes
from initdiag.schemes import Constant, InitPlan, PlannedParameter, Role, Scheme, make_plan
from initdiag.schemes.roles import RESIDUAL_PROJECTIONS
from initdiag.schemes.settings import settings_of


def planned(
    shape: Architecture, scheme: Scheme, given: Mapping[str, float | str] | None = None
) -> tuple[Architecture, InitPlan]:
    """Return the architecture as the scheme wants it, and its plan.

    Raises:
        UsageError, PlanError: as make_plan and demanded.
    """
    shape = demanded(shape, scheme, settings_of(scheme, sizes(shape), given or {}))
    plan = make_plan(scheme, parameters(shape), sizes(shape), given)
    return shape, replace(plan, entries=tuple(_fitted(shape, entry) for entry in plan.entries))


def _fitted(shape: Architecture, entry: PlannedParameter) -> PlannedParameter:
    """Return an answer in the terms of this architecture."""
    role, drawn = entry.parameter.role, entry.distribution
    if role is Role.NORM_SCALE and shape.norm_scale == "one_plus" and isinstance(drawn, Constant):
        return replace(entry, distribution=Constant(drawn.value - 1))  # a scheme means the gain, and that is 1 + weight
    if role in RESIDUAL_PROJECTIONS and entry.parameter.layer is not None:
        # a branch that the forward pass multiplies would be that much larger without the scheme's or config's scaling
        branch = 2 * entry.parameter.layer + (1 if role is Role.ATTENTION_OUT else 2)
        # where a norm follows, what the branch adds doesn't depend on the std
        unscaled = drawn.std if shape.normed_after else entry.unscaled_std
        return replace(entry, unscaled_std=unscaled / of_branch(shape.residual_multiplier, branch))
    return entry
