"""One sentence for every way in which a value can break the schema: what was found, and what was expected."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from initdiag.config.schema import Config
from initdiag.config.wording import found, listed, one_line, show
from initdiag.errors import did_you_mean

Path = tuple[str | int, ...]

_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}

_ALIASES = {  # what other code bases call our values
    "swiglu": "activation: silu with gated: true",
    "geglu": "activation: gelu with gated: true",
    "reglu": "activation: relu with gated: true",
    "swish": "silu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_erf": "gelu",
    "rope": "rotary",
    "absolute": "learned",
    "layer_norm": "layernorm",
    "rms_norm": "rmsnorm",
}

_BOUNDS = {  # pydantic's error type -> our words and the key of the bound in its context
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}


def sentence(error: ErrorDetails, value: object) -> str:
    """Say what is wrong with the value that a pydantic error is about."""
    path, kind, context = error["loc"], error["type"], error.get("ctx", {})
    match kind:
        case "missing":
            return f"not found, expected {_missing(field_at(path))}"
        case "extra_forbidden":
            return _unknown_key(path)
        case "invalid_key":
            return f"found a key of type {type(path[-1]).__name__}, expected a name"
        case "finite_number":
            return f"found {show(value)}, expected a finite number"
        case _ if kind in _BOUNDS:
            words, bound = _BOUNDS[kind]
            return f"found {show(value)}, expected {words} {_number(context[bound])}"
    return _wrong_kind(error, value)


def _wrong_kind(error: ErrorDetails, value: object) -> str:
    field = field_at(error["loc"])
    if field is None:
        # an entry of a list has no field of its own; for any other kind, pydantic's own words are better than none
        what = "expected a string" if error["type"] == "string_type" else one_line(error["msg"])
        return f"{found(value)}, {what}"
    if error["type"] == "literal_error" and isinstance(value, str):
        if value.lower() in _ALIASES:
            return f"found {show(value)}, expected {expected(field.annotation)} (here it is {_ALIASES[value.lower()]})"
        guess = did_you_mean(value[:100], map(str, _choices(field.annotation)))
        return f"found {show(value)}, expected {expected(field.annotation)}{guess}"
    return f"{found(value)}, expected {expected(field.annotation)}{_hint(value, field)}"


def field_at(path: Path) -> FieldInfo | None:
    """Return the field of the schema that a path names, None where there is no such field."""
    section: type[BaseModel] | None = Config
    field: FieldInfo | None = None
    for part in path:
        if section is None or part not in section.model_fields:
            return None
        field = section.model_fields[str(part)]
        section = _section(field.annotation)
    return field


def expected(annotation: Any) -> str:
    """Return a type in words: 'a whole number', 'one of pre, post', 'a list of strings'."""
    if _is_section(annotation):
        return f"a section with keys such as {listed(list(annotation.model_fields)[:3])}"
    if get_origin(annotation) is Literal:
        return f"one of {listed(get_args(annotation))}"
    if get_origin(annotation) is tuple:
        return "a list of strings, such as [A, B]"
    if annotation in _WORDS:
        return _WORDS[annotation]
    return " or ".join(expected(choice) for choice in get_args(annotation) if choice is not NoneType)


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the name and the class of every section."""
    for name, field in Config.model_fields.items():
        section: Any = field.annotation
        if _is_section(section):
            yield name, section


def _number(bound: float) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _section(annotation: Any) -> type[BaseModel] | None:
    """Return the class of a section, also of one that may be null; None for any other type."""
    sections: Iterator[type[BaseModel]] = filter(_is_section, (annotation, *get_args(annotation)))
    return next(sections, None)


def _choices(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) is Literal:
        return get_args(annotation)
    return tuple(choice for part in get_args(annotation) for choice in _choices(part))


def _missing(field: FieldInfo | None) -> str:
    if field is None:  # pydantic only misses what the schema has
        return "a value"
    section: Any = field.annotation
    if _is_section(section):
        required = [name for name, inner in section.model_fields.items() if inner.is_required()]
        return f"a section with {listed(required)}"
    return f"{expected(field.annotation)}: {field.description}"


def _unknown_key(path: Path) -> str:
    key = str(path[-1])
    field = field_at(path[:-1])
    parent = (_section(field.annotation) if field else None) or Config
    elsewhere = [f"{name}.{key}" for name, section in sections() if key in section.model_fields]
    if elsewhere:
        return f"unknown key here, expected {' or '.join(elsewhere)}"
    guess = did_you_mean(key[:100], parent.model_fields)
    return f"unknown key{guess}" if guess else f"unknown key, expected one of {listed(parent.model_fields)}"


def _hint(value: object, field: FieldInfo) -> str:
    """Return what to write instead, where that is plain."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 and field.annotation is int:
        return f" (write {int(value)})"
    if isinstance(value, str) and field.annotation is bool and value.lower() in ("yes", "on", "no", "off"):
        return f" (write {'true' if value.lower() in ('yes', 'on') else 'false'})"
    if value is None and _is_section(field.annotation):
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
