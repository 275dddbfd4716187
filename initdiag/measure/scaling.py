"""The std that a residual projection would have without depth scaling, and the scaling ratio that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from initdiag.measure.values import Branch, mean, total
from initdiag.schemes import InitPlan, Parameter, Role

# what a residual projection is compared with: the widest drawn of the matrices that feed the same branch, so that a
# scaling that stands on one of them by mistake is not taken for the measure; queries alone may be smaller by design
KIN = {
    Role.ATTENTION_OUT: (Role.ATTENTION_VALUE, Role.ATTENTION_KEY),
    Role.MLP_OUT: (Role.MLP_IN, Role.MLP_GATE),
}
KNOWN = 0.05  # |ln| between a factor and a known one up to which they are the same


def scaling_ratio(branches: Sequence[Branch], stds: Mapping[str, float], plan: InitPlan) -> float:
    """Return Σ branch variance over the mean unscaled branch variance (see ResidualMeasure).

    An unscaled branch is the measured one times (unscaled std of the plan / measured std of its projection)²: the
    weights as they are tell what was scaled, the plan tells from what.

    Args:
        stds: of the parameters as they are.
    """
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

    That is the std of the matrices that feed the same branch (of the same layer where it has any, else of all), of the
    kind that is drawn widest. Of values and keys, keys may be wide for another reason (Xavier, for a head): those go
    first that leave a known factor, 1, 1/√(2N) or 1/(2N). Under inits whose std goes with 1/√fan_in, and an MLP's
    output has four times the inputs, it is that times √(fan_in of the feeding matrix / own fan_in). Which of the two
    holds is told in the same way, then by which is nearer to the factor of the attention, whose fan-ins are alike.
    """
    playing = [
        parameter for parameter in roles if _plays(parameter, (*KIN, *KIN[Role.ATTENTION_OUT], *KIN[Role.MLP_OUT]))
    ]
    depth = len({(one.layer, one.role) for one in playing if one.role in KIN})
    found: dict[str, float] = {}
    factors = []
    for parameter in playing:
        own = stds[parameter.name]
        if parameter.role is Role.ATTENTION_OUT and own > 0 and (kin := _kin(parameter, playing, stds)):
            wide = max(std for std, _ in kin)
            found[parameter.name] = min(
                (std for std, _ in kin), key=lambda std: (_strangeness(math.log(own / std), depth, 0.0)[0], wide - std)
            )
            factors.append(math.log(own / found[parameter.name]))
    attention = mean(factors) if factors else 0.0
    for parameter in playing:
        own = stds[parameter.name]
        if parameter.role is Role.MLP_OUT and own > 0 and (kin := _kin(parameter, playing, stds)):
            wide, fan_in = max(kin)
            by_fan = wide * math.sqrt(fan_in / parameter.fan_in)
            found[parameter.name] = min(
                (wide, by_fan), key=lambda std: _strangeness(math.log(own / std), depth, attention)
            )
    return found


def _strangeness(factor: float, depth: int, attention: float) -> tuple[bool, float]:
    """Whether ln(factor) is none that is known, then how far it is from the attention's."""
    known = (0.0, -math.log(depth) / 2, -math.log(depth))
    return min(abs(factor - one) for one in known) > KNOWN, abs(factor - attention)


def _kin(parameter: Parameter, roles: list[Parameter], stds: Mapping[str, float]) -> list[tuple[float, float]]:
    """Return (std, fan_in) of each kind of matrices that feed the branch."""
    found = []
    for role in KIN[parameter.role]:
        fit = [one for one in roles if _plays(one, (role,)) and stds[one.name] > 0]
        near = [one for one in fit if one.layer == parameter.layer] or fit
        if near:
            square = mean([stds[one.name] ** 2 for one in near])
            found.append((math.sqrt(square), mean([float(one.fan_in) for one in near])))
    return found


def _plays(parameter: Parameter, roles: tuple[Role, ...]) -> bool:
    return parameter.role in roles or any(part.role in roles for part in parameter.parts)
