"""Where text goes, and how it may look there."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TextIO

from initdiag.errors import UsageError
from initdiag.report.style import Style

Color = Literal["auto", "always", "never"]


def style_of(stream: TextIO, color: Color) -> Style:
    """Judge a stream: its width when it is a terminal, whether it takes colours, whether it takes more than ASCII."""
    terminal = stream.isatty()
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and len(columns) < 6 and int(columns) > 0 else None
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


def write(text: str, file: Path | None = None) -> None:
    """Write a finished text to stdout or to a file; a file that can't be written doesn't lose the report.

    Raises:
        UsageError: the file can't be written; the report was printed instead. Or stdout can't.
    """
    if file is None or str(file) == "-":
        _print(text)
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file.resolve(), text)  # a link keeps pointing where it points
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        _print(text)
        raise UsageError(f"can't write the report to {file}: {reason}; it is printed on stdout instead") from error


def _replace(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    if file.exists() and not (file.is_file() and os.access(file, os.W_OK)):
        file.write_text(text, encoding="utf-8")  # a directory or a read-only file says so; a pipe or device takes it
        return
    handle, name = tempfile.mkstemp(prefix=".initdiag-", dir=file.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.chmod(file.stat().st_mode & 0o777 if file.exists() else 0o666 & ~_umask())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _print(text: str) -> None:
    """Print, and let a reader who has gone (`| head`) go: that's no failure, and hides no verdict."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _silence()
    except OSError as error:
        _silence()
        raise UsageError(f"can't write to stdout: {error.strerror}") from error


def _silence() -> None:
    """Point stdout at nothing, or Python would complain once more when it flushes at its exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def require_no_input(file: Path | None, inputs: Iterable[str | Path | None]) -> None:
    """Refuse to write the report over something that is read for it.

    Raises:
        UsageError: it is one of the inputs.
    """
    if file is None or not file.exists():
        return
    for name in (str(name) for name in inputs if name is not None):
        # model.py:GPT reads model.py, and a folder its config.json
        for path in (Path(name), Path(name.rpartition(":")[0] or name), Path(name) / "config.json"):
            if _exists(path) and file.samefile(path):
                raise UsageError(f"--output-file {file}: it is an input ({name}); expected another file")


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # JSON text, say, is no name of a file
        return False
