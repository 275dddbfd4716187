"""The init plan of a model: for every parameter, what it is, and the distribution it is to be drawn from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from initdiag.errors import PlanError, UsageError, did_you_mean
from initdiag.schemes.distributions import (
    Constant,
    Distribution,
    Normal,
    Orthogonal,
    Truncated,
    Uniform,
    truncated,
)
from initdiag.schemes.formula import evaluate
from initdiag.schemes.roles import Role
from initdiag.schemes.scheme import Draw, Scheme

DISTRIBUTIONS = ("normal", "uniform", "truncated", "orthogonal", "constant")
LEAST_CUT = 0.1  # sigmas: below, a cut normal is a uniform (kurtosis 1.8 to three digits), and rejection never ends


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

    @property
    def fan_out(self) -> int:
        """Outputs of one matrix: of (experts, outputs, inputs), of one expert; of a vector, its entries."""
        if len(self.shape) < 2:
            return self.numel
        return self.shape[-1] if self.transposed else self.shape[-2]


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
    settings: Mapping[str, float | str]
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
    answers = tuple(_answer(scheme, parameter, sizes, settings) for parameter in parameters)
    return InitPlan(scheme.name, settings, answers)


def settings_of(scheme: Scheme, sizes: Mapping[str, float], given: Mapping[str, float | str]) -> dict[str, float | str]:
    """Return all parameters of a scheme: as given, else their defaults.

    Raises:
        UsageError: the scheme has no parameter of a given name, or no such choice for it.
        PlanError: a default can't be computed.
    """
    for name in given:
        if name not in scheme.settable:
            known = ", ".join(scheme.settable) or "none"
            raise UsageError(
                f"scheme '{scheme.name}' has no parameter '{name}'; its parameters: {known}"
                + did_you_mean(name, scheme.settable)
            )
    settings: dict[str, float | str] = {}
    for name, words in scheme.choices.items():
        word = given.get(name, next(iter(words)))
        if word not in words:
            raise UsageError(
                f"scheme '{scheme.name}': {name} is '{word}'; expected one of {', '.join(words)}"
                + did_you_mean(str(word), words)
            )
        settings[name] = str(word)
    for name, default in scheme.parameters.items():  # in order: a default may use the ones before it
        number = given.get(name)
        names = formula_names(scheme, sizes, settings)
        settings[name] = evaluate(default, names) if number is None else evaluate(str(number), names)
    return settings


def formula_names(
    scheme: Scheme, sizes: Mapping[str, float], settings: Mapping[str, float | str], layer: int = -1, branch: int = 0
) -> dict[str, float]:
    """Return what the formulas of a scheme may use: sizes, parameters, of a choice the number, and terms.

    What depends on `layer` (from 0) or `branch` (from 1) is left out where there is none.
    """
    names = {**sizes, "layer": float(layer), **({"branch": float(branch)} if branch else {})}
    absent = ({"layer"} if layer < 0 else set()) | ({"branch"} if branch < 1 else set())
    written = {name: scheme.choices[name][word] for name, word in settings.items() if isinstance(word, str)}
    names |= {name: number for name, number in settings.items() if not isinstance(number, str)}
    for name, formula in {**written, **scheme.terms}.items():
        if absent & set(re.findall(r"\w+", formula)):
            absent.add(name)  # and what uses it
        else:
            names[name] = evaluate(formula, names)
    return names


def _answer(
    scheme: Scheme, parameter: Parameter, sizes: Mapping[str, float], settings: Mapping[str, float | str]
) -> PlannedParameter:
    if parameter.role not in scheme.roles:
        raise PlanError(
            f"scheme '{scheme.name}' says nothing about parameter '{parameter.name}' (role {parameter.role}); "
            f"it answers for {', '.join(scheme.roles)}"
        )
    draw = scheme.roles[parameter.role]
    layer = -1 if parameter.layer is None else parameter.layer
    fans = {"fan_in": float(parameter.fan_in), "fan_out": float(parameter.fan_out)}
    names = {**formula_names(scheme, sizes, settings, layer), **fans}
    distribution = distribution_of(draw, draw.formula, names)
    unscaled = distribution_of(draw, draw.unscaled, names) if draw.unscaled else distribution
    return PlannedParameter(parameter, distribution, unscaled.std)


def distribution_of(draw: Draw, formula: str, names: Mapping[str, float]) -> Distribution:
    """Compute a formula and make the distribution of that number.

    Raises:
        PlanError: it can't be computed, or gives a negative spread or a cut that is not positive.
    """
    value = evaluate(formula, names)
    if draw.distribution == "constant":
        return Constant(value)
    if value <= 0:
        # a spread of exactly nothing is a constant, and is said so; a negative one is an error
        if value == 0:
            return Constant(0.0)
        raise PlanError(f"'{formula}' gives {value:g}; expected a std, bound or gain that is not negative")
    match draw.distribution:
        case "normal":
            return Normal(value)
        case "uniform":
            return Uniform(value)
        case "orthogonal":
            return Orthogonal(value, int(max(names["fan_in"], names["fan_out"])))
        case "truncated":
            return _truncated(draw, value, names)
        case other:
            raise PlanError(f"unknown distribution '{other}'; expected one of {', '.join(DISTRIBUTIONS)}")


def _truncated(draw: Draw, value: float, names: Mapping[str, float]) -> Truncated:
    cut = evaluate(draw.cut or "", names)
    if not cut >= LEAST_CUT:
        raise PlanError(f"the cut '{draw.cut}' gives {cut:g} sigmas; expected at least {LEAST_CUT:g}")
    return truncated(value, cut) if draw.corrected else Truncated(value, cut)
