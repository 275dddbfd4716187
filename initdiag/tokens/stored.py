"""Ids that lie in a file one after another, all of one integer type: what .bin, .npy and plain bytes have in common."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from initdiag.errors import TokenError
from initdiag.tokens.opening import read_exactly

# Codes of the struct module in its standard sizes, which are those of the name on every platform.
FORMATS = {
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
}


@dataclass(frozen=True)
class Stored:
    """Where the ids of a file are. `sure` tells whether the file itself, or the user, said of which type they are."""

    dtype: str  # a key of FORMATS
    offset: int  # bytes before the first id
    count: int  # ids in the file
    big_endian: bool = False
    sure: bool = True

    @property
    def itemsize(self) -> int:
        """Bytes of one id."""
        return struct.calcsize("=" + FORMATS[self.dtype])


def read_windows(
    file: BinaryIO, stored: Stored, begins: Sequence[int], *, length: int, shown: str
) -> tuple[tuple[int, ...], ...]:
    """Read the windows (B, T + 1) that begin at these tokens, and nothing else of the file."""
    width = length + 1
    unpacker = struct.Struct(f"{'>' if stored.big_endian else '<'}{width}{FORMATS[stored.dtype]}")
    return tuple(
        unpacker.unpack(read_exactly(file, stored.offset + begin * stored.itemsize, unpacker.size, shown))
        for begin in begins
    )


def require_same_dtype(shown: str, wanted: str | None, found: str) -> None:
    """Raise TokenError when the user names another dtype than the file does."""
    if wanted is not None and wanted != found:
        raise TokenError(f"{shown}: tokens.dtype is {wanted}, but the file's own header says {found}")
