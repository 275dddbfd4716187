"""The commented config that `initdiag new` writes: every field of the schema, with its description and default."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from initdiag.config import presets
from initdiag.config.schema import Config
from initdiag.config.sentences import expected, sections
from initdiag.errors import UsageError

EXAMPLE: dict[str, dict[str, Any]] = {  # GPT-2 small; what isn't here is written as a comment
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
        for key, field in section.model_fields.items():
            given = key in EXAMPLE[name]
            value = _yaml(getattr(getattr(example, name), key))
            lines += [*_comment(_description(field), "  "), f"  {'' if given else '#'}{key}: {value}"]
    return "\n".join(lines) + "\n"


def write_starter(path: Path, force: bool = False) -> None:
    """Write a starter config; missing parent folders are made.

    Raises:
        UsageError: the file exists and force is not set, it is a directory, or it can't be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory; expected the name of a file to write")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(starter_text())
    except FileExistsError as error:
        if path.exists():
            raise UsageError(f"{path} exists; expected a new file, or --force to overwrite it") from None
        raise UsageError(f"can't write {path}: {error.strerror}") from None
    except OSError as error:
        raise UsageError(f"can't write {path}: {error.strerror}") from None


def _comment(text: str, indent: str) -> list[str]:
    prefix = f"{indent}# "
    return textwrap.wrap(text, 79, initial_indent=prefix, subsequent_indent=prefix, break_long_words=False)


def _description(field: FieldInfo) -> str:
    """Return the description of a field, with its choices where it has some."""
    annotations = (field.annotation, *get_args(field.annotation))
    choices = [expected(annotation) for annotation in annotations if get_origin(annotation) is Literal]
    return "; ".join([str(field.description), *choices[:1]])


def _yaml(value: Any) -> str:
    """Return a value in YAML's flow style, of which JSON is a part."""
    if isinstance(value, str):
        return value
    return json.dumps(list(value) if isinstance(value, tuple) else value)
