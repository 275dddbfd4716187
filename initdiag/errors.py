"""What can go wrong, as a tree. Everything here ends a command with exit code 2 and one clear sentence.

InitdiagError
├── ConfigError     a YAML file or an override: every problem at once, each with file:line:column
├── UsageError      an argument of a command or of a Python function
├── TokenError      token ids that can't be read or don't fit the vocabulary
├── PlanError       a scheme that leaves a parameter out, names it twice, or can't be evaluated
└── RunError        the forward itself: out of memory, a device that isn't there, a module that fails
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Location:
    """A place in a text file; lines and columns count from 1."""

    file: str
    line: int
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True)
class Option:
    """A place on the command line, or in a Python call: `--scheme default`."""

    text: str

    def __str__(self) -> str:
        return self.text


Place = Location | Option


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a config: where, at which key, what was found and what was expected."""

    message: str
    path: str = ""
    location: Place | None = None

    def __str__(self) -> str:
        return ": ".join(str(part) for part in (self.location, self.path, self.message) if part)


class InitdiagError(Exception):
    """Base of every error that initdiag raises on purpose."""


class ConfigError(InitdiagError):
    """A config that can't be used; `problems` has all of them, in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UsageError(InitdiagError):
    """A bad argument."""


class TokenError(InitdiagError):
    """Tokens that can't be read, or an id outside the vocabulary."""


class PlanError(InitdiagError):
    """A scheme that doesn't answer for every parameter exactly once."""


class RunError(InitdiagError):
    """A forward that could not be run."""


def printable(text: str) -> str:
    """Escape what can't be printed: a file name may hold line breaks, escape sequences, or bytes that are no text."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def as_typed(path: Path) -> str:
    """Return a path as a person would type it: relative where it lies below the current directory, on one line."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # somebody deleted it
        return printable(str(path))
    return printable(str(path.relative_to(here) if path.is_relative_to(here) else path))


def require_one_of(option: str, value: str, choices: Iterable[str]) -> None:
    """Check the value of an option.

    Raises:
        UsageError: it is none of the choices.
    """
    choices = list(choices)
    if value not in choices:
        raise UsageError(f"{option} {value}: expected one of {', '.join(choices)}{did_you_mean(value, choices)}")


def require_type(name: str, value: object, kinds: tuple[type, ...], expected: str) -> None:
    """Check the type of an argument of a Python function.

    Raises:
        UsageError: it has another type; a bool is no number.
    """
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        shown = printable(repr(value)[:60])
        raise UsageError(f"{name}: found {shown} (of type {type(value).__name__}), expected {expected}")


def closest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that a word is taken for, whatever its case; None when nothing is close."""
    by_lower = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[near[0]] if near else None


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Return ' (did you mean 'x'?)', or '' when nothing is close."""
    close = closest(word, choices)
    return f" (did you mean '{close}'?)" if close else ""
