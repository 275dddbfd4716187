"""The commented config that `initdiag new` writes: every field of the schema, with its description and default."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from initdiag.config import presets
from initdiag.config.annotations import choices_of, section_of, sections
from initdiag.config.init import NO_PARAMETERS
from initdiag.config.schema import Config
from initdiag.errors import UsageError
from initdiag.schemes import SCHEMES

EXAMPLE: dict[str, dict[str, Any]] = {  # GPT-2 small; what isn't here is written as a comment
    "about": {"summary": "my model"},
    "model": {
        "vocab_size": 50257,
        "context": 1024,
        "d_model": 768,
        "n_layers": 12,
        "n_heads": 12,
        "activation": "gelu_tanh",
    },
    "init": {"scheme": "scaled", "std": 0.02},
    "tokens": {"source": "random"},
    "gate": {"max_excess": 2.0},  # a section needs at least one key
}

_SCHEMA = (
    "The line above helps editors on this machine. For a repository: 'initdiag schema > initdiag.schema.json' beside "
    "this file, and $schema=initdiag.schema.json."
)
_HEAD = (
    "A config for initdiag, with the sizes of GPT-2 small. Change the values to those of your model, then run "
    "'initdiag check' with this file. A line such as '#name: value' shows a default: remove the # to set it."
)


def starter_text() -> str:
    """Return the text of a starter config."""
    example = Config.model_validate(EXAMPLE)
    lines = [f"# yaml-language-server: $schema={presets.schema_path().absolute().as_uri()}"]
    lines += [*_comment(_SCHEMA, ""), "", *_comment(_HEAD, "")]
    for name, section in sections():
        lines += ["", *_comment(str(Config.model_fields[name].description), ""), f"{name}:"]
        for key, field in _shown(name, section):
            given = key in EXAMPLE[name]
            value = _yaml(getattr(getattr(example, name), key))
            lines += [*_comment(_description(field), "  "), *_keys(field)]
            lines += [f"  {'' if given else '#'}{key}: {value}"]
    return "\n".join(lines) + "\n"


def copy_text(name: str) -> str:
    """Return the text of a shipped config, with the schema found from anywhere on this machine.

    Raises:
        UsageError: there is no shipped config of that name.
    """
    text = presets.path_of(name).read_text(encoding="utf-8")
    return text.replace("$schema=initdiag.schema.json", f"$schema={presets.schema_path().absolute().as_uri()}")


def write_starter(path: Path, force: bool = False, copied: str | None = None) -> None:
    """Write a starter config, or a copy of a shipped one; missing parent folders are made.

    Raises:
        UsageError: the file exists and force is not set, it is a directory, it can't be written, or there is no shipped
            config of that name.
    """
    text = starter_text() if copied is None else copy_text(copied)
    if path.is_dir():
        raise UsageError(f"{path} is a directory; expected the name of a file to write")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as error:
        if path.exists():
            raise UsageError(f"{path} exists; expected a new file, or --force to overwrite it") from None
        raise UsageError(f"can't write {path}: {error.strerror}") from None
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror}") from None


def _shown(name: str, section: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """Yield the fields of a section: of `init`, those parameters that the example's scheme has."""
    settable = SCHEMES[EXAMPLE["init"]["scheme"]].settable
    for key, field in section.model_fields.items():
        if name != "init" or key in settable or key in NO_PARAMETERS:
            yield key, field


def _comment(text: str, indent: str, further: str = "") -> list[str]:
    prefix = f"{indent}# "
    return textwrap.wrap(text, 79, initial_indent=prefix, subsequent_indent=prefix + further, break_long_words=False)


def _description(field: FieldInfo) -> str:
    """Return the description of a field, with its choices where it has some."""
    choices = choices_of(field.annotation)
    return "; ".join([str(field.description), *([f"one of {', '.join(choices)}"] if choices else [])])


def _keys(field: FieldInfo) -> list[str]:
    """Return the keys of a section inside a section, with their descriptions."""
    section = section_of(field.annotation)
    lines: list[str] = []
    for name, inner in section.model_fields.items() if section else ():
        lines += _comment(f"  {name}: {_description(inner)}", "  ", "    ")
    return lines


def _yaml(value: Any) -> str:
    """Return a value in YAML's flow style."""
    match value:
        case BaseModel():
            return _yaml(value.model_dump())
        case Mapping():
            return "{" + ", ".join(f"{key}: {_yaml(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(_yaml, value)) + "]"
        case str():
            return value
        case _:
            return json.dumps(value)
