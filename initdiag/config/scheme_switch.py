"""`--scheme X`: what of a config's `init:` goes along to another scheme."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from initdiag.config.init import NO_PARAMETERS, Init, base_scheme
from initdiag.errors import UsageError
from initdiag.schemes import Scheme

Path = tuple[str | int, ...]


def covers(keys: Iterable[Path], path: Path) -> bool:
    """Whether any of the keys is a path, something in it, or the section that it is in."""
    return any(path[: len(key)] == key or key[: len(path)] == path for key in keys)


def for_scheme(init: Mapping[str, Any], new: Scheme, by_option: Callable[[Path], bool]) -> dict[str, Any]:
    """Return the section as it goes along to another scheme.

    Parameters are kept where the other scheme has them with the same default, as `std` of `gpt2` and `scaled`:
    elsewhere the name means something else. Roles are dropped: they were written for the scheme of the file, and a
    scheme that is named on the command line is that scheme. What an option has set is kept.

    Args:
        by_option: whether an option has set a path such as ("init", "std"), or something in it.
    """
    name = init.get("scheme", Init.model_fields["scheme"].default)
    try:
        old = base_scheme(name) if isinstance(name, str) else None
    except UsageError:  # the file's own scheme is unknown: nothing of it has a meaning
        old = None
    kept = {
        key: value
        for key, value in init.items()
        if key in NO_PARAMETERS or by_option(("init", key)) or (old and _same_meaning(key, old, new))
    }
    roles = kept.pop("roles", None)
    if isinstance(roles, Mapping):
        own = {role: draw for role, draw in roles.items() if by_option(("init", "roles", role))}
        kept |= {"roles": own} if own else {}
    return {**kept, "scheme": new.name}


def _same_meaning(name: str, old: Scheme, new: Scheme) -> bool:
    meaning = _meaning(new, name)
    return meaning is not None and meaning == _meaning(old, name)


def _meaning(scheme: Scheme, name: str) -> object:
    """Return what a parameter is in a scheme: its default, or its words; None where it has no such parameter."""
    return scheme.parameters.get(name) or scheme.choices.get(name)
