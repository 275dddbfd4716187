"""What a run depends on, as far as it can be told without importing it."""

from __future__ import annotations

import platform


def versions() -> dict[str, str]:
    """Return the versions of initdiag and Python."""
    return {"initdiag": own_version(), "python": platform.python_version()}


def own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version  # it takes as long to import as all else of --help

    try:
        return version("initdiag")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"
