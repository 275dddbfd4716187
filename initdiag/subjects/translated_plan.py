"""The init plan of a Hugging Face module, written onto the parameters of the same architecture here. No torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from initdiag.schemes import AsFound, Constant, Distribution, InitPlan, Packed, Parameter, PlannedParameter, Role
from initdiag.schemes.roles import BIASES

if TYPE_CHECKING:
    from initdiag.model import Architecture

SAME = 0.01  # stds that differ by less are the same: of 5,000 entries, that is one sampling error
SIGMAS = 5.0  # a mean that far from 0 is no accident: 6e-7 for one tensor
GAINS = (Role.NORM_SCALE, Role.MULTIPLIER)
VECTORS = (*BIASES, Role.ATTENTION_SINK)

Moments = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class _Drawn:
    """What outputs of one role are drawn from."""

    parameter: Parameter
    distribution: Distribution
    unscaled_std: float


def plan_of(shape: Architecture, found: InitPlan, moments: Moments) -> InitPlan | None:
    """Return the plan of a module as that of the reference Transformer: each parameter gets what its like has there.

    The like of a parameter has its role and layer; where several have, and are drawn differently, its fan_in as well,
    then its shape, and in the end its place among those. Norm gains and multipliers become constants of the same root
    mean square. A packed matrix of which only the std is known is taken to have that in all its parts.

    Args:
        shape: what `architecture_of` says about the module's config. found: the module's plan, by its own names
            (`measure.observe.as_built`, or a scheme's). moments: (mean, std) of the module's parameters.

    Returns:
        None where a parameter has no like, where several that are drawn differently could be it, where a matrix has a
        mean, or where the module has more or fewer numbers of a role in a layer than the architecture.
    """
    from initdiag.model.parameters import parameters  # with pydantic's models, which `initdiag rule` needs not

    ours = tuple(parameters(shape))
    theirs = []
    for entry in found.entries:
        for one in _parts(shape, entry):
            distribution = _fitted(one, moments.get(one.parameter.name), shape.norm_scale == "one_plus")
            if distribution is None:
                return None
            theirs.append(replace(one, distribution=distribution))
    if _numbers(ours) != _numbers(one.parameter for one in theirs):
        return None
    likes = [(parameter, _like(parameter, ours, theirs)) for parameter in ours]
    entries = [PlannedParameter(one, like.distribution, like.unscaled_std) for one, like in likes if like]
    return replace(found, entries=tuple(entries)) if len(entries) == len(ours) else None


def _numbers(of: Iterable[Parameter]) -> Counter[tuple[Role, int | None]]:
    """Count the entries of each role in each layer."""
    count: Counter[tuple[Role, int | None]] = Counter()
    for parameter in of:
        count[parameter.role, parameter.layer] += parameter.numel
    return count


# --- theirs


def _parts(shape: Architecture, entry: PlannedParameter) -> list[_Drawn]:
    """Take a packed matrix apart. Sinks of attention are not told from other vectors by what a forward does."""
    parameter, drawn = entry.parameter, entry.distribution
    if shape.attention_sinks and parameter.role is Role.OTHER and parameter.shape == (shape.n_heads,):
        parameter = replace(parameter, role=Role.ATTENTION_SINK)
    if not parameter.parts:
        return [_Drawn(parameter, drawn, entry.unscaled_std)]
    pieces = {piece.role: piece.distribution for piece in drawn.pieces} if isinstance(drawn, Packed) else {}
    scaled = entry.unscaled_std / drawn.std if drawn.std else 1.0
    laws = [(part, pieces.get(part.role, drawn)) for part in parameter.all_parts]
    return [_Drawn(parameter.alone(part), law, law.std * scaled) for part, law in laws]


def _fitted(one: _Drawn, moments: tuple[float, float] | None, one_plus: bool) -> Distribution | None:
    """Return what a parameter is drawn from in our terms; None where that can't be said.

    A Gemma's norm multiplies by 1 + w, and w is what both plans speak of.
    """
    role, drawn = one.parameter.role, one.distribution
    if isinstance(drawn, Packed):
        return None
    if isinstance(drawn, Constant) or (not isinstance(drawn, AsFound) and role not in GAINS):
        return drawn
    if moments is None or not all(map(math.isfinite, moments)):
        return None
    mean, std = moments
    if std <= 1e-6 * abs(mean):  # the rounding of a constant's own std
        return Constant(mean)
    if role in GAINS:
        plus = 1.0 if one_plus and role is Role.NORM_SCALE else 0.0
        return Constant(math.hypot(plus + mean, std) - plus)
    if role in VECTORS:
        return AsFound(math.hypot(mean, std))
    accident = SIGMAS * std / math.sqrt(one.parameter.numel)
    return None if abs(mean) > max(accident, SAME * std) else drawn


# --- ours


def _like(parameter: Parameter, ours: Sequence[Parameter], theirs: list[_Drawn]) -> _Drawn | None:
    near: list[_Drawn] = []
    for key in _KEYS:
        near = [one for one in theirs if key(one.parameter) == key(parameter)]
        if like := _pooled(near):
            return like
    of_that_shape = [one for one in ours if _KEYS[-1](one) == _KEYS[-1](parameter)]
    # of four norms in a block, the order is not the same in all classes: OLMoE has those of attention first, and GLM-4
    # those after branches last
    told = len(of_that_shape) <= 2 or parameter.role not in (Role.NORM_SCALE, Role.NORM_BIAS)
    return near[of_that_shape.index(parameter)] if told and len(of_that_shape) == len(near) else None


_KEYS: tuple[Callable[[Parameter], Any], ...] = (
    lambda one: (one.role, one.layer),
    lambda one: (one.role, one.layer, one.fan_in),
    lambda one: (one.role, one.layer, one.fan_in, one.fan_out, one.numel),
)


def _pooled(likes: list[_Drawn]) -> _Drawn | None:
    """Return one for several that are drawn alike; None where they are not, or where there is none."""
    laws = [one.distribution for one in likes]
    if not laws or all(law == laws[0] for law in laws):
        return likes[0] if likes else None
    if any(isinstance(law, Constant) for law in laws):
        return None
    stds = [law.std for law in laws]
    if max(stds) > (1 + SAME) * min(stds):
        return None
    total = sum(one.parameter.numel for one in likes)
    square = math.fsum(one.parameter.numel * one.distribution.std**2 for one in likes) / total
    return replace(likes[0], distribution=AsFound(math.sqrt(square)))
