"""What is diagnosed. The door is `load`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from initdiag.subjects.subject import Subject

if TYPE_CHECKING:
    from initdiag.config import ConfigFile


def load(file: ConfigFile) -> Subject:
    """Make the Subject of a config file (imports no torch)."""
    from initdiag.subjects.from_config import from_config  # pydantic, which `initdiag --help` needs not

    return from_config(file)


__all__ = ["Subject", "load"]
