"""Token files, .bin and .npy. They may be hundreds of gigabytes: only the header and the windows are read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from initdiag.errors import TokenError
from initdiag.tokens import npy, raw
from initdiag.tokens.batch import TokenBatch, from_windows
from initdiag.tokens.opening import opened
from initdiag.tokens.stored import Stored, read_windows
from initdiag.tokens.windows import first_outside, require_length, starts


def read(
    path: Path, *, shown: str, dtype: str | None, vocab_size: int, batch: int, length: int, seed: int
) -> TokenBatch:
    """Read B windows of T + 1 ids from a .bin or .npy file, told apart by the suffix.

    `shown` is the path as the user wrote it, `dtype` what the settings say of a .bin file without a header. Raises
    TokenError when the file can't be read, isn't of the format, is too short, or has an id outside 0 … V − 1 in a
    window; and when the type of the ids was a guess and the windows show that it was a wrong one.
    """
    suffix = path.suffix.lower()
    if suffix not in (".bin", ".npy"):
        raise TokenError(
            f"{shown}: the suffix is {path.suffix!r}, expected .bin or .npy for tokens.source: file "
            "(for text, set tokens.source: text)"
        )
    with opened(path, shown) as (file, size):
        if suffix == ".npy":
            stored = npy.locate(file, size, shown=shown, dtype=dtype)
        else:
            stored = raw.locate(file, size, shown=shown, dtype=dtype, vocab_size=vocab_size)
        require_length(shown, stored.count, length)
        begins = starts(Random(seed), stored.count, batch=batch, length=length)
        windows = read_windows(file, stored, begins, length=length, shown=shown)
    headless = suffix == ".bin" and stored.offset == 0
    if not stored.sure:  # only ever of a .bin file without a header
        _require_plausible(windows, begins, stored, shown)
    outside = first_outside(windows, begins, vocab_size)
    if outside is not None:
        hint = _hint(windows, begins, stored, vocab_size) if headless else ""
        raise TokenError(
            f"{shown}: token id {outside[0]} at token {outside[1]:,} (from 0), expected ids from 0 to "
            f"{vocab_size - 1:,} for a vocabulary of {vocab_size:,}{hint}"
        )
    return from_windows(windows, source="file", total=stored.count, vocab_size=vocab_size, path=shown)


def _require_plausible(windows: Sequence[tuple[int, ...]], begins: Sequence[int], stored: Stored, shown: str) -> None:
    """Raise TokenError when ids of a guessed type are pieces of wider ones: all are valid ids, and none is right."""
    wider = raw.wider_dtype(windows, begins, stored)
    if wider is not None:
        raise TokenError(
            f"{shown}: the ids between the others are all 0, as when {wider} ids are read as {stored.dtype}; expected "
            f"{_remedy(wider)}, or tokens.dtype: {stored.dtype} if the zeros are meant"
        )


def _hint(windows: Sequence[tuple[int, ...]], begins: Sequence[int], stored: Stored, vocab_size: int) -> str:
    """Return '; …' when the dtype seems to be the reason for ids that are too large, else ''."""
    wider = raw.wider_dtype(windows, begins, stored)
    if wider is not None:
        return f"; this looks like {wider} ids read as {stored.dtype}: try {_remedy(wider)}"
    if raw.seems_narrower(windows, stored, vocab_size):
        return "; this looks like pairs of uint16 ids read as uint32: try tokens.dtype: uint16"
    return ""


def _remedy(wider: str) -> str:
    return "tokens.dtype: uint32" if wider == "uint32" else "a .bin of uint16 or uint32, or a .npy file"
