"""Files opened for reading, with everything that can go wrong said in one sentence.

Windows are read with seek and read, not mmap: neither touches more than the windows, but when the disk fails or the
file shrinks meanwhile, a mapping kills the process (SIGBUS) where a read raises an error that can be told.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from initdiag.errors import TokenError, printable


@contextmanager
def opened(path: Path, shown: str, *, holding: str = "tokens") -> Iterator[tuple[BinaryIO, int]]:
    """Open `path`; yields the file and its size in bytes, at least 1.

    `shown` is the path as the user wrote it, `holding` what the file should hold.

    Raises TokenError when there is no such file, when it is empty or no regular file (a pipe would block, and has no
    size), when it may not be read, and when reading fails inside the `with` block.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise TokenError(f"{shown}: is a directory, expected a file")
        if not stat.S_ISREG(mode):
            raise TokenError(f"{shown}: is a pipe or a device, expected a regular file")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise TokenError(f"{shown}: the file is empty, expected {holding}")
            yield file, size
    except FileNotFoundError:
        where = "" if str(path) == shown else f" (looked for {printable(str(path))})"
        raise TokenError(f"{shown}: no such file{where}") from None
    except PermissionError:
        raise TokenError(f"{shown}: permission denied, expected a file that can be read") from None
    except OSError as error:
        raise TokenError(f"{shown}: can't be read: {error.strerror or error}") from error


def require_nameable(path: str) -> None:
    """Raise TokenError when no file can have this name; the system calls would raise ValueError."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raw = b"\0"
    if b"\0" in raw:
        raise TokenError(f"{path!r}: can't be the name of a file")


def read_exactly(file: BinaryIO, offset: int, size: int, shown: str) -> bytes:
    """Read `size` bytes from byte `offset` on; TokenError when the file has become shorter than it was."""
    file.seek(offset)
    data = file.read(size)
    if len(data) != size:
        raise TokenError(
            f"{shown}: changed while it was read: found {len(data):,} bytes from byte {offset:,} on, expected {size:,}"
        )
    return data
