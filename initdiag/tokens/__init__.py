"""Token ids and their targets: drawn, from text, or from a token file. No torch, no numpy.

The door is `read`; it hands on a `TokenBatch`. Whatever goes wrong is a TokenError of one sentence that names the file
as the user wrote it, what was found and what was expected.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from initdiag.errors import TokenError, as_typed
from initdiag.tokens.batch import TokenBatch
from initdiag.tokens.opening import require_nameable

if TYPE_CHECKING:  # pydantic takes longer to import than this whole room
    from initdiag.config.schema import TokenSettings

__all__ = ["MAX_TOKENS", "TokenBatch", "read"]

MAX_TOKENS = 2**24
"""B·T of a batch at most. As Python integers that is about 1 GB, and no diagnosis needs a thousandth of it."""


def read(settings: TokenSettings, *, vocab_size: int, length: int, seed: int, folder: Path | None = None) -> TokenBatch:
    """Read or draw the batch that the settings ask for.

    `length` (T) and `seed` are the resolved ones, `settings.length` and `settings.seed` are not looked at. Relative
    paths in the settings start from `folder`, or from the working directory. The same settings, arguments and file
    give the same batch on every platform. Raises TokenError.
    """
    batch = settings.batch
    if min(vocab_size, length) < 1:
        raise TokenError(f"tokens: V = {vocab_size} and T = {length}, expected both to be at least 1")
    if batch * length > MAX_TOKENS:
        raise TokenError(
            f"tokens: B × T = {batch:,} × {length:,} = {batch * length:,} tokens, expected at most {MAX_TOKENS:,}"
        )
    _require_consistent(settings)
    if not settings.path:  # which is to say, source: random or zipf
        from initdiag.tokens import random_ids

        draw = random_ids.draw_zipf if settings.source == "zipf" else random_ids.draw
        return draw(vocab_size=vocab_size, batch=batch, length=length, seed=seed)
    path, shown = _resolve(settings.path, folder), as_typed(Path(settings.path))
    from initdiag.tokens import files, text  # here, since most batches are drawn

    if settings.source == "file":
        return files.read(
            path,
            shown=shown,
            dtype=settings.dtype,
            vocab_size=vocab_size,
            batch=batch,
            length=length,
            seed=seed,
        )
    if settings.tokenizer is None:
        return text.read_bytes(path, shown=shown, vocab_size=vocab_size, batch=batch, length=length, seed=seed)
    return text.read_tokenized(
        path,
        shown=shown,
        tokenizer=_resolve(settings.tokenizer, folder),
        tokenizer_shown=as_typed(Path(settings.tokenizer)),
        vocab_size=vocab_size,
        batch=batch,
        length=length,
        seed=seed,
    )


def _require_consistent(settings: TokenSettings) -> None:
    """Raise TokenError when a setting is missing for the source, or would be silently ignored by it."""
    source = settings.source
    if source in ("text", "file") and not settings.path:
        raise TokenError(f"tokens: source is {source}, but path is missing, expected the path of a file")
    for name, value, meant_for in (
        ("path", settings.path, ("text", "file")),
        ("tokenizer", settings.tokenizer, ("text",)),
        ("dtype", settings.dtype, ("file",)),
    ):
        if value is not None and source not in meant_for:
            raise TokenError(
                f"tokens: {name} is {value!r}, but source is {source}, expected source: {' or '.join(meant_for)}"
            )


def _resolve(path: str, folder: Path | None) -> Path:
    require_nameable(path)
    return Path(path) if folder is None else folder / path
