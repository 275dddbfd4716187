"""A raw mapping to a Config, or everything that is wrong with it, at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from initdiag.config.annotations import Path, find, fits
from initdiag.config.fault import Fault
from initdiag.config.formula_faults import formula_faults
from initdiag.config.init import Init
from initdiag.config.init_faults import init_faults
from initdiag.config.schema import Config, Source
from initdiag.config.sentences import sentence, value_at
from initdiag.config.wording import show
from initdiag.model import Architecture
from initdiag.model.consistency import inconsistencies

# the first two only repeat that another field is wrong; the model's value_error repeats an inconsistency that
# _cross_field has found in the raw mapping
_ECHOES = ("default_factory_not_called", "formula_depends", "value_error")


def validate(raw: Mapping[str, Any], sized: bool = True) -> Config | tuple[Fault, ...]:
    """Return the config, or all faults. `sized`: formulas of init are computed with the sizes of the model."""
    faults = [*_cross_field(raw)]
    config: Config | None = None
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        faults += _told([detail for detail in details if detail["type"] not in _ECHOES], raw)
        if not faults:
            return tuple(Fault(detail["loc"], detail["msg"]) for detail in details)
    if sized and not any(fault.path[:1] in (("model",), ("init",)) for fault in faults):
        faults += _computed(raw, config)
    if faults or config is None:
        return tuple(faults)
    return config


def _computed(raw: Mapping[str, Any], config: Config | None) -> Iterator[Fault]:
    """Yield what is wrong with formulas, also where another section is wrong: all problems come at once."""
    try:
        init = config.init if config else Init.model_validate(raw.get("init", {}))
        model = config.model if config else Architecture.model_validate(raw["model"])
    except ValidationError:
        return
    yield from formula_faults(init, model)


def _told(details: Sequence[ErrorDetails], raw: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield one fault for each path: pydantic reports every branch of a union, also those that nobody meant."""
    places = [(detail, find(detail["loc"])) for detail in details]
    meant = {
        union
        for _, place in places
        for union, branch in place.branches
        if branch is not None and fits(branch, value_at(raw, union))
    }
    told: dict[Path, ErrorDetails] = {}
    for detail, place in places:
        if any(union in meant and not fits(branch, value_at(raw, union)) for union, branch in place.branches):
            continue
        told.setdefault(place.path, detail)
    for path, detail in told.items():
        yield Fault(path, sentence(detail, path, value_at(raw, path)))


def plain(value: Any, depth: int = 0) -> Any:
    """Return values as strict pydantic takes them: dicts, tuples in place of lists, strings in place of paths."""
    if depth > 4:  # deeper than any section: wrong whatever it is, and perhaps endless
        return value
    match value:
        case BaseModel():
            return plain(value.model_dump(exclude_unset=True), depth)
        case Mapping():
            return {key: plain(item, depth + 1) for key, item in value.items()}
        case list() | tuple():
            return tuple(plain(item, depth + 1) for item in value)
        case os.PathLike():
            return os.fspath(value)
        case _:
            return value


def _cross_field(raw: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield what no field can know alone; values of a wrong type are left to pydantic."""
    model, init, tokens = (
        section if isinstance(section := raw.get(name, {}), Mapping) else {} for name in ("model", "init", "tokens")
    )
    for field, message in inconsistencies(model):
        path = field.split(".")
        named = [name.split(".") for name in re.findall(r"\w+(?:\.\w+)*", message)]
        # a section may have a field of the same name as the model, which then means its own
        own = path[-1:] if len(path) > 1 else []
        others = tuple(("model", *name) for name in named if name[0] in Architecture.model_fields and name != own)
        yield Fault(("model", *path), message, others)
    yield from init_faults(init)
    yield from _tokens(tokens, model)


def _tokens(tokens: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[Fault]:
    length, context = _whole(tokens.get("length")), _whole(model.get("context"))
    if length > context > 0:
        message = f"found {show(length)}, expected at most the model's context, {show(context)}"
        yield Fault(("tokens", "length"), message, (("model", "context"),))
    source = tokens.get("source", "random")
    if source not in get_args(Source):
        return
    if source in ("text", "file") and tokens.get("path") is None:
        what = "a text file" if source == "text" else "a .bin or .npy file"
        message = f"not found, expected {what}, as the source is {source}"
        yield Fault(("tokens", "path"), message, (("tokens", "source"),))
    wanted = {"path": ("text", "file"), "tokenizer": ("text",), "dtype": ("file",)}
    for name, sources in wanted.items():
        value = tokens.get(name)
        if value is not None and source not in sources:
            message = f"found {show(value)}, expected source {' or '.join(sources)} with it; the source is {source}"
            yield Fault(("tokens", name), message, (("tokens", "source"),))
        elif name != "dtype" and isinstance(value, str) and (not value.strip() or "\0" in value):
            yield Fault(("tokens", name), f"found {show(value)}, expected the name of a file")


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
