"""The arguments that a factory gets: its own, or a config object made from their names (`GPT(GPTConfig())`)."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from initdiag.errors import UsageError, did_you_mean, printable

_CONFIG_NAMES = ("config", "cfg", "conf", "args", "hparams", "params", "model_args", "model_config", "settings")
_CONFIG_ENDINGS = ("config", "args", "arguments", "hparams", "params", "cfg")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def arguments_for(factory: Callable[..., Any], module: ModuleType, shown: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments to call a factory with.

    Where it takes a config object (a parameter annotated with a dataclass, or one named `config` beside a class
    GPTConfig in its module), that is made from `given`: {"config": {…}}, or its fields directly. A config whose
    fields all have defaults is made without any.

    Raises:
        UsageError: an argument is missing or unknown; the sentence says what there is and how to write it.
    """
    signature = _signature(factory)
    if signature is None:  # a builtin: let it speak for itself
        return given
    parameters = {name: p for name, p in signature.parameters.items() if p.kind in _NAMED}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    required = [name for name, p in parameters.items() if p.default is p.empty]
    arguments = {name: value for name, value in given.items() if name in parameters or takes_all}
    left = {name: value for name, value in given.items() if name not in arguments}
    for name in parameters:
        config = _config_class(factory, name, module, shown, needed=name in required)
        if config is None:
            continue
        if name not in arguments and (left or name in required):
            arguments[name], left = _make(config, left, shown), {}
        elif isinstance(arguments.get(name), Mapping):
            arguments[name] = _make(config, dict(arguments[name]), f"{shown}: {name}")
    missing = [name for name in required if name not in arguments]
    if left:
        unknown = next(iter(left))
        accepted = f"it takes {', '.join(parameters)}" if parameters else "it takes none"
        raise UsageError(
            f"{shown} takes no argument '{printable(unknown)}'{did_you_mean(unknown, parameters)}; {accepted}"
        )
    if missing:
        raise UsageError(f"{shown} needs {_quoted(missing)}: {_example(missing)}")
    return arguments


def _make(config: type, given: dict[str, Any], shown: str) -> Any:
    """Make a config object from the names of its fields; a field that is a dataclass itself takes a mapping."""
    signature = _signature(config)
    if signature is None:
        return config(**given)
    parameters = {name: p for name, p in signature.parameters.items() if p.kind in _NAMED}
    takes_all = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for name in given:
        if name not in parameters and not takes_all:
            raise UsageError(
                f"{shown}: {config.__name__} has no field '{printable(name)}'{did_you_mean(name, parameters)}; "
                f"it has {', '.join(parameters)}"
            )
    missing = [name for name, p in parameters.items() if p.default is p.empty and name not in given]
    if missing:
        raise UsageError(f"{shown}: {config.__name__} needs {_quoted(missing)}: {_example(missing)}")
    for name, value in given.items():
        inner = _annotation(config, name)
        if isinstance(value, Mapping) and inner is not None and dataclasses.is_dataclass(inner):
            given[name] = _make(inner, dict(value), f"{shown}: {name}")
    return config(**given)


def _config_class(factory: Callable[..., Any], name: str, module: ModuleType, shown: str, needed: bool) -> type | None:
    """The class of a parameter that is a config object; None for any other parameter."""
    annotated = _annotation(factory, name)
    if annotated is not None:
        named_so = annotated.__name__.lower().endswith(_CONFIG_ENDINGS) and annotated.__module__ != "builtins"
        return annotated if dataclasses.is_dataclass(annotated) or named_so else None
    if name not in _CONFIG_NAMES or not needed:
        return None
    classes = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and key.lower().endswith(_CONFIG_ENDINGS) and value is not factory
    }
    own = {key: value for key, value in classes.items() if value.__module__ == module.__name__} or classes
    wanted = [key for key in own if key.lower().startswith(getattr(factory, "__name__", "?").lower())]
    if len(own) == 1 or len(wanted) == 1:
        return own[wanted[0] if len(wanted) == 1 else next(iter(own))]
    if own:
        raise UsageError(
            f"{shown} needs '{name}', which could be {' or '.join(own)}; annotate it, such as {name}: {next(iter(own))}"
        )
    return None


def _annotation(owner: Any, name: str) -> type | None:
    """The class that a parameter or field is annotated with, also as text, also `X | None`; None for none."""
    plain = isinstance(owner, type) and not dataclasses.is_dataclass(owner)
    function = owner.__dict__.get("__init__", owner.__init__) if plain else owner
    try:
        hint = typing.get_type_hints(function).get(name)
    except Exception:  # a name that exists only for a type checker
        return None
    hints = [arg for arg in typing.get_args(hint) or (hint,) if arg is not type(None)]
    return hints[0] if len(hints) == 1 and isinstance(hints[0], type) and hint is not None else None


def _signature(factory: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(factory)
    except (ValueError, TypeError):
        return None


def _quoted(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


def _example(names: list[str]) -> str:
    """How the missing arguments are written: --kwargs '{"config": …}'."""
    return "--kwargs '{" + ", ".join(f"{json.dumps(name)}: …" for name in names) + "}'"
