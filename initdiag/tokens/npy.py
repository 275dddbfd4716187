"""The header of a .npy file, read without numpy.

The format (numpy.lib.format, NEP 1): b"\\x93NUMPY", major and minor version, the length of the header (2 bytes in
version 1, 4 in versions 2 and 3, little-endian), then a Python dict literal with the keys descr, fortran_order and
shape, in latin-1 (versions 1 and 2) or UTF-8 (version 3), then the data.
"""

from __future__ import annotations

import ast
from typing import BinaryIO

from initdiag.errors import TokenError
from initdiag.tokens.opening import read_exactly
from initdiag.tokens.stored import FORMATS, Stored, require_same_dtype

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 10_000  # bytes, as in numpy: an honest header of integers has about 100, and parsing a huge one can crash


def locate(file: BinaryIO, size: int, *, shown: str, dtype: str | None) -> Stored:
    """Say where the ids of a .npy file of `size` bytes are, and of which type.

    Takes signed and unsigned integers of 1, 2, 4 or 8 bytes in both byte orders. A 2-D array is one stream, row after
    row, and windows cross the ends of rows as they cross the documents in a .bin file. Raises TokenError when the
    header can't be read, says anything else, or doesn't agree with the size of the file.
    """
    header, offset = _read_header(file, size, shown)
    name, big_endian = _integer_type(header["descr"], shown)
    require_same_dtype(shown, dtype, name)
    stored = Stored(name, offset, _count(header["shape"], header["fortran_order"], shown), big_endian)
    found, expected = size - offset, stored.count * stored.itemsize
    if found != expected:
        what = "truncated" if found < expected else "longer than its array"
        raise TokenError(
            f"{shown}: {what}: found {found:,} bytes of data, expected {expected:,} "
            f"for {stored.count:,} ids of type {name}"
        )
    return stored


def _read_header(file: BinaryIO, size: int, shown: str) -> tuple[dict[str, object], int]:
    """Return the header, with at least the three keys, and the bytes before the data."""
    start = read_exactly(file, 0, min(size, 12), shown)
    if start[:6] != _MAGIC:
        raise TokenError(f"{shown}: is no .npy file: it begins with {start[:6]!r}, expected {_MAGIC!r}")
    major = start[6] if len(start) > 6 else 0
    if major not in (1, 2, 3) or len(start) < 12:
        raise TokenError(
            f"{shown}: truncated: found {size:,} bytes, expected a header"
            if len(start) < 12
            else f"{shown}: is of .npy version {major}.{start[7]}, expected 1, 2 or 3"
        )
    before = 10 if major == 1 else 12
    length = int.from_bytes(start[8:before], "little")
    if length > _MAX_HEADER:
        raise TokenError(f"{shown}: the .npy header has {length:,} bytes, expected at most {_MAX_HEADER:,}")
    if before + length > size:
        raise TokenError(f"{shown}: truncated: found {size:,} bytes, expected a header of {before + length:,}")
    raw = read_exactly(file, before, length, shown)
    try:
        header = ast.literal_eval(raw.decode("utf-8" if major == 3 else "latin-1").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all that literal_eval is known to raise
        header = None
    if not isinstance(header, dict) or not {"descr", "fortran_order", "shape"} <= header.keys():
        raise TokenError(
            f"{shown}: the .npy header is {_short(raw)}, expected a dict with descr, fortran_order and shape"
        )
    return header, before + length


def _integer_type(descr: object, shown: str) -> tuple[str, bool]:
    """Return the name of the type and whether it is big-endian."""
    if isinstance(descr, str) and len(descr) == 3 and descr[2] in "1248":
        order, kind, itemsize = descr[0], descr[1], int(descr[2])
        name = f"{'u' if kind == 'u' else ''}int{8 * itemsize}"
        if kind in "iu" and name in FORMATS and order in ("<>|" if itemsize == 1 else "<>"):
            return name, order == ">"
    raise TokenError(f"{shown}: the dtype of the array is {_short(descr)}, expected integers of 1, 2, 4 or 8 bytes")


def _count(shape: object, fortran_order: object, shown: str) -> int:
    """Return the number of ids in an array of this shape."""
    if not isinstance(shape, tuple) or not all(type(extent) is int and 0 <= extent < 2**63 for extent in shape):
        raise TokenError(f"{shown}: the shape of the array is {_short(shape)}, expected a tuple of sizes")
    if len(shape) not in (1, 2):
        raise TokenError(f"{shown}: the shape of the array is {_short(shape)}, expected 1 or 2 dimensions")
    if not isinstance(fortran_order, bool):
        raise TokenError(f"{shown}: fortran_order is {_short(fortran_order)}, expected True or False")
    if fortran_order and len(shape) == 2:  # of one dimension, both orders are the same
        raise TokenError(f"{shown}: the array is in Fortran order, expected C order (numpy.ascontiguousarray)")
    return int(shape[0] * shape[1]) if len(shape) == 2 else int(shape[0])


def _short(value: object) -> str:
    """Return the repr of a value on one line, cut to what a message can carry."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of more digits than Python prints, or a deep nest
        return f"an unprintable {type(value).__name__}"
    return text if len(text) <= 80 else text[:79] + "…"
