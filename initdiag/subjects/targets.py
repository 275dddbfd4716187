"""What a target names, told by its text and the file there: cheaply, and without what builds it."""

from __future__ import annotations

import re
from pathlib import Path

_ATTRIBUTE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MODULE = re.compile(r"[^\W\d]\w+(\.[^\W\d]\w*)*")  # two letters at least: C: is a drive
_DATA = (".yaml", ".yml", ".json")


def is_import_path(target: str) -> bool:
    """Whether a target names Python code: "pkg.mod:attr", "path/to/file.py:attr", or a .py file alone."""
    left, colon, attribute = target.rpartition(":")
    if target.endswith((".py", ".py:")):
        return True
    if not colon or not _ATTRIBUTE.fullmatch(attribute) or left.lower().endswith(_DATA):
        return False
    if left.endswith(".py") or _MODULE.fullmatch(left):
        return True
    return "/" in left and Path(left + ".py").is_file()  # the ending was forgotten


def is_hf_config(path: Path | str) -> bool:
    """Whether a path is a Hugging Face config: a .json file with "model_type" or "architectures", or its folder.

    A .json file that can't be read is taken for one where its text has these words, so that the error is about it.
    """
    file = hf_config_file(Path(path))
    if file.suffix.lower() != ".json":
        return False
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError):
        return False
    return any(f'"{word}"' in text for word in ("model_type", "architectures"))


def hf_config_file(path: Path) -> Path:
    """The config.json that a path names itself or as its folder."""
    return path / "config.json" if path.is_dir() else path
