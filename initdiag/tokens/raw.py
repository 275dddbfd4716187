"""Raw .bin files: little-endian uint16 or uint32 ids, perhaps after the header of llm.c.

That header is 256 int32: [magic, version, number of tokens, 0, …] (write_datafile in dev/data/data_common.py of
github.com/karpathy/llm.c). Magic 20240520 is written for GPT-2 with uint16 ids, and 20240801 for Llama 3 with uint32
ids; other writers took the first one over for their own vocabularies, so there the size of an id is computed. The
version is not looked at: the number of tokens has to agree with the size of the file, which says more.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import BinaryIO

from initdiag.errors import TokenError
from initdiag.tokens.opening import read_exactly
from initdiag.tokens.stored import Stored, require_same_dtype

HEADER_BYTES = 256 * 4
MAGIC = 20240520
MAGIC_UINT32 = 20240801
MAGIC_EVALUATION = 20240522  # write_evalfile: multiple-choice examples, no stream of tokens
_ENOUGH = 16  # zeros that are no accident: real text doesn't have its commonest id at every second place


def locate(file: BinaryIO, size: int, *, shown: str, dtype: str | None, vocab_size: int) -> Stored:
    """Say where the ids of a .bin file of `size` bytes are, and of which type.

    Without a header they are of type `dtype`, or else uint16 if V ≤ 65536 and uint32 if not. Raises TokenError when
    the size of the file isn't a whole number of ids, or disagrees with the header.
    """
    magic = int.from_bytes(read_exactly(file, 0, 4, shown), "little") if size >= 4 else None
    if magic == MAGIC_EVALUATION:
        raise TokenError(f"{shown}: is an llm.c evaluation file (magic {magic}), expected a stream of tokens")
    if magic in (MAGIC, MAGIC_UINT32):
        return _behind_header(file, size, magic=magic, shown=shown, dtype=dtype)
    name = dtype or ("uint16" if vocab_size <= 2**16 else "uint32")
    itemsize = 2 if name == "uint16" else 4
    if size % itemsize:
        hint = "; if it holds uint16 ids, set tokens.dtype: uint16" if name == "uint32" and size % 2 == 0 else ""
        raise TokenError(
            f"{shown}: the size of the file is {size:,} bytes, expected a multiple of {itemsize} for {name} ids{hint}"
        )
    return Stored(name, offset=0, count=size // itemsize, sure=dtype is not None)


def _behind_header(file: BinaryIO, size: int, *, magic: int, shown: str, dtype: str | None) -> Stored:
    if size < HEADER_BYTES:
        raise TokenError(
            f"{shown}: begins like a header (magic {magic}), but has {size:,} bytes, expected at least {HEADER_BYTES:,}"
        )
    (count,) = struct.unpack("<i", read_exactly(file, 8, 4, shown))
    data = size - HEADER_BYTES
    names = {4: "uint32"} if magic == MAGIC_UINT32 else {2: "uint16", 4: "uint32"}
    found = next((name for itemsize, name in names.items() if data == count * itemsize), None)
    if found is None:
        sizes = " or ".join(f"{count * itemsize:,}" for itemsize in names)
        expected = "a count of at least 0" if count < 0 else f"{sizes} for {' or '.join(names.values())}"
        raise TokenError(
            f"{shown}: the header counts {count:,} tokens, but {data:,} bytes follow it, expected {expected}"
        )
    require_same_dtype(shown, dtype, found)
    return Stored(found, offset=HEADER_BYTES, count=count)


def wider_dtype(windows: Sequence[tuple[int, ...]], begins: Sequence[int], stored: Stored) -> str | None:
    """Name the wider type of which these windows (B, T + 1) seem to be, or None.

    A little-endian id read in two or four pieces is its low piece and then zeros, so all ids at the other places are
    0. It takes 16 such zeros to be believed, and something that isn't 0 between them.
    """
    names = {2: {4: "64-bit", 2: "uint32"}, 4: {2: "64-bit"}}[stored.itemsize]
    for pieces, name in names.items():
        high: list[int] = []
        low: list[int] = []
        for window, begin in zip(windows, begins, strict=True):
            for at, id_ in enumerate(window, begin):
                (high if at % pieces else low).append(id_)
        if len(high) >= _ENOUGH and not any(high) and any(low):
            return name
    return None


def seems_narrower(windows: Sequence[tuple[int, ...]], stored: Stored, vocab_size: int) -> bool:
    """Tell whether uint32 ids seem to be pairs of uint16: most are too large, and those consist of two that are not."""
    if stored.dtype != "uint32":
        return False
    ids = [id_ for window in windows for id_ in window]
    large = [id_ for id_ in ids if id_ >= vocab_size]
    return 2 * len(large) > len(ids) and all(id_ >> 16 < vocab_size and id_ % 2**16 < vocab_size for id_ in large)
