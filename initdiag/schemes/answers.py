"""A scheme's answer for one parameter: formulas computed, a distribution made of the number."""

from __future__ import annotations

import math
from collections.abc import Mapping

from initdiag.errors import PlanError
from initdiag.schemes.distributions import (
    AsFound,
    Constant,
    Distribution,
    Normal,
    Orthogonal,
    Packed,
    Piece,
    Truncated,
    Uniform,
    truncated,
)
from initdiag.schemes.formula import evaluate
from initdiag.schemes.parameter import Parameter
from initdiag.schemes.scheme import Draw, Scheme
from initdiag.schemes.settings import formula_names, unknown_sizes, words

DISTRIBUTIONS = ("normal", "uniform", "truncated", "orthogonal", "constant")
LEFT: tuple[Distribution, float] = (AsFound(math.nan), math.nan)  # rows that nobody knows the role of
LARGEST = 1e6  # of a number that is drawn; beyond, squares and fourth powers of weights leave float32
LEAST_CUT = 0.1  # sigmas: below, a cut normal is a uniform (kurtosis 1.8 to three digits)


def answer(
    scheme: Scheme, parameter: Parameter, sizes: Mapping[str, float], settings: Mapping[str, float | str]
) -> tuple[Distribution, float]:
    """Return what a parameter is drawn from, and its std without the scheme's depth scaling.

    Raises:
        PlanError: the scheme says nothing about the parameter's role, or a formula can't be computed, or uses what this
            model doesn't have.
    """
    if parameter.role not in scheme.roles:
        raise PlanError(
            f"scheme '{scheme.name}' says nothing about parameter '{parameter.name}' (role {parameter.role}); "
            f"it answers for {', '.join(scheme.roles)}"
        )
    if parameter.parts:
        return _packed(scheme, parameter, sizes, settings)
    draw = scheme.roles[parameter.role]
    layer = -1 if parameter.layer is None else parameter.layer
    fans = {"fan_in": float(parameter.fan_in), "fan_out": float(parameter.fan_out)}
    try:
        names = {**formula_names(scheme, sizes, settings, layer), **fans}
    except PlanError as error:
        raise PlanError(f"scheme '{scheme.name}', {parameter.role}: {error}") from error
    if missing := _missing(scheme, draw, names, layer):
        where = f"'{parameter.name}' (role {parameter.role}, {draw})"
        raise PlanError(f"scheme '{scheme.name}' can't say what {where} is drawn from: {missing}; use another scheme")
    try:
        distribution = distribution_of(draw, draw.formula, names)
        unscaled = distribution if draw.unscaled is None else distribution_of(draw, draw.unscaled, names)
    except PlanError as error:
        raise PlanError(f"scheme '{scheme.name}', {parameter.role}: {error}") from error
    return distribution, unscaled.std


def _missing(scheme: Scheme, draw: Draw, names: Mapping[str, float], layer: int) -> str:
    """Say what a formula uses that this model, or this parameter of it, doesn't have; '' where it has all."""
    formula = " ".join((draw.formula, draw.unscaled or "", draw.cut or ""))
    if sizes := unknown_sizes(formula, names):
        return f"{' and '.join(sizes)} is not known of this model"
    by_layer = {"layer", *scheme.choices, *scheme.terms} - set(names)
    if layer < 0 and by_layer & set(words(formula)):
        return "that depends on its layer, and there is no number of a layer in its name"
    return ""


def _packed(
    scheme: Scheme, parameter: Parameter, sizes: Mapping[str, float], settings: Mapping[str, float | str]
) -> tuple[Distribution, float]:
    """Ask for each part of a packed matrix as if its rows were a matrix of their own."""
    parts = parameter.all_parts
    answers = [
        answer(scheme, parameter.alone(part), sizes, settings) if part.role in scheme.roles else LEFT for part in parts
    ]
    if len(set(answers)) == 1 and not isinstance(answers[0][0], Orthogonal):  # which is drawn as a whole
        return answers[0]
    pieces = tuple(Piece(part.role, part.rows, drawn) for part, (drawn, _) in zip(parts, answers, strict=True))
    packed = Packed(pieces, parameter.axis)
    return packed, packed.std


def distribution_of(draw: Draw, formula: str, names: Mapping[str, float]) -> Distribution:
    """Compute a formula and make the distribution of that number.

    Raises:
        PlanError: it can't be computed, or gives a negative spread, a number above LARGEST, or a cut outside of
            LEAST_CUT … LARGEST.
    """
    value = evaluate(formula, names)
    if abs(value) > LARGEST:
        raise PlanError(f"'{formula}' gives {value:g}; expected at most {LARGEST:g}")
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
    if cut > LARGEST:
        raise PlanError(f"the cut '{draw.cut}' gives {cut:g} sigmas; expected at most {LARGEST:g}")
    return truncated(value, cut) if draw.corrected else Truncated(value, cut)
