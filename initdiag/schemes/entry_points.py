"""Schemes of other distributions, found by name in the entry-point group `initdiag.schemes`.

An entry point loads to a Scheme, or to a function without arguments that returns one. Nothing is looked up before a
name is asked for that no built-in scheme has: it takes milliseconds per hundred installed distributions.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from initdiag.errors import UsageError, did_you_mean, printable
from initdiag.schemes.answers import DISTRIBUTIONS
from initdiag.schemes.roles import Role
from initdiag.schemes.scheme import Draw, Scheme

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "initdiag.schemes"
NEEDED = tuple(role for role in Role if role is not Role.OTHER)  # what is found to be OTHER is never drawn


def offered() -> tuple[str, ...]:
    """Return the names of all entry points, without loading any."""
    return tuple(_by_name(tuple(sys.path)))


def offered_scheme(name: str) -> Scheme | None:
    """Load the scheme that another distribution offers under a name, None where none does.

    Raises:
        UsageError: it can't be loaded, is no Scheme or leaves a role out, or two distributions offer the name.
    """
    return _loaded(name, tuple(sys.path))


@cache  # by the path that was searched: a notebook may install something and look again
def _by_name(path: tuple[str, ...]) -> Mapping[str, tuple[EntryPoint, ...]]:
    from importlib.metadata import distributions  # takes 20 ms, and most commands name a built-in scheme

    found: dict[str, dict[str, EntryPoint]] = {}
    for distribution in distributions(path=list(path)):
        for point in distribution.entry_points.select(group=GROUP):
            # the first of a distribution on the path hides the others; '-' and '_' make no two of them
            home = re.sub("[-_.]+", "-", _home(point)).lower()
            found.setdefault(point.name, {}).setdefault(home, point)
    return {name: tuple(points.values()) for name, points in sorted(found.items())}


@cache
def _loaded(name: str, path: tuple[str, ...]) -> Scheme | None:
    points = _by_name(path).get(name, ())
    if not points:
        return None
    if len(points) > 1:
        homes = " and ".join(f"'{_home(point)}'" for point in points)
        raise UsageError(f"scheme '{printable(name)}' is offered by the distributions {homes}; expected one of them")
    scheme = _object(points[0])
    for wrong in (_wrong_roles(scheme), _wrong_parameters(scheme)):
        if wrong:
            _refuse(points[0], wrong)
    return replace(scheme, name=name)  # one name for it everywhere, whatever it calls itself


def _object(point: EntryPoint) -> Scheme:
    loaded = _foreign(point, "can't be loaded", point.load)
    if callable(loaded):
        loaded = _foreign(point, "can't be called without arguments", loaded)
    if not isinstance(loaded, Scheme):
        _refuse(point, f"gives {printable(repr(loaded)[:60])} (of type {type(loaded).__name__})")
    return loaded


def _foreign(point: EntryPoint, what: str, call: Callable[[], object]) -> object:
    try:
        return call()
    except (Exception, SystemExit) as error:  # other people's code: whatever it raises is a fault of theirs
        said = printable((str(error).strip().splitlines() or [""])[0][:200])
        _refuse(point, f"{what}: {type(error).__name__}{': ' if said else ''}{said}")


def _wrong_roles(scheme: Scheme) -> str:
    if not isinstance(scheme.roles, Mapping):
        return f"has {printable(repr(scheme.roles)[:60])} for its roles"
    for role, draw in scheme.roles.items():
        if role not in tuple(Role):
            return f"answers for '{printable(str(role))}', which is no role{did_you_mean(str(role), tuple(Role))}"
        if not isinstance(draw, Draw):
            return f"answers for {role} with {printable(repr(draw)[:60])}, which is no Draw"
        if draw.distribution not in DISTRIBUTIONS:
            guess = did_you_mean(str(draw.distribution), DISTRIBUTIONS)
            return f"draws {role} from '{draw.distribution}', which is none of {', '.join(DISTRIBUTIONS)}{guess}"
        if not isinstance(draw.formula, str) or (draw.distribution == "truncated" and not isinstance(draw.cut, str)):
            return f"draws {role} from {draw.distribution}, whose numbers are not all formulas in quotes"
    if missing := [role for role in NEEDED if role not in scheme.roles]:
        return f"leaves out {', '.join(missing)}"
    return ""


def _wrong_parameters(scheme: Scheme) -> str:
    for name, default in scheme.parameters.items():
        if not isinstance(default, str):
            return f"has {printable(repr(default)[:60])} as the default of '{name}', which is no formula in quotes"
    for name, words in scheme.choices.items():
        if not words or not isinstance(words, Mapping):
            return f"has the choice '{name}' without words"
    return ""


def _home(point: EntryPoint) -> str:
    return printable(point.dist.name) if point.dist else "unknown"


def _refuse(point: EntryPoint, what: str) -> NoReturn:
    raise UsageError(
        f"scheme '{printable(point.name)}': {printable(point.value)}, an entry point of the distribution "
        f"'{_home(point)}', {what}; expected a Scheme, or a function that returns one, with a Draw for every role"
    ) from None
