"""The std that a residual projection would have without depth scaling, and the scaling ratio that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from initdiag.measure.lens_values import ParameterMeasure
from initdiag.measure.values import Branch, mean, total
from initdiag.schemes import InitPlan, Parameter, Role

# what a residual projection is compared with: the matrices that feed the same branch, nearest kin first
KIN = {
    Role.ATTENTION_OUT: ((Role.ATTENTION_VALUE,), (Role.ATTENTION_QUERY, Role.ATTENTION_KEY)),
    Role.MLP_OUT: ((Role.MLP_IN,), (Role.MLP_GATE,)),
}


def scaling_ratio(branches: tuple[Branch, ...], parameters: tuple[ParameterMeasure, ...], plan: InitPlan) -> float:
    """Return Σ branch variance over the mean unscaled branch variance (see ResidualMeasure).

    An unscaled branch is the measured one times (unscaled std of the plan / measured std of its projection)²: the
    weights as they are tell what was scaled, the plan tells from what.
    """
    stds = {parameter.name: parameter.std for parameter in parameters}
    unscaled = []
    for branch in branches:
        if branch.projection in plan.by_name and stds.get(branch.projection, 0.0) > 0:
            times = plan[branch.projection].unscaled_std / stds[branch.projection]
            if times > 0:
                unscaled.append(branch.branch_variance * times * times)
    mean_unscaled = total(unscaled) / len(unscaled) if unscaled else 0.0
    return total(branch.branch_variance for branch in branches) / mean_unscaled if mean_unscaled else math.nan


def unscaled_stds(roles: Iterable[Parameter], stds: Mapping[str, float]) -> dict[str, float]:
    """Return, for every residual projection of a module that nobody declared, its std without depth scaling.

    That is the std of the matrices that feed the same branch (of the same layer where it has any, else of all). Under
    inits whose std goes with 1/√fan_in, and an MLP's output has four times the inputs, it is that times
    √(fan_in of the feeding matrix / own fan_in): which of the two holds is told by the attention, whose
    fan-ins are alike: the MLP's factor is read in the way that comes closer to the attention's.
    """
    roles = [parameter for parameter in roles if parameter.role in stds_roles()]
    found: dict[str, float] = {}
    factors = []
    for parameter in roles:
        if parameter.role is Role.ATTENTION_OUT and (kin := _kin(parameter, roles, stds)) and stds[parameter.name] > 0:
            found[parameter.name] = kin[0]
            factors.append(math.log(stds[parameter.name] / kin[0]))
    attention = mean(factors) if factors else 0.0
    for parameter in roles:
        if parameter.role is Role.MLP_OUT and (kin := _kin(parameter, roles, stds)) and stds[parameter.name] > 0:
            by_fan = kin[0] * math.sqrt(kin[1] / parameter.fan_in)
            own = stds[parameter.name]
            found[parameter.name] = min((kin[0], by_fan), key=lambda std: abs(math.log(own / std) - attention))
    return found


def stds_roles() -> tuple[Role, ...]:
    """The roles that take part."""
    return (*KIN, *(role for groups in KIN.values() for group in groups for role in group))


def _kin(parameter: Parameter, roles: list[Parameter], stds: Mapping[str, float]) -> tuple[float, float] | None:
    """Return (std, fan_in) of the matrices that feed the branch: root mean square over them."""
    for group in KIN[parameter.role]:
        fit = [one for one in roles if _plays(one, group) and stds[one.name] > 0]
        near = [one for one in fit if one.layer == parameter.layer] or fit
        if near:
            square = mean([stds[one.name] ** 2 for one in near])
            return math.sqrt(square), mean([float(one.fan_in) for one in near])
    return None


def _plays(parameter: Parameter, group: tuple[Role, ...]) -> bool:
    return parameter.role in group or any(part.role in group for part in parameter.parts)
