"""A user's module imported from its file or by its name, without a trace in sys.path and sys.modules. No torch."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from initdiag.errors import RunError, UsageError, as_typed, did_you_mean, printable
from initdiag.subjects.frames import failing_line, first_line, prints_to_stderr, within

# Modules that lie beside the file, to have them in sys.modules again when the model is built.
Siblings = dict[str, ModuleType]


def import_file(path: Path, siblings: Siblings) -> ModuleType:
    """Import a file under a private name, so that two files called model.py don't meet.

    Its neighbours are imported by their own names, as when the file is run, and are taken out of sys.modules
    afterwards: they end in `siblings`. A file of a package is imported as a part of it.

    Raises:
        UsageError: there is no such file. RunError: it fails.
    """
    if not path.is_file():
        raise UsageError(f"{as_typed(path)}: no such file{_nearby(path)}")
    path = path.resolve()
    root, top = _package(path)
    private = f"_initdiag_{hashlib.sha1(str(path).encode()).hexdigest()[:8]}_"
    for name in [name for name in sys.modules if name.startswith(private)]:
        del sys.modules[name]  # the file may have changed since
    with importable_from(root, siblings), _told_if_it_fails(path):
        if path.parent == root:
            return _execute(private + path.stem.replace(".", "_"), path)
        package = _execute(private + top, root / top / "__init__.py")
        inside = path.relative_to(root / top).with_suffix("").parts
        if inside == ("__init__",):
            return package
        return importlib.import_module(".".join([private + top, *inside]))


def import_named(name: str) -> ModuleType:
    """Import a module by its name, from the current directory or as installed.

    Raises:
        UsageError: there is no such module. RunError: it fails.
    """
    here = Path.cwd()
    with _path_begins_with(str(here)), _told_if_it_fails(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = error.name or ""
            if not (name == missing or name.startswith(missing + ".")):
                raise
            close = did_you_mean(name, [f"{file.stem}" for file in here.glob("*.py")])
            raise UsageError(
                f"no module named '{printable(missing)}', neither here nor installed{close}; "
                f"a file is named with its ending, such as path/to/model.py:GPT"
            ) from error


@contextmanager
def importable_from(folder: Path, siblings: Siblings) -> Iterator[None]:
    """Put a folder at the head of sys.path, and in the end put sys.path and sys.modules as they were.

    Modules of that folder that were imported meanwhile move from sys.modules to `siblings`, and are there again the
    next time.
    """
    within_folder = {str(folder)}
    hidden = _hidden_by(folder)
    for name in hidden:
        del sys.modules[name]
    sys.modules.update(siblings)
    before = dict(sys.modules)
    try:
        with _path_begins_with(str(folder)):
            yield
    finally:
        for name, module in list(sys.modules.items()):
            new = name not in before or name in siblings
            if new and not name.startswith("_initdiag_") and _lies_in(module, within_folder):
                siblings[name] = module
                del sys.modules[name]
        sys.modules.update(hidden)


def _hidden_by(folder: Path) -> dict[str, ModuleType]:
    """Modules of the user's from elsewhere that have the name of a file in a folder."""
    names = {file.stem for file in folder.glob("*.py")} | {init.parent.name for init in folder.glob("*/__init__.py")}
    names -= set(sys.stdlib_module_names)
    elsewhere = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.partition(".")[0] in names and file and not within(file, {str(folder), sys.prefix, sys.base_prefix}):
            elsewhere[name] = module
    return elsewhere


def _lies_in(module: ModuleType, folders: set[str]) -> bool:
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", []))  # a folder without __init__.py
    return any(within(str(place), folders) and "site-packages" not in str(place) for place in places)


@contextmanager
def _path_begins_with(folder: str) -> Iterator[None]:
    path, no_bytecode = list(sys.path), sys.dont_write_bytecode
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()  # the file may be younger than the last look into its folder
    try:
        with prints_to_stderr():
            yield
    finally:
        sys.path[:] = path
        sys.dont_write_bytecode = no_bytecode


@contextmanager
def _told_if_it_fails(target: Path | str) -> Iterator[None]:
    shown = as_typed(target) if isinstance(target, Path) else printable(target)
    try:
        yield
    except (UsageError, MemoryError):
        raise
    except SystemExit as error:
        raise RunError(
            f"{shown} ends the process when it is imported ({failing_line(error)}); put what is not for import "
            f"below if __name__ == '__main__':"
        ) from error
    except Exception as error:
        raise RunError(f"{shown} fails when it is imported: {first_line(error)} ({failing_line(error)})") from error


def _execute(name: str, path: Path) -> ModuleType:
    search = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=search)
    assert spec and spec.loader, path  # a .py file always has a loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _package(path: Path) -> tuple[Path, str]:
    """Return the folder to import a file from, and the package in it that the file belongs to ("" for none)."""
    folder, top = path.parent, ""
    while (folder / "__init__.py").is_file():
        folder, top = folder.parent, folder.name
    return folder, top


def _nearby(path: Path) -> str:
    if path.with_name(path.name + ".py").is_file():
        return f" (did you mean '{as_typed(path.with_name(path.name + '.py'))}'?)"
    folder = path.parent
    names = sorted(file.name for file in folder.glob("*.py")) if folder.is_dir() else []
    close = did_you_mean(path.name, names)
    if close or not names:
        return close or ("" if folder.is_dir() else f", nor a folder {as_typed(folder)}")
    return f"; that folder has {', '.join(names[:8])}" + (", …" if len(names) > 8 else "")
