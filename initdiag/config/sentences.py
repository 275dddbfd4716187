"""One sentence for every way in which a value can break the schema: what was found, and what was expected."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from initdiag.config.aliases import key_alias, value_alias
from initdiag.config.annotations import (
    Path,
    bare,
    choices_of,
    expected,
    field_at,
    find,
    members,
    section_of,
    sections,
    written,
)
from initdiag.config.roles import OwnDraw
from initdiag.config.schema import Config
from initdiag.config.wording import found, listed, one_line, show
from initdiag.errors import did_you_mean

_BOUNDS = {  # pydantic's error type -> our words and the key of the bound in its context
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def sentence(error: ErrorDetails, path: Path, value: object) -> str:
    """Say what is wrong with the value that a pydantic error is about; `path` is where the file has it."""
    kind, context = error["type"], error.get("ctx", {})
    match kind:
        case "formula":  # the words of a formula, and of a field that may be one, are ours already
            return one_line(error["msg"], 300)
        case "missing":
            return f"not found, expected {_missing(field_at(path))}"
        case "extra_forbidden":
            return unknown_key(path)
        case "invalid_key":
            return f"found a key of type {type(path[-1]).__name__}, expected a name"
        case "finite_number":
            return f"found {show(value)}, expected a finite number"
        case _ if kind in _BOUNDS:
            words, bound = _BOUNDS[kind]
            return f"found {show(value)}, expected {words} {_number(context[bound])}"
    return _wrong_kind(error, value)


def _wrong_kind(error: ErrorDetails, value: object) -> str:
    at = find(error["loc"])
    if at.field is None and at.annotation is None:
        return f"{found(value)}, {one_line(error['msg'])}"  # pydantic's own words are better than none
    kind = written(at.field) if at.field else at.annotation
    words = choices_of(kind)
    if words and isinstance(value, str):
        ours = value_alias(value, words)
        guess = f" (here it is {ours})" if ours else did_you_mean(value[:100], map(str, words))
        return f"found {show(value)}, expected {expected(kind)}{guess}"
    null = " or null" if at.field is None and NoneType in get_args(kind) else ""
    return f"{found(value)}, expected {expected(kind)}{null}{_hint(value, kind)}"


def _number(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _missing(field: FieldInfo | None) -> str:
    if field is None:  # pydantic only misses what the schema has
        return "a value"
    section = section_of(field.annotation)
    if section is not None and field.is_required():
        required = [name for name, inner in section.model_fields.items() if inner.is_required()]
        return f"a section with {listed(required)}"
    return f"{expected(written(field))}: {field.description}"


def unknown_key(path: Path, known: tuple[str, ...] = ()) -> str:
    """Say what a key that the schema doesn't have should have been; `known`: the keys of its section, where they
    depend on other values."""
    key = str(path[-1])
    field = field_at(path[:-1])
    parent = (section_of(field.annotation) if field else None) or Config
    elsewhere = _homes(key)
    if elsewhere:
        return f"unknown key here, expected {' or '.join(elsewhere)}"
    if ours := key_alias(key):
        return f"unknown key (here it is {ours})"
    names = known or tuple(parent.model_fields)
    guess = did_you_mean(key[:100], names)
    return f"unknown key{guess}" if guess else f"unknown key, expected one of {listed(names)}"


def _homes(key: str) -> list[str]:
    """Return where the schema has a key: in its sections, else in sections of those, where roles have no names yet."""
    homes = [f"{name}.{key}" for name, section in sections() if key in section.model_fields]
    if homes:
        return homes
    if key in OwnDraw.model_fields:
        return [f"init.roles.ROLE.{key}"]
    return [f"{name}.{key}" for name, section in sections(nested=True) if key in section.model_fields]


def _hint(value: object, annotation: Any) -> str:
    """Return what to write instead, where that is plain."""
    kinds = [bare(member) for member in members(annotation)]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 and kinds == [int]:
        return f" (write {int(value)})"
    if isinstance(value, str) and bool in kinds and value.lower() in ("yes", "on", "no", "off"):
        return f" (write {'true' if value.lower() in ('yes', 'on') else 'false'})"
    if isinstance(value, str) and OwnDraw in kinds:
        return " (a formula needs its distribution, such as {normal: '1 / sqrt(fan_in)'})"
    if value is None and section_of(annotation) is not None:
        return ", or no such key at all"
    return ""


def value_at(raw: Any, path: Path) -> Any:
    """Return what a raw mapping has at a path, None where it has nothing."""
    for part in path:
        if isinstance(raw, Mapping):
            raw = raw.get(part)
        elif isinstance(raw, list | tuple) and isinstance(part, int) and part < len(raw):
            raw = raw[part]
        else:
            return None
    return raw
