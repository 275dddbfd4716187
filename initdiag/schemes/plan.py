"""The init plan of a model: for every parameter, what it is, and the distribution it is to be drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from initdiag.errors import PlanError, UsageError, did_you_mean
from initdiag.schemes.distributions import BY_NAME, Constant, Distribution
from initdiag.schemes.formula import evaluate
from initdiag.schemes.roles import Role
from initdiag.schemes.scheme import Draw, Scheme


@dataclass(frozen=True)
class Part:
    """Rows of a packed matrix that have a role of their own; `rows` are (start, stop) pairs over its outputs."""

    role: Role
    rows: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Parameter:
    """One parameter of a model: known without building it, or read off the operations of a forward.

    `fan_in` is the number of inputs that one output sums over (of the matrix that a bias belongs to). `transposed`:
    it is stored (inputs, outputs), as in GPT-2's Conv1D. `parts`: the roles of its rows, where they differ (packed
    q/k/v, gate/up). `evidence` says in words how the role was found out.
    """

    name: str
    shape: tuple[int, ...]
    role: Role
    fan_in: int
    layer: int | None = None
    transposed: bool = False
    parts: tuple[Part, ...] = ()
    evidence: str = ""

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@dataclass(frozen=True)
class PlannedParameter:
    """A parameter and its distribution; `unscaled_std` is its std without the scheme's depth scaling."""

    parameter: Parameter
    distribution: Distribution
    unscaled_std: float


@dataclass(frozen=True)
class InitPlan:
    """The answers of one scheme for one model, in the order of the model's own parameters."""

    scheme: str
    settings: Mapping[str, float]
    entries: tuple[PlannedParameter, ...]

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
    given: Mapping[str, float] | None = None,
) -> InitPlan:
    """Ask a scheme about every parameter.

    Args:
        sizes: what formulas may use besides the scheme's own parameters: d_model, n_layers, …
        given: the scheme's parameters as set by the user; the others take their defaults.

    Raises:
        UsageError: the scheme has no parameter of a given name.
        PlanError: a parameter occurs twice, its role has no answer, or a formula can't be computed.
    """
    parameters = tuple(parameters)
    settings = _settings(scheme, sizes, given or {})
    names = [parameter.name for parameter in parameters]
    if twice := sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []:
        raise PlanError(f"parameter '{twice[0]}' is listed twice; expected every parameter exactly once")
    return InitPlan(
        scheme.name, settings, tuple(_answer(scheme, parameter, {**sizes, **settings}) for parameter in parameters)
    )


def _settings(scheme: Scheme, sizes: Mapping[str, float], given: Mapping[str, float]) -> dict[str, float]:
    for name in given:
        if name not in scheme.parameters:
            known = ", ".join(scheme.parameters) or "none"
            raise UsageError(
                f"scheme '{scheme.name}' has no parameter '{name}'; its parameters: {known}"
                + did_you_mean(name, scheme.parameters)
            )
    settings: dict[str, float] = {}
    for name, default in scheme.parameters.items():  # in order: a default may use the ones before it
        settings[name] = given[name] if name in given else evaluate(default, {**sizes, **settings})
    return settings


def _answer(scheme: Scheme, parameter: Parameter, names: Mapping[str, float]) -> PlannedParameter:
    if parameter.role not in scheme.roles:
        raise PlanError(
            f"scheme '{scheme.name}' says nothing about parameter '{parameter.name}' (role {parameter.role}); "
            f"it answers for {', '.join(scheme.roles)}"
        )
    draw = scheme.roles[parameter.role]
    names = {**names, "fan_in": parameter.fan_in, "layer": -1 if parameter.layer is None else parameter.layer}
    distribution = _distribution(draw, draw.formula, names)
    unscaled = _distribution(draw, draw.unscaled, names) if draw.unscaled else distribution
    return PlannedParameter(parameter, distribution, unscaled.std)


def _distribution(draw: Draw, formula: str, names: Mapping[str, float]) -> Distribution:
    value = evaluate(formula, names)
    if draw.distribution != "constant" and value <= 0:
        # a spread of exactly nothing is a constant, and is said so; a negative one is an error
        if value == 0:
            return Constant(0.0)
        raise PlanError(f"'{formula}' gives {value:g}; expected a std or bound that is not negative")
    return BY_NAME[draw.distribution](value)
