"""A validated config together with where it came from, and the changes that a command line makes to it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from initdiag.config.init import NO_PARAMETERS, Init
from initdiag.config.schema import Config
from initdiag.config.scheme_switch import covers, for_scheme
from initdiag.config.validate import validate
from initdiag.config.wording import dotted
from initdiag.errors import Location, Option, Place, UsageError, printable
from initdiag.schemes import scheme_named

_Key = tuple[str | int, ...]


@dataclass(frozen=True)
class ConfigFile:
    """A config that was loaded.

    `options` are the values that the command line set, and by which words. `target` is what the user wrote (what can't
    be printed is escaped), `path` the file that it meant (of a mapping: just its name), `folder` where the
    token files of the config are looked for, unless they are absolute. `sized`: its model is the one that formulas are
    about, and not a stand-in for a module.
    """

    name: str
    target: str
    path: Path
    folder: Path
    config: Config
    locations: Mapping[_Key, Location] = field(default_factory=dict, repr=False, compare=False)
    options: Mapping[_Key, str] = field(default_factory=dict, repr=False, compare=False)
    sized: bool = True

    def locate(self, *paths: str) -> Place:
        """Return who sets the first of some keys, such as 'init.std', that anybody sets: an option, else a line.

        Where nobody does, the place of the nearest section of the last that is there, else line 1.
        """
        keys = [
            tuple(int(index) if index else key for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path))
            for path in paths
        ]
        *rather, last = keys
        kept = [key for key in rather if not self._left_behind(key)]
        for key in (*kept, last, *(last[:length] for length in range(len(last) - 1, 0, -1))):
            if key in self.options:
                return Option(self.options[key])
            if key in self.locations:
                return self.locations[key]
        return self.locations.get(()) or Location(printable(str(self.path)), 1)

    def _left_behind(self, key: _Key) -> bool:
        """Whether a --scheme, which goes without it, is what an option says of a key."""
        return self.options.get(key, "").startswith("--scheme ") and key != ("init", "scheme")

    def set_by_option(self, path: _Key) -> bool:
        """Whether an option has set a path, something in it, or the section that it is in."""
        return covers(self.options, path)

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
    return _changed(config_file, {}, tokens=tokens)


def with_init(
    config_file: ConfigFile, scheme: str | None = None, seed: int | None = None, *, drop_options: bool = False
) -> ConfigFile:
    """Return the config with another init scheme or seed.

    What goes along to another scheme is said in `for_scheme`; with `drop_options`, a parameter that an option has set
    and the scheme doesn't have is dropped, and no error.

    Raises:
        UsageError: an unknown scheme, a parameter set by an option that it doesn't have, a formula that can't be
            computed, or a seed that is no whole number from 0 up to 2**63.
    """
    if scheme is None and seed is None:
        return config_file  # as it was validated: a formula of a deep model takes milliseconds
    init = config_file.config.init.model_dump(exclude_unset=True)
    options: dict[_Key, str] = {}
    if scheme is not None:
        new = scheme_named(scheme)
        for name in [name for name in init if name not in NO_PARAMETERS and name not in new.settable]:
            option = config_file.options.get(("init", name)) or config_file.options.get(("init",))
            if option is not None and not drop_options:
                raise UsageError(
                    f"{option}: scheme '{scheme}' has no parameter '{name}', expected "
                    + (f"one of {', '.join(new.settable)}" if new.settable else "none")
                )
            del init[name]
        before, init = init, for_scheme(init, new, config_file.set_by_option)
        if before != init:
            kept = init.get("roles", {})
            gone = [name for name in Init.model_fields if name not in init]
            paths = [path for path in config_file.locations if path[:2] == ("init", "roles") and path[2:3] != ()]
            keys = [("init", name) for name in ("scheme", *gone)] + [path for path in paths if path[2] not in kept]
            options = dict.fromkeys(keys, f"--scheme {scheme}")
    if seed is not None:
        init["seed"] = seed
        options[("init", "seed")] = f"--seed {seed}"
    return _changed(config_file, options, init=init)


def from_here(path: str | os.PathLike[str]) -> str:
    """Return a path of the command line as an absolute one; nothing stays nothing, which the schema refuses.

    Raises:
        UsageError: the current directory doesn't exist any more.
    """
    try:
        return str(Path(path).absolute()) if os.fspath(path).strip() else os.fspath(path)
    except FileNotFoundError:
        raise UsageError(f"{os.fspath(path)}: the current directory doesn't exist any more") from None


def _changed(config_file: ConfigFile, options: Mapping[_Key, str], **sections: dict[str, Any]) -> ConfigFile:
    result = validate(config_file.config.model_dump(exclude_unset=True) | sections, config_file.sized)
    if isinstance(result, Config):
        return replace(config_file, config=result, options={**config_file.options, **options})
    raise UsageError("; ".join(f"{dotted(fault.path)}: {fault.message}" for fault in result))
