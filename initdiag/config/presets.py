"""The configs that are shipped with initdiag, found by name."""

from __future__ import annotations

from pathlib import Path

from initdiag.errors import UsageError, did_you_mean

_PACKAGE = Path(__file__).parent.parent


def folder() -> Path:
    """Return the folder of the shipped configs: inside the installed package, or beside it in a checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def names() -> tuple[str, ...]:
    """Return the names of the shipped configs, in alphabetical order."""
    return tuple(sorted(path.stem for path in folder().glob("*.yaml")))


def path_of(name: str) -> Path:
    """Return the file of a shipped config.

    Raises:
        UsageError: there is no shipped config of that name.
    """
    if name not in names():
        raise UsageError(
            f"no shipped config '{name}'; expected one of the {len(names())} that 'initdiag new --list' lists"
            + did_you_mean(name, names())
        )
    return folder() / f"{name}.yaml"


def schema_path() -> Path:
    """Return the JSON schema of config files, which editors read."""
    return folder() / "initdiag.schema.json"
