"""Ids that need no file: uniform ones, about which nothing can be known, so that ln V is the right loss; and ids that
repeat as words of a text do."""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate
from random import Random

from initdiag.tokens.batch import TokenBatch, from_windows
from initdiag.tokens.windows import below


def draw(*, vocab_size: int, batch: int, length: int, seed: int) -> TokenBatch:
    """Draw B windows of T + 1 independent ids, uniform on 0 … V − 1; the same on every platform and Python version."""
    rng = Random(seed)
    windows = [tuple(below(rng, vocab_size) for _ in range(length + 1)) for _ in range(batch)]
    return from_windows(windows, source="random", total=None, vocab_size=vocab_size, path=None)


GAMMA = 0.5772156649015329  # Euler–Mascheroni
_SUMS = [0.0, *accumulate(1 / k for k in range(1, 1001))]


def _harmonic(count: int) -> float:
    """Return Σ 1/k up to a count: exactly, or its asymptotic series, to 1e-15."""
    if count < len(_SUMS):
        return _SUMS[count]
    return math.log(count) + GAMMA + 1 / (2 * count) - 1 / (12 * count**2)


def draw_zipf(*, vocab_size: int, batch: int, length: int, seed: int) -> TokenBatch:
    """Draw B windows of T + 1 independent ids by Zipf's law: the k-th most frequent of V ids has p = 1/(k·H_V).

    H_V = Σ 1/k. Which id is the k-th is drawn, too. Zipf, Human Behavior and the Principle of Least Effort (1949); for
    text and its exponent of 1, Piantadosi, Psychon. Bull. Rev. 21 (2014), 1112.
    """
    rng, ranks, whole = Random(seed), range(1, vocab_size + 1), _harmonic(vocab_size)
    ids: dict[int, int] = {}  # of the ranks that were met, so that no vocabulary needs to be shuffled
    used: set[int] = set()

    def draw_one() -> int:
        rank = min(bisect_left(ranks, rng.random() * whole, key=_harmonic), vocab_size - 1)
        while rank not in ids:
            if (fresh := below(rng, vocab_size)) not in used:
                used.add(fresh)
                ids[rank] = fresh
        return ids[rank]

    windows = [tuple(draw_one() for _ in range(length + 1)) for _ in range(batch)]
    return from_windows(windows, source="zipf", total=None, vocab_size=vocab_size, path=None)
