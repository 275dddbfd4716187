"""Where text goes, and how it may look there."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Literal, TextIO

from initdiag.errors import UsageError
from initdiag.report.style import Style

Color = Literal["auto", "always", "never"]


def style_of(stream: TextIO, color: Color) -> Style:
    """Judge a stream: its width when it is a terminal, whether it takes colours, whether it takes more than ASCII."""
    terminal = stream.isatty()
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else None
    if terminal and width is None:
        width = shutil.get_terminal_size().columns
    encoding = (stream.encoding or "ascii").lower().replace("-", "")
    return Style(width=width, color=_colored(terminal, color), ascii=not encoding.startswith("utf"))


def _colored(terminal: bool, color: Color) -> bool:
    """--color, then NO_COLOR (no-color.org: non-empty), then FORCE_COLOR or CLICOLOR_FORCE, then the terminal."""
    if color != "auto":
        return color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE", "0") not in ("", "0"):
        return True
    return terminal and os.environ.get("TERM") != "dumb"


def write(text: str, file: Path | None) -> None:
    """Write a finished report to stdout or to a file; a file that can't be written doesn't lose the report.

    Raises:
        UsageError: the file can't be written; the report was printed instead.
    """
    if file is None or str(file) == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not file.is_file():  # a directory is an error; /dev/stderr and pipes are written to
            file.write_text(text, encoding="utf-8")
        else:
            temporary = file.with_name(f".{file.name}.{os.getpid()}")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(file)  # never half a report
    except OSError as error:
        sys.stdout.write(text)
        sys.stdout.flush()
        reason = error.strerror or str(error)
        raise UsageError(f"can't write the report to {file}: {reason}; it is printed on stdout instead") from error
