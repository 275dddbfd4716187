"""The init plan of a model: for every parameter, what it is, and the distribution it is to be drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from initdiag.errors import PlanError
from initdiag.schemes.answers import answer
from initdiag.schemes.distributions import Distribution
from initdiag.schemes.parameter import Parameter
from initdiag.schemes.roles import Role
from initdiag.schemes.scheme import Scheme
from initdiag.schemes.settings import settings_of, uses_layer


@dataclass(frozen=True)
class PlannedParameter:
    """A parameter and its distribution; `unscaled_std` is its std without the scheme's depth scaling."""

    parameter: Parameter
    distribution: Distribution
    unscaled_std: float


@dataclass(frozen=True)
class InitPlan:
    """The answers of one scheme for one model, in the order of the model's own parameters.

    calibration: what rescales the drawn weights on a batch ("lsuv"), or "".
    """

    scheme: str
    settings: Mapping[str, float | str]
    entries: tuple[PlannedParameter, ...]
    calibration: str = ""

    def __getitem__(self, name: str) -> PlannedParameter:
        return self.by_name[name]

    @cached_property
    def by_name(self) -> dict[str, PlannedParameter]:
        return {entry.parameter.name: entry for entry in self.entries}

    @property
    def numel(self) -> int:
        """Entries of all parameters together; a tied one counts once."""
        return sum(entry.parameter.numel for entry in self.entries)

    def with_role(self, *roles: Role) -> tuple[PlannedParameter, ...]:
        return tuple(entry for entry in self.entries if entry.parameter.role in roles)


def make_plan(
    scheme: Scheme,
    parameters: Iterable[Parameter],
    sizes: Mapping[str, float],
    given: Mapping[str, float | str] | None = None,
) -> InitPlan:
    """Ask a scheme about every parameter.

    Args:
        sizes: what formulas may use besides the scheme's own parameters: d_model, n_layers, …
        given: the scheme's parameters as set by the user; the others take their defaults.

    Raises:
        UsageError: the scheme has no parameter of a given name, or no such choice for it.
        PlanError: a parameter occurs twice, its role has no answer, or a formula can't be computed.
    """
    parameters = tuple(parameters)
    settings = settings_of(scheme, sizes, given or {})
    names = [parameter.name for parameter in parameters]
    if twice := sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []:
        raise PlanError(f"parameter '{twice[0]}' is listed twice; expected every parameter exactly once")
    by_layer = uses_layer(scheme, settings)
    known: dict[tuple[object, ...], tuple[Distribution, float]] = {}  # of a deep model, most layers are alike
    entries = []
    for one in parameters:
        asked = (one.role, one.shape, one.fan_in, one.transposed, one.parts, one.layer if by_layer else None)
        if asked not in known:
            known[asked] = answer(scheme, one, sizes, settings)
        entries.append(PlannedParameter(one, *known[asked]))
    return InitPlan(scheme.name, settings, tuple(entries), scheme.calibration)
