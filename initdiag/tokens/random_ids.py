"""Uniform ids: the tokens about which nothing can be known, so that ln V is the right loss."""

from __future__ import annotations

from random import Random

from initdiag.tokens.batch import TokenBatch, from_windows
from initdiag.tokens.windows import below


def draw(*, vocab_size: int, batch: int, length: int, seed: int) -> TokenBatch:
    """Draw B windows of T + 1 independent ids, uniform on 0 … V − 1; the same on every platform and Python version."""
    rng = Random(seed)
    windows = [tuple(below(rng, vocab_size) for _ in range(length + 1)) for _ in range(batch)]
    return from_windows(windows, source="random", total=None, vocab_size=vocab_size, path=None)
