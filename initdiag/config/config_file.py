"""A validated config together with where it came from, and the changes that a command line makes to it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from initdiag.config.schema import Config
from initdiag.config.validate import PARAMETERS, scheme_parameters, validate
from initdiag.config.wording import dotted
from initdiag.errors import Location, UsageError
from initdiag.schemes import scheme_named


@dataclass(frozen=True)
class ConfigFile:
    """A config that was loaded.

    `target` is what the user wrote, `path` the file that it meant (of a mapping: just its name), `folder` where the
    token files of the config are looked for, unless they are absolute.
    """

    name: str
    target: str
    path: Path
    folder: Path
    config: Config
    locations: Mapping[tuple[str | int, ...], Location] = field(default_factory=dict, repr=False, compare=False)

    def locate(self, path: str) -> Location:
        """Return the place of a key such as 'init.std': of the nearest section that is there, else line 1."""
        parts: list[str | int] = [
            int(index) if index else key for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path)
        ]
        while parts and tuple(parts) not in self.locations:
            parts.pop()
        return self.locations.get(tuple(parts)) or Location(str(self.path), 1)

    @property
    def tokens_path(self) -> Path | None:
        """The text or token file, ready to be opened; None for random ids."""
        return None if self.config.tokens.path is None else self.folder / self.config.tokens.path

    @property
    def tokenizer_path(self) -> Path | None:
        """The tokenizer.json, ready to be opened; None where bytes are the tokens."""
        return None if self.config.tokens.tokenizer is None else self.folder / self.config.tokens.tokenizer


def with_tokens(
    config_file: ConfigFile,
    source: str | None = None,
    path: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
) -> ConfigFile:
    """Return the config with other tokens. Paths are relative to the current directory.

    Another source drops the path, tokenizer and dtype of the old one, where they aren't given here.

    Raises:
        UsageError: an unknown source, a source without its path, or a path or tokenizer that the source has no use for.
    """
    tokens = config_file.config.tokens.model_dump(exclude_unset=True)
    if source is not None and source != config_file.config.tokens.source:
        for name in ("path", "tokenizer", "dtype"):
            tokens.pop(name, None)
    if source is not None:
        tokens["source"] = source
    if path is not None:
        tokens["path"] = from_here(path)
    if tokenizer is not None:
        tokens["tokenizer"] = from_here(tokenizer)
    return _changed(config_file, tokens=tokens)


def with_init(config_file: ConfigFile, scheme: str | None = None, seed: int | None = None) -> ConfigFile:
    """Return the config with another init scheme or seed.

    Parameters that the new scheme doesn't have, such as `std` for `default`, are dropped; the others are kept.

    Raises:
        UsageError: an unknown scheme, or a seed that is no whole number from 0 up to 2**63.
    """
    init = config_file.config.init.model_dump(exclude_unset=True)
    if scheme is not None:
        scheme_named(scheme)
        init = {key: value for key, value in init.items() if key not in PARAMETERS or key in scheme_parameters(scheme)}
        init["scheme"] = scheme
    if seed is not None:
        init["seed"] = seed
    return _changed(config_file, init=init)


def from_here(path: str | os.PathLike[str]) -> str:
    """Return a path of the command line as an absolute one; nothing stays nothing, which the schema refuses."""
    return str(Path(path).absolute()) if str(path).strip() else str(path)


def _changed(config_file: ConfigFile, **sections: dict[str, Any]) -> ConfigFile:
    result = validate(config_file.config.model_dump(exclude_unset=True) | sections)
    if isinstance(result, Config):
        return replace(config_file, config=result)
    raise UsageError("; ".join(f"{dotted(fault.path)}: {fault.message}" for fault in result))
