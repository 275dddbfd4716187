"""A raw mapping to a Config, or everything that is wrong with it, at once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from initdiag.config.schema import Config, Init
from initdiag.config.sentences import Path, sentence, value_at
from initdiag.config.wording import listed, show
from initdiag.errors import did_you_mean
from initdiag.model.architecture import Architecture, inconsistencies
from initdiag.schemes import SCHEMES

# the parameters of schemes that a config can set
PARAMETERS = tuple(name for name in Init.model_fields if name not in ("scheme", "seed"))


@dataclass(frozen=True)
class Fault:
    """Something wrong at a path; `involves` are the other paths that a fix could be made at."""

    path: Path
    message: str
    involves: tuple[Path, ...] = ()


def validate(raw: Mapping[str, Any]) -> Config | tuple[Fault, ...]:
    """Return the config, or all faults."""
    faults = [*_cross_field(raw)]
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        for detail in details:
            # default_factory_not_called only repeats that another field is wrong; the model's value_error repeats
            # an inconsistency that _cross_field has found in the raw mapping
            if detail["type"] not in ("default_factory_not_called", "value_error"):
                faults.append(Fault(detail["loc"], sentence(detail, value_at(raw, detail["loc"]))))
        if not faults:
            faults = [Fault(detail["loc"], detail["msg"]) for detail in details]
        return tuple(faults)
    return tuple(faults) or config


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


def scheme_parameters(scheme: str) -> tuple[str, ...]:
    """Return the parameters of a scheme that a config can set."""
    return tuple(name for name in PARAMETERS if name in SCHEMES[scheme].parameters)


def _cross_field(raw: Mapping[str, Any]) -> Iterator[Fault]:
    """Yield what no field can know alone; values of a wrong type are left to pydantic."""
    model, init, tokens = (
        section if isinstance(section := raw.get(name, {}), Mapping) else {} for name in ("model", "init", "tokens")
    )
    for field, message in inconsistencies(model):
        named = [name.split(".") for name in re.findall(r"\w+(?:\.\w+)*", message)]
        involved = tuple(("model", *name) for name in named if name[0] in Architecture.model_fields)
        yield Fault(("model", *field.split(".")), message, involved)
    yield from _init(init)
    yield from _tokens(tokens, model)


def _init(init: Mapping[str, Any]) -> Iterator[Fault]:
    scheme = init.get("scheme", Init.model_fields["scheme"].default)
    if not isinstance(scheme, str):
        return
    if scheme not in SCHEMES:
        guess = did_you_mean(scheme[:100], SCHEMES)
        yield Fault(("init", "scheme"), f"found {show(scheme)}, expected one of {listed(SCHEMES)}{guess}")
        return
    for name in PARAMETERS:
        if init.get(name) is not None and name not in SCHEMES[scheme].parameters:
            message = f"scheme '{scheme}' has no such parameter, expected one of {listed(scheme_parameters(scheme))}"
            if not scheme_parameters(scheme):
                message = f"scheme '{scheme}' has no parameters, expected none"
            yield Fault(("init", name), message, (("init", "scheme"),))


def _tokens(tokens: Mapping[str, Any], model: Mapping[str, Any]) -> Iterator[Fault]:
    length, context = _whole(tokens.get("length")), _whole(model.get("context"))
    if length > context > 0:
        message = f"found {show(length)}, expected at most the model's context, {show(context)}"
        yield Fault(("tokens", "length"), message, (("model", "context"),))
    source = tokens.get("source", "random")
    if source not in ("random", "text", "file"):
        return
    if source != "random" and tokens.get("path") is None:
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
