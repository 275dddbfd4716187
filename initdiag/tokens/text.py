"""Text as tokens: its bytes, or what a local tokenizer.json makes of it."""

from __future__ import annotations

import codecs
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, BinaryIO

from initdiag.errors import TokenError
from initdiag.tokens.batch import TokenBatch, from_windows
from initdiag.tokens.opening import opened, read_exactly
from initdiag.tokens.stored import Stored, read_windows
from initdiag.tokens.windows import below, first_outside, require_length, starts

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_EXCERPT = 2**20  # bytes: at least this much of a long text is tokenized, in about a second
_BYTES_PER_TOKEN = 16  # of the excerpt; English has 4 to 5, so this is room for windows to differ in
_LARGEST_TOKENIZER = 2**28  # bytes; those of models with 256,000 tokens have a tenth of it


def read_bytes(path: Path, *, shown: str, vocab_size: int, batch: int, length: int, seed: int) -> TokenBatch:
    """Read B windows of T + 1 bytes, each byte an id from 0 to 255; of a huge file too, only the windows are read.

    Raises TokenError when the file can't be read or is too short, or a byte in a window is no id of the vocabulary.
    A vocabulary below 256 is no error by itself: ASCII text needs 128 ids.
    """
    with opened(path, shown, holding="text") as (file, size):
        require_length(shown, size, length)
        begins = starts(Random(seed), size, batch=batch, length=length)
        windows = read_windows(file, Stored("uint8", offset=0, count=size), begins, length=length, shown=shown)
    outside = first_outside(windows, begins, vocab_size)
    if outside is not None:
        raise TokenError(_outside(shown, outside[0], outside[1], vocab_size))
    return from_windows(windows, source="text", total=size, vocab_size=vocab_size, path=shown, as_bytes=True)


def read_tokenized(
    path: Path,
    *,
    shown: str,
    tokenizer: Path,
    tokenizer_shown: str,
    vocab_size: int,
    batch: int,
    length: int,
    seed: int,
) -> TokenBatch:
    """Read B windows of T + 1 tokens of a UTF-8 text, without special tokens, truncation or padding.

    Of a text longer than max(1 MiB, 16 bytes for each of the B·(T + 1) tokens) only an excerpt of that size is
    tokenized, at a place drawn from the seed, larger if its tokens don't suffice; `total` is then None.

    Raises TokenError when a file can't be read or isn't what it should be, when `tokenizers` isn't installed, when the
    text is too short, and when a token in a window is no id of the vocabulary.
    """
    encoder = _load(tokenizer, tokenizer_shown)
    rng = Random(seed)
    needed = batch * (length + 1)
    with opened(path, shown, holding="text") as (file, size):
        share = max(_EXCERPT, _BYTES_PER_TOKEN * needed)
        while True:
            share = min(share, size)
            first = below(rng, size - share + 1)
            text, first = _decode(file, first, share, size, shown)
            encoding = _encode(encoder, text, shown, tokenizer_shown)
            if len(encoding.ids) >= needed or share == size:
                break
            share *= 4
    require_length(shown, len(encoding.ids), length)
    begins = starts(rng, len(encoding.ids), batch=batch, length=length)
    windows = [tuple(encoding.ids[begin : begin + length + 1]) for begin in begins]
    outside = first_outside(windows, begins, vocab_size)
    if outside is not None:
        before = text[: encoding.offsets[outside[1]][0]]  # the tokenizer counts characters
        raise TokenError(_outside(shown, outside[0], first + len(before.encode()), vocab_size))
    total = len(encoding.ids) if share == size else None
    return from_windows(windows, source="text", total=total, vocab_size=vocab_size, path=shown)


def _load(path: Path, shown: str) -> Tokenizer:
    """Load a tokenizer.json, and switch off the truncation and padding that it may prescribe."""
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise TokenError(f"{shown}: a tokenizer needs the extra: pip install 'initdiag[text]'") from None
    with opened(path, shown, holding="a tokenizer.json") as (file, size):
        if size > _LARGEST_TOKENIZER:
            raise TokenError(
                f"{shown}: has {size:,} bytes, expected at most {_LARGEST_TOKENIZER:,} for a tokenizer.json"
            )
        raw = read_exactly(file, 0, size, shown)
    try:
        encoder = Tokenizer.from_str(raw.decode())
    except Exception as error:  # the library raises bare Exceptions
        reason = str(error).partition("\n")[0]
        raise TokenError(f"{shown}: is no tokenizer, expected the tokenizer.json of a model ({reason})") from error
    encoder.no_truncation()
    encoder.no_padding()
    return encoder


def _encode(encoder: Tokenizer, text: str, shown: str, tokenizer_shown: str) -> Encoding:
    try:
        return encoder.encode(text, add_special_tokens=False)
    except Exception as error:  # as above: for instance a vocabulary of words without a token for unknown ones
        reason = str(error).partition("\n")[0]
        raise TokenError(f"{shown}: can't be tokenized with {tokenizer_shown} ({reason})") from error


def _decode(file: BinaryIO, first: int, share: int, size: int, shown: str) -> tuple[str, int]:
    """Decode `share` bytes from byte `first` on, but no pieces of characters at the cuts; return text and start."""
    data = read_exactly(file, first, share, shown)
    cut = 0
    while first and cut < min(3, share) and data[cut] & 0xC0 == 0x80:  # a byte inside a character
        cut += 1
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(data[cut:], final=first + share == size), first + cut
    except UnicodeDecodeError as error:
        at = cut + error.start
        raise TokenError(
            f"{shown}: byte 0x{data[at]:02x} at byte {first + at:,} is not UTF-8, expected UTF-8 text for a tokenizer"
        ) from None


def _outside(shown: str, id_: int, offset: int, vocab_size: int) -> str:
    return (
        f"{shown}: token id {id_} at byte {offset:,} (from 0), expected ids from 0 to {vocab_size - 1:,} "
        f"for a vocabulary of {vocab_size:,}"
    )
