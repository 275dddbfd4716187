"""Whether the formulas of `init:` can be computed, for the model at hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import islice

from pydantic import ValidationError

from initdiag.config.annotations import Path
from initdiag.config.fault import Fault
from initdiag.config.fields import LARGEST
from initdiag.config.init import Init, base_scheme, scheme_of
from initdiag.config.sentences import sentence
from initdiag.config.wording import listed, one_line
from initdiag.errors import PlanError
from initdiag.model import Architecture, parameters, sizes
from initdiag.schemes import CUSTOM, Draw, Parameter, Role, Scheme
from initdiag.schemes.answers import distribution_of
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
    if not custom and not roles and not given:
        return
    all_of, settings = parameters(model), settings_of(scheme, known, given)
    if custom and (missing := dict.fromkeys(one.role for one in all_of if one.role not in scheme.roles)):
        message = f"nothing found for {listed(missing)}, expected an entry for every matrix and embedding"
        yield Fault(("init", "roles"), f"{message}, as the scheme is {CUSTOM.name}", (("init", "scheme"),))
    for role, draw in roles.items():
        path: Path = ("init", "roles", role.value)
        whole = not isinstance(getattr(init.roles, role), float)
        ours = _of_role(role, all_of) or _square(role, model.d_model)
        for key, message in _role(scheme, draw, ours, known, settings).items():
            yield Fault((*path, key) if whole else path, one_line(message, WIDTH))
    if given:
        yield from _of_the_scheme(base_scheme(init.scheme), tuple(roles), all_of, known, given)


def _parameters(scheme: Scheme, known: Mapping[str, float], given: Mapping[str, float | str]) -> Iterator[Fault]:
    good = {name: value for name, value in given.items() if name in scheme.choices}
    upto: dict[str, str] = {}
    for name, default in scheme.parameters.items():  # in their order: a formula may use the ones before it
        upto[name] = default
        so_far = replace(scheme, parameters=upto)
        own = {name: given[name]} if name in given else {}
        try:
            value = settings_of(so_far, known, good | own)[name]
        except PlanError as error:
            if own:
                yield Fault(("init", name), one_line(str(error), WIDTH))
                continue
            said, whose = str(error), f"scheme '{scheme.name}'"
            message = one_line(said if said.startswith(whose) else f"{whose}, parameter {name}: {said}", WIDTH)
            culprit = _culprit(good, partial(settings_of, so_far, known))
            yield Fault(("init", culprit or "scheme"), message)
            return
        if not own:
            continue
        good[name] = given[name]
        if name not in Init.model_fields and abs(float(value)) > LARGEST:  # of a scheme that is not one of ours
            yield Fault(("init", name), f"'{given[name]}' gives {value:g}; expected at most {LARGEST:g}")
        try:
            Init.model_validate({name: value})
        except ValidationError as error:
            words = sentence(error.errors()[0], ("init", name), float(f"{value:.6g}")).removeprefix("found ")
            yield Fault(("init", name), f"the formula '{given[name]}' gives {words}")


def _culprit(given: Mapping[str, float | str], compute: Callable[[dict[str, float | str]], object]) -> str | None:
    """Return the parameter without which something can be computed; None where that is the scheme's own fault."""
    for name in reversed(tuple(given)):
        try:
            compute({other: value for other, value in given.items() if other != name})
        except PlanError:
            continue
        return name
    return None


def _of_the_scheme(
    scheme: Scheme,
    replaced: tuple[Role, ...],
    all_of: tuple[Parameter, ...],
    known: Mapping[str, float],
    given: Mapping[str, float | str],
) -> Iterator[Fault]:
    """Yield the parameters with which a role of the scheme itself has no number: a cut of 0.01, say, by its name."""
    ends = (None, 0, max((one.layer for one in all_of if one.layer is not None), default=0))
    at_ends = [one for one in all_of if one.layer in ends]
    told: set[str] = set()
    for role, draw in scheme.roles.items():
        if role in replaced:
            continue
        ours = _of_role(role, at_ends)

        def compute(rest: Mapping[str, float | str], draw: Draw = draw, ours: tuple[Parameter, ...] = ours) -> None:
            for message in _role(scheme, draw, ours, known, settings_of(scheme, known, rest)).values():
                raise PlanError(message)

        try:
            compute(given)
        except PlanError as error:
            culprit = _culprit(given, compute) or "scheme"
            if culprit not in told:
                yield Fault(("init", culprit), one_line(f"scheme '{scheme.name}', {role}: {error}", WIDTH))
            told.add(culprit)


def _of_role(role: Role, among: Iterable[Parameter]) -> tuple[Parameter, ...]:
    """Return the parameters of a role, of each size and layer one."""
    return tuple({(one.layer, one.fan_in, one.fan_out): one for one in among if one.role is role}.values())


def _square(role: Role, width: int) -> tuple[Parameter, ...]:
    """Return what stands for a role that the model lacks."""
    return (Parameter(f"a {role}", (width, width), role, width, 0),)


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
    wanted = [(draw.distribution, plain, draw.formula), ("unscaled", plain, draw.unscaled)]
    if draw.distribution == "truncated":
        wanted.append(("cut", draw, "1"))
    for key, drawn, formula in wanted:
        if formula is None:
            continue
        try:
            distribution_of(drawn, formula, names)
        except PlanError as error:
            yield key, str(error)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
