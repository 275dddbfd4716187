"""`--set init.std=0.01`: single values put into the raw mapping of a config before it is validated."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from initdiag.config.annotations import Path
from initdiag.config.wording import dotted, found, one_line
from initdiag.config.yaml import parse_value
from initdiag.errors import ConfigError, Problem


def name_of(override: str) -> str:
    """Return how messages call an override."""
    return f"--set {one_line(override)}"


@dataclass(frozen=True)
class Overridden:
    """A raw mapping with overrides in it; `origins` says which of them set which path.

    `problems` are those of overrides that aren't KEY=VALUE, whose value is no YAML, or whose key leads into something
    that is no section.
    """

    raw: dict[str, Any]
    origins: Mapping[Path, str]
    problems: tuple[Problem, ...]


def apply(raw: Mapping[str, Any], overrides: Sequence[str]) -> Overridden:
    """Put overrides into a copy of a mapping; a later one wins.

    Keys are not checked here: the schema does that, for files and overrides alike.
    """
    changed: dict[str, Any] = copy.deepcopy(dict(raw))
    origins: dict[Path, str] = {}
    problems: list[Problem] = []
    for override in overrides:
        try:
            path, value = _split(override)
            _put(changed, path, value)
        except ValueError as error:
            problems.append(Problem(str(error), name_of(override)))
            continue
        except ConfigError as error:
            problems += [Problem(problem.message, name_of(override)) for problem in error.problems]
            continue
        origins = {other: text for other, text in origins.items() if other[: len(path)] != path}
        origins[path] = override
    return Overridden(changed, origins, tuple(problems))


def _split(override: str) -> tuple[tuple[str, ...], Any]:
    key, equals, text = override.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not equals or not all(path):
        raise ValueError("expected KEY=VALUE, such as init.std=0.01")
    return path, parse_value(text)


def _put(raw: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for depth, part in enumerate(path[:-1], start=1):
        if raw.get(part) is None:  # not there, or null: a section that has nothing in it yet
            raw[part] = {}
        raw = raw[part]
        if not isinstance(raw, dict):
            raise ValueError(f"{found(raw)} at {dotted(path[:depth])}, expected a section")
    raw[path[-1]] = value
