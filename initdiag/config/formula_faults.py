"""Whether the formulas of `init:` can be computed, for the model at hand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice

from pydantic import ValidationError

from initdiag.config.annotations import Path
from initdiag.config.fault import Fault
from initdiag.config.fields import LARGEST
from initdiag.config.init import Init, scheme_of
from initdiag.config.sentences import sentence
from initdiag.config.wording import listed, one_line
from initdiag.errors import PlanError
from initdiag.model import Architecture, parameters, sizes
from initdiag.schemes import CUSTOM, Draw, Parameter, Role, Scheme
from initdiag.schemes.answers import distribution_of
from initdiag.schemes.formula import evaluate
from initdiag.schemes.settings import formula_names, settings_of

WIDTH = 300  # characters of a message: a formula may have 200


def formula_faults(init: Init, model: Architecture) -> Iterator[Fault]:
    """Yield every parameter and role of a valid section whose formula has no value that can be used."""
    scheme, known, given = scheme_of(init), sizes(model), init.parameters
    wrong = list(_parameters(scheme, known, given))
    yield from wrong
    if wrong:
        return
    custom, roles = init.scheme == CUSTOM.name, init.roles.draws if init.roles else {}
    if not custom and not roles:
        return
    all_of, settings = tuple(parameters(model)), settings_of(scheme, known, given)
    if custom and (missing := dict.fromkeys(one.role for one in all_of if one.role not in scheme.roles)):
        message = f"nothing found for {listed(missing)}, expected an entry for every matrix and embedding"
        yield Fault(("init", "roles"), f"{message}, as the scheme is {CUSTOM.name}", (("init", "scheme"),))
    for role, draw in roles.items():
        path: Path = ("init", "roles", role.value)
        whole = not isinstance(getattr(init.roles, role), float)
        for key, message in _role(scheme, draw, _representatives(role, all_of, known), known, settings).items():
            yield Fault((*path, key) if whole else path, one_line(message, WIDTH))


def _parameters(scheme: Scheme, known: Mapping[str, float], given: Mapping[str, float | str]) -> Iterator[Fault]:
    good = {name: value for name, value in given.items() if name in scheme.choices}
    for name in scheme.parameters:  # in their order: a formula may use the ones before it
        if name not in given:
            continue
        try:
            value = settings_of(scheme, known, good | {name: given[name]})[name]
        except PlanError as error:
            yield Fault(("init", name), one_line(str(error), WIDTH))
            continue
        good[name] = given[name]
        if name not in Init.model_fields and abs(float(value)) > LARGEST:  # of a scheme that is not one of ours
            yield Fault(("init", name), f"'{given[name]}' gives {value:g}; expected at most {LARGEST:g}")
        try:
            Init.model_validate({name: value})
        except ValidationError as error:
            words = sentence(error.errors()[0], ("init", name), float(f"{value:.6g}")).removeprefix("found ")
            yield Fault(("init", name), f"the formula '{given[name]}' gives {words}")


def _representatives(role: Role, all_of: tuple[Parameter, ...], known: Mapping[str, float]) -> tuple[Parameter, ...]:
    """Return the parameters of a role, of each size and layer one; of a role that the model lacks, a square one."""
    width = int(known["d_model"])
    ours = {(one.layer, one.fan_in, one.fan_out): one for one in all_of if one.role is role}
    return tuple(ours.values()) or (Parameter(f"a {role}", (width, width), role, width, 0),)


def _role(
    scheme: Scheme,
    draw: Draw,
    ours: tuple[Parameter, ...],
    known: Mapping[str, float],
    settings: Mapping[str, float | str],
) -> dict[str, str]:
    """Return what is wrong with a draw: by key, for the first parameter with which it is."""
    wrong: dict[str, str] = {}
    fixed = all(_is_number(text) for text in (draw.formula, draw.unscaled, draw.cut) if text is not None)
    for parameter in islice(ours, 1) if fixed else ours:
        layer = -1 if parameter.layer is None else parameter.layer
        fans = {"fan_in": float(parameter.fan_in), "fan_out": float(parameter.fan_out)}
        names = {**formula_names(scheme, known, settings, layer), **fans}
        for key, message in _wrong(draw, names):
            depends = re.search(r"\b(layer|fan_in|fan_out)\b", message) and "a formula uses" not in message
            wrong.setdefault(key, f"{message} (for {parameter.name})" if depends else message)
    return wrong


def _wrong(draw: Draw, names: Mapping[str, float]) -> Iterator[tuple[str, str]]:
    plain = replace(draw, distribution="normal") if draw.distribution == "truncated" else draw
    for key, formula in ((draw.distribution, draw.formula), ("unscaled", draw.unscaled)):
        if formula is None:
            continue
        try:
            distribution_of(plain, formula, names)
        except PlanError as error:
            yield key, str(error)
        else:
            if abs(value := evaluate(formula, names)) > LARGEST:
                yield key, f"'{formula}' gives {value:g}; expected at most {LARGEST:g}"
    if draw.distribution == "truncated":
        try:
            if evaluate(draw.cut or "", names) > LARGEST:
                yield "cut", f"the cut '{draw.cut}' gives more than {LARGEST:g} sigmas; expected less"
            else:
                distribution_of(draw, "1", names)
        except PlanError as error:
            yield "cut", str(error)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
