"""The fields of a Hugging Face config: from JSON to transformers' object, and sentences for what it refuses."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from initdiag.errors import UsageError, did_you_mean, printable
from initdiag.subjects.quiet import quiet


def config_from(raw: dict[str, Any], kwargs: dict[str, Any], shown: str, text: str) -> Any:
    """Make the config object of transformers, with kwargs in place of fields of the file.

    Args:
        raw: what the file holds. shown, text: its name and text, for messages.

    Raises:
        UsageError: an unknown model_type or name in kwargs, or a value that transformers refuses.
    """
    from transformers import __version__
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known = list(CONFIG_MAPPING.keys())
    kind = raw.get("model_type")
    if kind is None:
        raise UsageError(
            f'{shown} has no "model_type"; expected one that transformers {__version__} knows, such as gpt2'
        )
    if not isinstance(kind, str) or kind not in known:
        raise UsageError(
            f"{place(shown, text, 'model_type')}: transformers {__version__} has no model_type "
            f"{printable(repr(kind))[:60]}{did_you_mean(str(kind), known)}"
        )
    with quiet():
        cls = CONFIG_MAPPING[kind]
    _check_names(cls, kwargs, kind)
    fields = _merged(raw, kwargs, dict(getattr(cls, "attribute_map", {})))
    try:
        with quiet():
            return cls.from_dict(fields)
    except Exception as error:
        field, message = _shortened(error)
        # a field that kwargs have set is theirs to correct
        where = "--kwargs" if field in kwargs else place(shown, text, field)
        raise UsageError(f"{where}: {field and f'{field}: '}{message}") from error


def _check_names(cls: Any, kwargs: Mapping[str, Any], kind: str) -> None:
    names = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set(vars(cls()))
    names |= set(getattr(cls, "attribute_map", {}))
    for name in kwargs:
        if name not in names:
            raise UsageError(f"--kwargs: a {kind} config has no '{printable(name)}'{did_you_mean(name, sorted(names))}")


def _merged(raw: dict[str, Any], kwargs: dict[str, Any], aliases: dict[str, str]) -> dict[str, Any]:
    """Put kwargs over the fields of a file, whichever of its names a field goes by.

    Lists with one entry a layer are cut to a smaller number of layers.
    """
    fields = {aliases.get(key, key): copy.deepcopy(value) for key, value in raw.items()}
    layers = aliases.get("num_hidden_layers", "num_hidden_layers")
    before = fields.get(layers)
    given = {aliases.get(name, name): value for name, value in kwargs.items()}
    for key, value in given.items():
        old = fields.get(key)
        fields[key] = _merged(old, dict(value), {}) if isinstance(old, dict) and isinstance(value, Mapping) else value
    after = fields.get(layers)
    if isinstance(before, int) and isinstance(after, int) and after < before:
        for key, value in fields.items():
            if isinstance(value, list) and len(value) == before and key not in given:
                fields[key] = value[:after]
    return fields


def _shortened(error: Exception) -> tuple[str, str]:
    """Return the field that an error of transformers is about ("" for none), and what it says, in one sentence."""
    text = error.args[0] if isinstance(error, KeyError) and error.args else str(error)
    lines = [line.strip() for line in str(text).splitlines() if line.strip()] or [type(error).__name__]
    field = re.search(r"for field '(\w+)'", lines[0])
    message = re.sub(r"^\w+(Error|Exception): ", "", lines[-1]).removeprefix('"').removesuffix('"')
    if field:
        message = message.removeprefix(f"Field '{field[1]}' ")
    return field[1] if field else "", printable(message)[:300]


def place(shown: str, text: str, key: str) -> str:
    """Return "config.json:3:5", where a key stands in a file; the file alone where it isn't there."""
    found = re.search(rf'"{re.escape(key)}"\s*:', text) if key else None
    if not found:
        return shown
    line = text.count("\n", 0, found.start()) + 1
    return f"{shown}:{line}:{found.start() - text.rfind(chr(10), 0, found.start())}"
