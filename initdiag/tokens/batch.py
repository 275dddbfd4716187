"""The value that this room hands on: token ids and their targets, with a word about where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class TokenBatch:
    """B sequences of T token ids and, at every position, the id that follows.

    `source` is as in `tokens:` of a config; `path` is the file as the user wrote it, None for ids that were drawn.
    `total` counts the tokens of the source; it is None for drawn ids, and when only an excerpt of a long text was
    tokenized, so that nobody counted.
    """

    source: str
    inputs: tuple[tuple[int, ...], ...]  # (B, T)
    targets: tuple[tuple[int, ...], ...]  # (B, T): targets[b][t] follows inputs[b][t]
    total: int | None
    vocab_size: int
    path: str | None
    as_bytes: bool = False  # a text whose bytes are its tokens

    @property
    def batch(self) -> int:
        """B: sequences."""
        return len(self.inputs)

    @property
    def length(self) -> int:
        """T: tokens in a sequence."""
        return len(self.inputs[0])

    @property
    def distinct(self) -> int:
        """Distinct ids among inputs and targets."""
        return len(set().union(*self.inputs, *self.targets))

    @property
    def distinct_targets(self) -> int:
        """Distinct ids among the targets."""
        return len(set().union(*self.targets))

    def describe(self) -> str:
        """One line, such as 'train.bin: 2 windows × 256 tokens of 1,234,567; 312 distinct'."""
        if self.path is None:
            kind = "ids by Zipf's law" if self.source == "zipf" else "uniform ids"
            return f"{self.source}, {self.batch:,} × {self.length:,} {kind}, {self.distinct:,} distinct"
        windows = "1 window" if self.batch == 1 else f"{self.batch:,} windows"
        whole = "an excerpt" if self.total is None else f"{self.total:,}"
        unit = "bytes" if self.as_bytes else "tokens"
        return f"{self.path}: {windows} × {self.length:,} {unit} of {whole}; {self.distinct:,} distinct"


def from_windows(
    windows: Sequence[tuple[int, ...]],
    *,
    source: str,
    total: int | None,
    vocab_size: int,
    path: str | None,
    as_bytes: bool = False,
) -> TokenBatch:
    """Make a batch of windows (B, T + 1): the first T ids are the inputs, the last T the targets."""
    return TokenBatch(
        source=source,
        inputs=tuple(window[:-1] for window in windows),
        targets=tuple(window[1:] for window in windows),
        total=total,
        vocab_size=vocab_size,
        path=path,
        as_bytes=as_bytes,
    )
