"""Whose code runs an operation: the module and the source line, read off Python's own stack.

Hooks would miss a module that is called through `.forward`; the stack doesn't, and the model carries nothing of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

TORCH = str(Path(torch.__file__).parent)
OURS = str(Path(__file__).parents[1])


def where(names: Mapping[int, str]) -> tuple[str, str | None]:
    """Return the module path and the line "file.py:41" of the code that runs right now.

    Args:
        names: module paths by id(module).
    """
    frame: Any = sys._getframe(1)
    module, line = None, None
    while frame is not None and (module is None or line is None):
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            if line is None and not file.startswith(TORCH) and not file.startswith("<"):
                line = f"{_short(file)}:{frame.f_lineno}"
            if module is None and frame.f_code.co_varnames[:1] == ("self",):
                owner = frame.f_locals.get("self")
                if isinstance(owner, nn.Module):
                    module = names.get(id(owner))
        elif f"{OURS}/model" == str(Path(file).parent):  # the reference Transformer is a model like any other
            line = line or f"{_short(file)}:{frame.f_lineno}"
            owner = frame.f_locals.get("self")
            module = names.get(id(owner)) if module is None and isinstance(owner, nn.Module) else module
        frame = frame.f_back
    return module or "", line


def _short(file: str) -> str:
    """A path as a person would type it: from the package on, or relative to the current directory."""
    for part in ("/site-packages/", f"{Path.cwd()}/"):
        if part in file:
            return file.rpartition(part)[2]
    return file
