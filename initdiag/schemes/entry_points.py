"""Schemes of other distributions, found by name in the entry-point group `initdiag.schemes`.

An entry point loads to a Scheme, or to a function without arguments that returns one. Nothing is looked up before a
name is asked for that no built-in scheme has: it takes milliseconds per hundred installed distributions.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from initdiag.errors import PlanError, UsageError, did_you_mean, printable
from initdiag.schemes.answers import DISTRIBUTIONS
from initdiag.schemes.formula import FUNCTIONS, require_names
from initdiag.schemes.roles import Role
from initdiag.schemes.scheme import Draw, Scheme
from initdiag.schemes.settings import SIZES

if TYPE_CHECKING:
    from importlib.metadata import Distribution, EntryPoint

GROUP = "initdiag.schemes"
NEEDED = tuple(role for role in Role if role is not Role.OTHER)  # what is found to be OTHER is never drawn
OF_A_MODEL = (*SIZES, "qk_norm")
OF_A_PLACE = ("fan_in", "fan_out", "layer", "branch")
TAKEN = (*OF_A_MODEL, *OF_A_PLACE, *FUNCTIONS, "scheme", "seed", "roles")  # the last are other keys of `init:`
FORWARD = """
    mla moe activation gated gate_limit norm norm_scale eps placement inner_norm final_norm embedding_norm
    qk_norm position position_offset rotary_base rotary_dims rotary_scaling local_rotary_base windows
    attention_scale attention_softcap attention_sinks tied biases embedding_multiplier residual_multiplier
    stream_multiplier branch_gain logit_multiplier logit_softcap
""".split()  # the fields of `model:` but its sizes; the model itself is above this package
EXPECTED = "a Scheme, or a function that returns one, with a Draw for every role"
CALIBRATIONS = ("", "lsuv")


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
        for point in _points(distribution):
            # the first of a distribution on the path hides the others; '-' and '_' make no two of them
            home = re.sub("[-_.]+", "-", _home(point)).lower()
            found.setdefault(point.name, {}).setdefault(home, point)
    return {name: tuple(points.values()) for name, points in sorted(found.items())}


def _points(distribution: Distribution) -> tuple[EntryPoint, ...]:
    try:
        return tuple(distribution.entry_points.select(group=GROUP))
    except Exception:  # its metadata can't be read: it offers nothing, and is nothing of ours
        return ()


@cache
def _loaded(name: str, path: tuple[str, ...]) -> Scheme | None:
    points = _by_name(path).get(name, ())
    if not points:
        return None
    if len(points) > 1:
        homes = " and ".join(f"'{_home(point)}'" for point in points)
        raise UsageError(f"scheme '{printable(name)}' is offered by the distributions {homes}; expected one of them")
    scheme = _object(points[0])
    for check in (_wrong_texts, _wrong_mappings, _wrong_names, _wrong_roles, _wrong_formulas):  # in this order
        if wrong := next(check(scheme), ""):
            _refuse(points[0], wrong)
    # one name for it everywhere, whatever it calls itself
    return replace(scheme, name=name, roles={Role(role): draw for role, draw in scheme.roles.items()})


def _object(point: EntryPoint) -> Scheme:
    loaded = _foreign(point, "can't be loaded", point.load)
    if callable(loaded):
        loaded = _foreign(point, "can't be called without arguments", loaded)
    if not isinstance(loaded, Scheme):
        _refuse(point, f"gives {_shown(loaded)}")
    return loaded


def _foreign(point: EntryPoint, what: str, call: Callable[[], object]) -> object:
    try:
        with redirect_stdout(sys.stderr):  # stdout is for our results: JSON, say, that a program reads
            return call()
    except (Exception, SystemExit) as error:  # other people's code: whatever it raises is a fault of theirs
        said = printable((str(error).strip().splitlines() or [""])[0][:200])
        _refuse(point, f"{what}: {type(error).__name__}{': ' if said else ''}{said}")


def _wrong_texts(scheme: Scheme) -> Iterator[str]:
    for field in ("summary", "source", "family", "depth", "used_by", "calibration"):
        if not isinstance(text := getattr(scheme, field), str):
            yield f"has {_shown(text)} for its {field}, which is no text"
    for field in ("notes", "aliases"):
        texts = getattr(scheme, field)
        if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
            yield f"has {_shown(texts)} for its {field}, which is no tuple of texts"
    if scheme.calibration not in CALIBRATIONS:
        yield f"has {_shown(scheme.calibration)} for its calibration, which is neither '' nor 'lsuv'"


def _wrong_mappings(scheme: Scheme) -> Iterator[str]:
    for field in ("roles", "parameters", "choices", "forward", "terms"):
        if not isinstance(mapping := getattr(scheme, field), Mapping):
            yield f"has {_shown(mapping)} for its {field}, which is no mapping"
    for field in ("parameters", "choices", "forward", "terms"):
        for name, text in getattr(scheme, field).items():
            if not isinstance(name, str):
                yield f"has {_shown(name)} among its {field}, which is no name"
            if field != "choices" and not isinstance(text, str):
                what = "default" if field == "parameters" else "formula"
                yield f"has {_shown(text)} as the {what} of '{printable(name)}', which is no formula in quotes"
    for name in scheme.forward:
        if name not in FORWARD:
            guess = did_you_mean(name, FORWARD)
            yield f"wants '{printable(name)}' of the forward pass; expected a field of `model:` that is no size{guess}"
    for name, words in scheme.choices.items():
        if not isinstance(words, Mapping) or not words:
            yield f"has the choice '{printable(name)}' without words"
        elif wrong := [word for pair in words.items() for word in pair if not isinstance(word, str)]:
            yield f"has {_shown(wrong[0])} in the choice '{printable(name)}', which is no text"


def _wrong_names(scheme: Scheme) -> Iterator[str]:
    """Find names that formulas can't use, or that mean something else in them."""
    seen: dict[str, str] = {}
    for field in ("parameters", "choices", "terms"):
        for name in getattr(scheme, field):
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or keyword.iskeyword(name):
                yield f"has '{printable(name)}' among its {field}, which is no name that a formula can use"
            if name in TAKEN:
                yield f"has '{name}' among its {field}, a name that means something else already"
            if name in seen:
                yield f"has '{name}' both among its {seen[name]} and its {field}"
            seen[name] = field


def _wrong_roles(scheme: Scheme) -> Iterator[str]:
    for role, draw in scheme.roles.items():
        if role not in tuple(Role):
            yield f"answers for '{printable(str(role))}', which is no role{did_you_mean(str(role), tuple(Role))}"
        if not isinstance(draw, Draw):
            yield f"answers for {role} with {_shown(draw)}, which is no Draw"
        if draw.distribution not in DISTRIBUTIONS:
            guess = did_you_mean(str(draw.distribution), DISTRIBUTIONS)
            word = printable(str(draw.distribution)[:60])
            yield f"draws {role} from '{word}', which is none of {', '.join(DISTRIBUTIONS)}{guess}"
        cut = ("cut",) if draw.cut is not None or draw.distribution == "truncated" else ()
        unscaled = () if draw.unscaled is None else ("unscaled",)
        for field in ("formula", *unscaled, *cut):
            if not isinstance(text := getattr(draw, field), str):
                yield f"draws {role} with {_shown(text)} for its {field}, which is no formula in quotes"
        if not isinstance(draw.corrected, bool):
            yield f"draws {role} with {_shown(draw.corrected)} for its corrected, which is neither True nor False"
    if missing := [role for role in NEEDED if role not in scheme.roles]:
        yield f"leaves out {', '.join(missing)}"


def _wrong_formulas(scheme: Scheme) -> Iterator[str]:
    """Find formulas that are no arithmetic, or use names that there aren't; whether they have values, sizes decide."""
    names = dict.fromkeys((*OF_A_MODEL, *scheme.choices))
    own = {**names, **dict.fromkeys((*scheme.parameters, *scheme.terms))}
    placed = {**own, "layer": None, "branch": None}
    for word, formula in ((word, text) for words in scheme.choices.values() for word, text in words.items()):
        yield from _wrong_formula(f"choice '{printable(word)}'", formula, placed)
    for name, formula in scheme.terms.items():
        yield from _wrong_formula(f"term '{name}'", formula, placed)
    before = {**names, **dict.fromkeys(scheme.terms)}
    for name, formula in scheme.parameters.items():  # in their order: a default may use the ones before it
        yield from _wrong_formula(f"parameter '{name}'", formula, before)
        before[name] = None
    of_a_parameter = {**own, "fan_in": None, "fan_out": None, "layer": None}
    for role, draw in scheme.roles.items():
        for text in (draw.formula, draw.unscaled, draw.cut):
            if text is not None:
                yield from _wrong_formula(role, text, of_a_parameter)


def _wrong_formula(where: str, formula: str, names: Mapping[str, object]) -> Iterator[str]:
    try:
        require_names(formula, names)
    except PlanError as error:
        yield f"has a wrong formula for {where}: {printable(str(error))}"


def _shown(value: object) -> str:
    try:
        text = printable(repr(value))
    except Exception:  # an object of theirs, which may raise anything
        text = "an object"
    return f"{text[:60]} (of type {type(value).__name__})"


def _home(point: EntryPoint) -> str:
    return printable(point.dist.name or "unknown") if point.dist else "unknown"  # None where METADATA is not there


def _refuse(point: EntryPoint, what: str) -> NoReturn:
    expected = "" if "; expected " in what else f"; expected {EXPECTED}"
    raise UsageError(
        f"scheme '{printable(point.name)}': {printable(point.value)}, an entry point of the distribution "
        f"'{_home(point)}', {what}{expected}"
    ) from None
