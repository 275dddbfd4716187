"""The line of the user's own code that failed, out of a traceback. No torch."""

from __future__ import annotations

import linecache
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path

from initdiag.errors import as_typed, printable

_OURS = str(Path(__file__).parents[1])
_LIBRARY = {sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["platstdlib"]}
_INSTALLED = {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}


def failing_line(error: BaseException) -> str:
    """Say where an exception left the user's code: "model.py:12, in forward: x = self.wpe(positions)".

    It is the deepest frame that is neither ours, nor of an installed package, nor of Python itself; where there is
    none, as in a class of transformers, the deepest of any package but torch. "" where there is none of those.
    """
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        line = (error.text or linecache.getline(error.filename, error.lineno)).strip()
        return _told(error.filename, error.lineno, "", line)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_code(frame.filename)]
    own = [frame for frame in frames if not within(frame.filename, _INSTALLED)]
    if not (own or frames):
        return ""
    frame = (own or frames)[-1]
    name = "" if frame.name == "<module>" else frame.name
    return _told(frame.filename, frame.lineno or 0, name, (frame.line or "").strip())


def is_ours(error: BaseException) -> bool:
    """Whether an exception is a fault of initdiag's own: of what it ran below the user's last line.

    The tracer runs every operation of a forward, so its frames alone say nothing, unless they are the last.
    """
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    # the last line of the user's; of a module that is all torch's, our call of it
    theirs = [i for i, file in enumerate(files) if _is_code(file) or Path(file).name == "calling.py"]
    below = files[theirs[-1] + 1 :] if theirs else []
    ours = [file for file in below if within(file, {_OURS})]
    return bool(ours) and (below[-1] == ours[-1] or any("trace" not in Path(file).parts for file in ours))


def first_line(error: BaseException) -> str:
    """Return "IndexError: index out of range in self": the type of an exception and what it says, on one line."""
    told = error.msg if isinstance(error, SyntaxError) else str(error)
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return f"{type(error).__name__}: {printable(lines[0][:300])}" if lines else type(error).__name__


def within(file: str, folders: Iterable[str]) -> bool:
    """Whether a file lies in one of some folders, or below."""
    return any(file.startswith(folder.rstrip("/\\") + sep) for folder in folders for sep in ("/", "\\"))


@contextmanager
def prints_to_stderr() -> Iterator[None]:
    """What code of others prints goes to stderr: stdout is for the report, which may be JSON."""
    with redirect_stdout(sys.stderr):
        yield


def _is_code(file: str) -> bool:
    """Whether a file is neither Python's own, nor of torch, nor ours."""
    if file.startswith("<") or within(file, {_OURS}):
        return False
    if within(file, _INSTALLED):
        return not within(file, {f"{folder}/{name}" for folder in _INSTALLED for name in ("torch", "functorch")})
    return not within(file, _LIBRARY)


def _told(file: str, line: int, function: str, code: str) -> str:
    place = f"{as_typed(Path(file))}:{line}" + (f", in {function}" if function else "")
    return f"{place}: {printable(code[:200])}" if code else place
