"""Something that is wrong with a config."""

from __future__ import annotations

from dataclasses import dataclass

from initdiag.config.annotations import Path


@dataclass(frozen=True)
class Fault:
    """Something wrong at a path; `involves` are the other paths that a fix could be made at."""

    path: Path
    message: str
    involves: tuple[Path, ...] = ()
