"""What is diagnosed. The door is `load`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from initdiag.subjects.history import NOT_WATCHED, InitHistory
from initdiag.subjects.subject import UNPLANNED, Declared, Subject
from initdiag.subjects.targets import is_hf_config, is_import_path

if TYPE_CHECKING:
    from initdiag.config import ConfigFile


def is_module_target(target: Any) -> bool:
    """Whether a target is, or names, a module: no config of the reference Transformer. Imports no torch."""
    if isinstance(target, Subject):
        return True
    if isinstance(target, str | os.PathLike):
        path = os.fspath(target)
        return is_import_path(path) or is_hf_config(path)
    torch: Any = sys.modules.get("torch")
    return callable(target) or (torch is not None and isinstance(target, torch.nn.Module))


def load(file: ConfigFile) -> Subject:
    """Make the Subject of a config file (imports no torch)."""
    from initdiag.subjects.from_config import from_config  # pydantic, which `initdiag --help` needs not

    return from_config(file)


__all__ = ["NOT_WATCHED", "UNPLANNED", "Declared", "InitHistory", "Subject", "is_module_target", "load"]
