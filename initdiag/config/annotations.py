"""The types of the schema, looked up by the path of a value: sections in sections, lists, and unions of those."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from initdiag.config.fields import Words
from initdiag.config.schema import Config
from initdiag.config.wording import listed

Path = tuple[str | int, ...]

_WORDS: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false", str: "a string"}
_SCALARS: dict[Any, tuple[type, ...]] = {int: (int, float), float: (int, float), str: (str,)}


@dataclass(frozen=True)
class Found:
    """What the schema has at a place where pydantic found an error.

    `path` is its path in the file: pydantic puts the branches of unions into its own. `branches` are those, each with
    the path of the union. `field` is None for entries of lists and for keys that the schema doesn't have, `annotation`
    only for the latter.
    """

    path: Path
    field: FieldInfo | None
    annotation: Any
    branches: tuple[tuple[Path, Any], ...] = ()


def find(loc: Path) -> Found:
    """Follow the location of a pydantic error through the schema."""
    path: Path = ()
    field: FieldInfo | None = None
    annotation: Any = Config
    branches: list[tuple[Path, Any]] = []
    parts = list(loc)
    while parts:
        part = parts.pop(0)
        choices = members(annotation)
        if len(choices) > 1:
            branch = next((choice for choice in choices if _is_called(choice, str(part))), None)
            branches.append((path, branch))
            annotation = branch
            continue
        path = (*path, part)
        section = section_of(annotation)
        if section is not None:
            field = section.model_fields.get(str(part)) if isinstance(part, str) else None
            annotation = None if field is None else field.annotation
        else:
            field = None
            annotation = _entry(choices[0]) if choices and isinstance(part, int) else None
    return Found(path, field, annotation, tuple(branches))


def field_at(path: Path) -> FieldInfo | None:
    """Return the field of the schema that a path of a file names, None where there is no such field."""
    field: FieldInfo | None = None
    section: type[BaseModel] | None = Config
    for part in path:
        field = section.model_fields.get(str(part)) if section else None
        section = section_of(field.annotation) if field else None
    return field


def members(annotation: Any) -> tuple[Any, ...]:
    """Return the branches of a union, but for null; of any other type, the type."""
    if get_origin(annotation) in (Union, UnionType):
        return tuple(member for branch in get_args(annotation) for member in members(branch))
    if get_origin(annotation) is Annotated and get_origin(get_args(annotation)[0]) in (Union, UnionType):
        return members(get_args(annotation)[0])
    return () if annotation in (None, NoneType) else (annotation,)


def bare(annotation: Any) -> Any:
    """Return a type without what is annotated to it."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def section_of(annotation: Any) -> type[BaseModel] | None:
    """Return the class of a section, also of one that may be null or something else; None for any other type."""
    for member in members(annotation):
        if isinstance(kind := bare(member), type) and issubclass(kind, BaseModel):
            return kind
    return None


def choices_of(annotation: Any) -> tuple[Any, ...]:
    """Return the words that a value may be."""
    kinds = map(bare, members(annotation))
    return tuple(word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind))


def fits(annotation: Any, value: object) -> bool:
    """Whether a value has the form of a branch of a union, whatever is wrong inside it."""
    kind = bare(annotation)
    if section_of(annotation) is not None:
        return isinstance(value, Mapping | BaseModel)
    if get_origin(kind) in (tuple, list):
        return isinstance(value, list | tuple)
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if get_origin(kind) is Literal:
        return isinstance(value, str)
    return isinstance(value, _SCALARS.get(kind, (object,)))


def sections(nested: bool = False) -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield the dotted name and the class of every section of a config; `nested`: also those in other sections."""
    inner: list[tuple[str, type[BaseModel]]] = [("", Config)]
    while inner:
        outer, parent = inner.pop(0)
        for name, field in parent.model_fields.items():
            section = section_of(field.annotation)
            if section is not None:
                dotted = f"{outer}{name}"
                yield dotted, section
                if nested:
                    inner.append((f"{dotted}.", section))


def written(field: FieldInfo) -> Any:
    """Return the type in which a field may be written: a validator may take others than the one that it returns."""
    for validator in field.metadata:
        if isinstance(validator, BeforeValidator) and validator.json_schema_input_type is not PydanticUndefined:
            named = validator.json_schema_input_type
            formula = Annotated[str, Words("a formula in quotes")]
            kinds = [formula if kind is str else kind for kind in members(named)]
            return Union[tuple(kinds)]  # noqa: UP007 (made of a list)
    return field.annotation


def expected(annotation: Any, short: bool = False) -> str:
    """Return a type in words: 'a whole number', 'one of pre, post', 'a list of strings', 'true or false'."""
    kinds = [_words(member, short) for member in members(annotation)]
    return " or ".join(dict.fromkeys(kinds)) if len(kinds) < 3 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"


def _words(annotation: Any, short: bool) -> str:
    notes = get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()
    for note in notes:
        if isinstance(note, Words):
            return note.text
    kind = bare(annotation)
    section = section_of(kind)
    if section is not None:
        return "a section" if short else f"a section with keys such as {listed(list(section.model_fields)[:3])}"
    if get_origin(kind) is Literal:
        return f"one of {listed(get_args(kind))}"
    if get_origin(kind) in (tuple, list):
        return _list(_entry(kind))
    return _WORDS.get(kind, "another value")


def _list(entry: Any) -> str:
    if entry is str:
        return "a list of strings, such as [A, B]"
    nullable = NoneType in get_args(entry)
    whole = any(bare(member) is int for member in members(entry))
    words = "whole numbers" if whole else "numbers"
    one, two = ("512", "1024") if whole else ("0.5", "0.25")
    return f"a list of {words}{' and nulls' if nullable else ''}, such as [{one}, {'null' if nullable else two}]"


def _entry(annotation: Any) -> Any:
    kinds = get_args(bare(annotation))
    return kinds[0] if kinds else None


def _is_called(annotation: Any, tag: str) -> bool:
    """Whether pydantic calls a branch so: 'bool', 'constrained-float', 'function-after[f(), str]', the name of a class,
    'tuple[int, ...]', "literal['a']"."""
    kind = bare(annotation)
    if get_origin(kind) in (tuple, list):
        return tag.startswith(("tuple", "list"))
    if get_origin(kind) is Literal:
        return tag.startswith("literal")
    return getattr(kind, "__name__", "") in re.findall(r"\w+", tag)
