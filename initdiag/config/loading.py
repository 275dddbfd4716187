"""The way from what a user names to a ConfigFile: find the file, read it, override, validate."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from initdiag.config import presets
from initdiag.config.config_file import ConfigFile, from_here
from initdiag.config.fault import Fault
from initdiag.config.overrides import Overridden, apply, name_of
from initdiag.config.schema import Config
from initdiag.config.scheme_switch import covers, for_scheme
from initdiag.config.validate import plain, validate
from initdiag.config.wording import dotted, found, one_line
from initdiag.config.yaml import parse
from initdiag.errors import ConfigError, Location, Problem, UsageError, as_typed, did_you_mean, printable
from initdiag.schemes import scheme_named

MAX_BYTES = 1_000_000  # a config has a few hundred; PyYAML takes about 10 s for 1 MB

MOST_CONTEXT = 2**24  # of a module that doesn't say how many tokens it can read

_Key = tuple[str | int, ...]

_parsed = lru_cache(maxsize=8)(parse)  # with what is advised, a text is loaded again; nobody changes the document


def load(target: str, overrides: Sequence[str] = (), scheme: str | None = None) -> ConfigFile:
    """Load a config file, or a shipped config by its name.

    Args:
        target: a path, or a name such as "gpt2"; a path wins if it exists.
        overrides: "init.std=0.01"; the value is YAML, and its paths are relative to the current directory.
        scheme: that will stand in place of the file's, so that overrides may set its parameters.

    Raises:
        ConfigError: with all problems, those of the file in its order and then those of the overrides.
        UsageError: there is no such scheme.
    """
    path, shown = _find(target)
    document = _parsed(_read(path, shown), printable(shown))
    edit = _for_scheme(apply(document.value, overrides), scheme)
    config = _validated(edit, _Origins(shown, document.locations, edit.origins))
    return ConfigFile(
        name=printable(path.stem),
        target=printable(target),
        path=path,
        folder=path.parent,
        config=_from_here(config, edit.origins),
        locations=document.locations,
        options=_options(edit),
    )


def from_mapping(
    mapping: Mapping[str, Any] | Config,
    name: str,
    overrides: Sequence[str] = (),
    scheme: str | None = None,
    *,
    sized: bool = True,
) -> ConfigFile:
    """Make a ConfigFile of a mapping that has the form of a config file, or of a ready Config.

    Paths in it are relative to the current directory. `sized`: the sizes of its model are those that formulas use.

    Raises:
        ConfigError: with all problems, each of which starts with the name.
    """
    if not isinstance(mapping, Mapping | Config):
        raise ConfigError([Problem(f"{found(mapping)}, expected a mapping or a Config", name)])
    edit = _for_scheme(apply(plain(mapping), overrides), scheme)
    config = _validated(edit, _Origins(name, {}, edit.origins), sized)
    return ConfigFile(name, name, Path(name), Path(), config, options=_options(edit), sized=sized)


def without_model(
    name: str,
    target: str,
    vocab_size: int,
    context: int | None,
    overrides: Sequence[str] = (),
    scheme: str | None = None,
) -> ConfigFile:
    """Make the ConfigFile of a module: all sections but `model`, which only says how many tokens there are and fit.

    Raises:
        ConfigError: as from_mapping, and for an override of the model, which has no config of ours.
    """
    problems = [
        Problem(
            f"{name} has no config of ours; give its class or Hugging Face config other arguments with --kwargs, such "
            "as '{\"num_hidden_layers\": 2}'",
            name_of(override),
        )
        for override in overrides
        if override.partition(".")[0].partition("=")[0].strip() == "model"
    ]
    if problems:
        raise ConfigError(problems)
    size = {"vocab_size": vocab_size, "context": context or MOST_CONTEXT, "n_layers": 1, "n_heads": 1, "d_model": 2}
    file = from_mapping({"model": size, "tokens": {}}, name, overrides, scheme, sized=False)
    return replace(file, target=target)


def _for_scheme(edit: Overridden, scheme: str | None) -> Overridden:
    init = edit.raw.get("init", {})
    if scheme is None or not isinstance(init, Mapping) or not any(path[0] == "init" for path in edit.origins):
        return edit
    if (option := edit.origins.get(("init", "scheme"))) is not None:
        raise UsageError(f"--scheme {scheme} and {name_of(option)}: expected one of them")
    switched = for_scheme(init, scheme_named(scheme), partial(covers, edit.origins))
    return replace(edit, raw={**edit.raw, "init": switched})


def _options(edit: Overridden) -> dict[_Key, str]:
    return {key: name_of(override) for key, override in edit.origins.items()}


def _validated(edit: Overridden, origins: _Origins, sized: bool = True) -> Config:
    result = validate(plain(edit.raw), sized)
    if not isinstance(result, Config):
        raise ConfigError([*origins.problems(result), *edit.problems])
    if edit.problems:
        raise ConfigError(edit.problems)
    return result


@dataclass(frozen=True)
class _Origins:
    """Who wrote what: a file with locations (or a mapping without any), and overrides of single paths."""

    name: str
    locations: Mapping[_Key, Location] = field(default_factory=dict)
    overrides: Mapping[_Key, str] = field(default_factory=dict)

    def problems(self, faults: Sequence[Fault]) -> list[Problem]:
        """Return faults as problems: those of the file in its order, then those of the overrides in theirs."""
        order = list(self.overrides.values())
        placed = [(self._override(fault), fault) for fault in faults]
        in_file = [self._in_file(fault) for override, fault in placed if override is None]
        in_file.sort(
            key=lambda problem: (at.line, at.column) if isinstance(at := problem.location, Location) else (0, 0)
        )
        overridden = sorted(
            ((override, fault) for override, fault in placed if override is not None),
            key=lambda pair: order.index(pair[0]),
        )
        return in_file + [self._in_override(override, fault) for override, fault in overridden]

    def _override(self, fault: Fault) -> str | None:
        """Return the override that is to blame: of the path itself, or of one that the fault also depends on."""
        for path in (fault.path, *fault.involves):
            for end in range(len(path), 0, -1):
                if path[:end] in self.overrides:
                    return self.overrides[path[:end]]
        # `--set a.b=1` has made the unknown section a, `--set a.b.c=1` the section b, and so on
        for end in range(len(fault.path), min(len(fault.path), 2) - 1, -1):
            section = fault.path[:end]
            if section in self.locations:
                break
            for path, override in self.overrides.items():
                if path[:end] == section:
                    return override
        return None

    def _in_file(self, fault: Fault) -> Problem:
        for path in (fault.path, *fault.involves):
            if path in self.locations:
                return Problem(fault.message, dotted(fault.path), self.locations[path])
        path = fault.path
        while path and path not in self.locations:
            path = path[:-1]
        if path in self.locations:
            return Problem(fault.message, dotted(fault.path), self.locations[path])
        return Problem(fault.message, f"{self.name}: {dotted(fault.path)}" if fault.path else self.name)

    def _in_override(self, override: str, fault: Fault) -> Problem:
        if self.overrides.get(fault.path) == override:
            return Problem(fault.message, name_of(override))
        return Problem(fault.message, f"{name_of(override)}: {dotted(fault.path)}")


def _from_here(config: Config, overridden: Mapping[_Key, str]) -> Config:
    """Make the token paths that came from overrides absolute; all others stay relative to the file."""
    update = {
        name: from_here(value)
        for name in ("path", "tokenizer")
        if (value := getattr(config.tokens, name)) is not None
        and (("tokens", name) in overridden or ("tokens",) in overridden)
    }
    return config.model_copy(update={"tokens": config.tokens.model_copy(update=update)}) if update else config


def _stop(shown: str, message: str) -> ConfigError:
    return ConfigError([Problem(message, one_line(shown))])


def _find(target: str) -> tuple[Path, str]:
    """Return the file, and what locations call it: what the user wrote, or for a shipped config its path."""
    path = Path(target)
    try:
        if target and path.is_dir():
            shipped = f" (the shipped config is {presets.path_of(target)})" if target in presets.known() else ""
            hub = path / "config.json"
            said = f'; {hub} has no "model_type", by which it would be a Hugging Face config' if hub.is_file() else ""
            raise _stop(target, f"is a directory; expected a YAML file{shipped}{said}")
        if target and path.exists():
            return path, target
    except OSError as error:  # a name that is too long, a folder without permission
        raise _stop(target, f"can't be read: {error.strerror}") from None
    if target in presets.known():
        path = presets.path_of(target)
        return path, as_typed(path)
    near = {file.stem: file.name for file in path.parent.glob("*.y*ml")} if path.suffix else {}
    stems = difflib.get_close_matches(path.stem, near, n=1)  # a common ending makes no two names alike
    guess = f" (did you mean '{near[stems[0]]}'?)" if stems else ""
    guess = guess or did_you_mean(path.stem, presets.known())
    message = f"no such file, and no shipped config of that name; 'initdiag new --list' lists them{guess}"
    raise _stop(target or "''", message)


def _read(path: Path, shown: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _stop(shown, f"can't be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise _stop(shown, f"has more than {MAX_BYTES:,} bytes; expected a config")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise _stop(shown, "is UTF-16; expected UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        location = Location(shown, before.count(b"\n") + 1, len(before) - before.rfind(b"\n"))
        message = f"found the byte 0x{data[error.start]:02x}, expected UTF-8 text"
        raise ConfigError([Problem(message, "", location)]) from None
