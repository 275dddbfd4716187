"""`path/to/model.py:GPT` and `pkg.model:build`: from what the user types to a function that builds the module.

Imports no torch by itself; the user's file does.
"""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from initdiag.config.yaml import parse
from initdiag.errors import ConfigError, InitdiagError, RunError, UsageError, as_typed, closest, did_you_mean, printable
from initdiag.subjects.frames import failing_line, first_line, prints_to_stderr
from initdiag.subjects.importing import Siblings, import_file, import_named, importable_from
from initdiag.subjects.signatures import arguments_for


def load_factory(target: str, kwargs: Mapping[str, Any]) -> tuple[str, Callable[[], Any]]:
    """Import what a target names.

    Args:
        target: as in `targets.is_import_path`; the attribute is an nn.Module class, a function that returns a module,
            or a module. kwargs: its keyword arguments; where it takes one config object, the fields of that.

    Returns:
        A name, and a function that builds the module (of an nn.Module that was named itself: returns it).

    Raises:
        UsageError: no such file, module or attribute, or the arguments don't fit.
        RunError: the user's code raises; build() raises it too, and when the result is no nn.Module.
    """
    shown = printable(target)
    left, _, attribute = (target, "", "") if target.endswith(".py") else target.rpartition(":")
    siblings: Siblings = {}
    is_file = left.endswith(".py") or "/" in left
    module = import_file(Path(left), siblings) if is_file else import_named(left)
    if not attribute:
        raise UsageError(f"{shown}: which model? {_offered(module, left.rstrip(':'))}")
    found = _attribute(module, attribute, left)
    if _is_module(found):
        if kwargs:
            raise UsageError(f"{shown} is a module that is built already; it takes no --kwargs")
        return attribute, lambda: found
    if not callable(found):
        raise UsageError(
            f"{shown} is {_called(found)}; expected an nn.Module class, a function that returns a module, or a module. "
            f"{_offered(module, left)}"
        )
    given = dict(kwargs)
    with _told_if_it_fails(shown):
        arguments_for(found, module, shown, copy.deepcopy(given))  # what doesn't fit is told before anything is built

    def build() -> Any:
        around = importable_from(_root(module, left), siblings) if is_file else nullcontext()
        with _told_if_it_fails(shown), around, prints_to_stderr():
            built = found(**arguments_for(found, module, shown, copy.deepcopy(given)))
        if not _is_module(built):
            raise RunError(f"{shown} returned {_called(built)}, expected an nn.Module")
        return built

    return attribute, build


@contextmanager
def _told_if_it_fails(shown: str) -> Iterator[None]:
    try:
        yield
    except (InitdiagError, MemoryError):
        raise
    except (Exception, SystemExit) as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's: the engine has a sentence for it
            raise
        where = failing_line(error)
        raise RunError(f"{shown} fails when it is called: {first_line(error)}{where and f' ({where})'}") from error


def read_kwargs(text: str | None) -> dict[str, Any]:
    """Read the value of --kwargs: JSON text, or the name of a YAML or JSON file; None is {}.

    Raises:
        UsageError: it is neither, or no mapping.
    """
    if text is None or not text.strip():
        return {}
    if text.lstrip().startswith("{"):
        return _mapping(text, "--kwargs")
    path = Path(text)
    try:
        return _mapping(path.read_text(encoding="utf-8-sig"), as_typed(path))
    except UnicodeDecodeError as error:
        raise UsageError(f"--kwargs {as_typed(path)}: byte {error.start} is not UTF-8 text") from error
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--kwargs {printable(text)[:200]}: no such file, nor JSON; expected text such as "
            f"'{{\"n_layer\": 6}}' or a YAML or JSON file"
        ) from error


def _mapping(text: str, shown: str) -> dict[str, Any]:
    """JSON first, for its tabs; then YAML, which allows all else and has the better errors."""
    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = parse(text, shown).value
        except ConfigError as error:
            raise UsageError(str(error.problems[0])) from error
    if not isinstance(value, dict):
        raise UsageError(f"{shown}: found {_called(value)}, expected a mapping such as '{{\"n_layer\": 6}}'")
    return value


def _attribute(module: ModuleType, dotted: str, left: str) -> Any:
    found: Any = module
    for part in dotted.split("."):
        if not hasattr(found, part):
            close = did_you_mean(dotted, [*_classes(module), *_functions(module)])
            raise UsageError(f"{printable(left)} has no '{printable(dotted)}'{close}. {_offered(module, left, dotted)}")
        found = getattr(found, part)
    return found


def _offered(module: ModuleType, left: str, meant: str = "") -> str:
    """What a module has that could be meant, as a sentence."""
    classes, functions = _classes(module), _functions(module)
    if not classes and not functions:
        return "It has neither an nn.Module class nor a function of its own."
    parts = [f"nn.Module classes {', '.join(classes[:12])}"] if classes else []
    parts += [f"functions {', '.join(functions[:12])}"] if functions else []
    named = closest(meant, [*classes, *functions]) or (classes or functions)[-1]
    return f"It has {' and '.join(parts)}: write {printable(left)}:{named}"


def _classes(module: ModuleType) -> list[str]:
    """The nn.Module classes of a module, in the order of its text; imported ones only where it has none itself."""
    every = [(name, value) for name, value in vars(module).items() if _is_module_class(value)]
    own = [name for name, value in every if value.__module__ == module.__name__]
    return own or [name for name, value in every if not value.__module__.startswith("torch")]


def _functions(module: ModuleType) -> list[str]:
    functions = [(name, value) for name, value in vars(module).items() if inspect.isfunction(value)]
    return [name for name, value in functions if value.__module__ == module.__name__ and not name.startswith("_")]


def _is_module(value: Any) -> bool:
    """Whether a value is an nn.Module; nothing is before torch has been imported."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_module_class(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, type) and issubclass(value, torch.nn.Module)


def _root(module: ModuleType, left: str) -> Path:
    """The folder that a file was imported from: its own, or the one that its package lies in."""
    path = Path(left).resolve() if module.__file__ is None else Path(module.__file__)
    return path.parents[len(module.__name__.split(".")) - (path.name != "__init__.py")]


def _called(value: Any) -> str:
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind} ({printable(repr(value)[:60])})"
