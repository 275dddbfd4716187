"""What is wrong with `init:` beyond its types: the scheme decides which keys and words it may have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from initdiag.config.annotations import expected
from initdiag.config.fault import Fault
from initdiag.config.fields import LARGEST, LONGEST, Value
from initdiag.config.init import NO_PARAMETERS, Init, base_scheme
from initdiag.config.roles import OwnDraw, Roles
from initdiag.config.sentences import unknown_key
from initdiag.config.wording import found, listed, show
from initdiag.errors import UsageError, did_you_mean
from initdiag.schemes import Scheme, expected_name, scheme_names
from initdiag.schemes.answers import DISTRIBUTIONS


def init_faults(init: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield what no field of the raw section can know alone; values of a wrong type are left to pydantic."""
    name = init.get("scheme", Init.model_fields["scheme"].default)
    if not isinstance(name, str):
        return
    scheme: Scheme | None = None
    try:
        scheme = base_scheme(name)
    except UsageError as error:
        broken = name in scheme_names()  # an entry point that can't be used
        yield Fault(("init", "scheme"), str(error) if broken else f"found {show(name)}, {expected_name(name)}")
    for key, value in init.items():
        if isinstance(key, str) and key not in NO_PARAMETERS:
            yield from _key(key, value, scheme)
    roles = init.get("roles")
    for role, own in roles.items() if isinstance(roles, Mapping) else ():
        if isinstance(own, Mapping) and role in Roles.model_fields:  # of another, its name is what is wrong
            yield from _own_draw(("init", "roles", role), own)


def _key(key: str, value: object, scheme: Scheme | None) -> Iterator[Fault]:
    path, settable = ("init", key), scheme.settable if scheme else ()
    if key not in settable and key not in Init.model_fields:
        yield Fault(path, unknown_key(path, ("scheme", *settable, "seed", "roles") if scheme else ()))
    elif scheme is None or value is None:
        return
    elif key not in settable:
        message = f"scheme '{scheme.name}' has no such parameter, expected one of {listed(settable)}"
        if not settable:
            message = f"scheme '{scheme.name}' has no parameters, expected none"
        yield Fault(path, message, (("init", "scheme"),))
    elif key in scheme.choices:
        words = scheme.choices[key]
        if isinstance(value, str) and value not in words:
            guess = did_you_mean(value[:100], words)
            yield Fault(path, f"found {show(value)}, expected one of {listed(words)}{guess}", (("init", "scheme"),))
        elif not isinstance(value, str):
            yield Fault(path, f"{found(value)}, expected one of {listed(words)}", (("init", "scheme"),))
    elif isinstance(value, str) and re.search(r"\blayer\b", value):
        message = f"found {show(value)}, expected a formula without layer: it is one number for all layers"
        yield Fault(path, message)
    elif key not in Init.model_fields and (message := _wrong_value(value)):
        yield Fault(path, message)


def _wrong_value(value: object) -> str:
    """Return what is wrong with a parameter that has no field; nothing, where it is a number or a formula."""
    if isinstance(value, str):
        good = value.strip() and value.strip().isprintable() and len(value) <= LONGEST
        return "" if good else f"found {show(value)}, expected a formula of at most {LONGEST} characters on one line"
    if not isinstance(value, int | float) or isinstance(value, bool):
        return f"{found(value)}, expected {expected(Value)}"
    return "" if abs(value) <= LARGEST else f"found {show(value)}, expected a number of at most {LARGEST:g}"


def _own_draw(path: tuple[str, ...], own: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield what is wrong with the keys of one role."""
    given = [kind for kind in DISTRIBUTIONS if own.get(kind) is not None]
    among = tuple((*path, kind) for kind in given)
    if len(given) > 1:
        yield Fault(path, f"found {' and '.join(given)}, expected one distribution", among)
    elif not given and set(own) <= set(OwnDraw.model_fields):  # an unknown key is told by pydantic, and enough
        yield Fault(path, f"found no distribution, expected one of {', '.join(DISTRIBUTIONS)}")
    if len(given) != 1:
        return
    for key in ("cut", "corrected"):
        if own.get(key) not in (None, False) and given != ["truncated"]:
            yield Fault((*path, key), f"found with {given[0]}, expected truncated, or no {key}", among)
    if given == ["truncated"] and own.get("cut") is None:
        yield Fault((*path, "cut"), "not found, expected the number of sigmas where truncated is cut", among)
    if given == ["constant"] and own.get("unscaled") is not None:
        yield Fault((*path, "unscaled"), "found with constant, which has no spread; expected no unscaled", among)
