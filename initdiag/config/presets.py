"""The configs that are shipped with initdiag, found by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from initdiag.errors import UsageError, did_you_mean

_PACKAGE = Path(__file__).parent.parent


# other names of models that are shipped; the last two have the shape of an older release
ALIASES = {
    "gpt2-small": "gpt2",
    "nanogpt-124m": "nanogpt",
    "deepseek-r1": "deepseek-v3",
    "llama-3.3-70b": "llama-3.1-70b",
}


def folder() -> Path:
    """Return the folder of the shipped configs: inside the installed package, or beside it in a checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def names() -> tuple[str, ...]:
    """Return the names of the shipped configs, in alphabetical order."""
    return tuple(sorted(path.stem for path in folder().glob("*.yaml")))


def known() -> tuple[str, ...]:
    """Return all names that a shipped config is found by."""
    return (*names(), *ALIASES)


def path_of(name: str) -> Path:
    """Return the file of a shipped config, by its name or an alias.

    Raises:
        UsageError: there is no shipped config of that name.
    """
    if name not in known():
        raise UsageError(
            f"no shipped config '{name}'; expected one of the {len(names())} that 'initdiag new --list' lists"
            + did_you_mean(name, known())
        )
    return folder() / f"{ALIASES.get(name, name)}.yaml"


@dataclass(frozen=True)
class Shipped:
    """What a shipped config says of itself: how many parameters, which scheme draws them, and what model it is."""

    name: str
    parameters: int | None
    scheme: str
    summary: str


def described() -> Iterator[Shipped]:
    """Yield what the files say of themselves, in alphabetical order; nothing is validated."""
    from initdiag.config.yaml import parse  # PyYAML, which a name alone needs not

    for name in names():
        value = parse(path_of(name).read_text(encoding="utf-8"), name).value
        about, init = value.get("about") or {}, value.get("init") or {}
        yield Shipped(name, about.get("parameters"), init.get("scheme", "gpt2"), about.get("summary", ""))


def schema_path() -> Path:
    """Return the JSON schema of config files, which editors read."""
    return folder() / "initdiag.schema.json"
