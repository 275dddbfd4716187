"""Where the windows of a batch begin, drawn so that every Python version draws the same, and what must hold for them.

Of the methods of `random.Random`, the standard library promises reproducibility across versions for `random()` alone
(section "Notes on Reproducibility" of its documentation): `randrange` and `sample` have changed before. So all draws
of this room go through `below`, which uses nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from initdiag.errors import TokenError

_STEPS = 2**53  # random() is an integer below this, divided by it


def below(rng: Random, bound: int) -> int:
    """Draw an integer uniformly from 0 … bound − 1, without the bias of a plain remainder; 1 ≤ bound ≤ 2**53."""
    usable = _STEPS - _STEPS % bound
    while True:
        drawn = int(rng.random() * _STEPS)
        if drawn < usable:
            return drawn % bound


def starts(rng: Random, total: int, *, batch: int, length: int) -> tuple[int, ...]:
    """Draw where B windows of T + 1 tokens begin among `total` tokens, total ≥ T + 1; in the order of the source.

    If B disjoint windows fit, that is total ≥ B·(T + 1), every set of B disjoint windows is equally likely. Otherwise
    each start is drawn by itself, uniformly from 0 … total − (T + 1), and windows may overlap or coincide.
    """
    width = length + 1
    if total < batch * width:
        return tuple(sorted(below(rng, total - width + 1) for _ in range(batch)))
    # Shrink every window to one cell: disjoint windows are then distinct cells, of which there are `cells`.
    cells = total - batch * length
    return tuple(cell + index * length for index, cell in enumerate(sorted(_subset(rng, cells, batch))))


def _subset(rng: Random, total: int, size: int) -> set[int]:
    """Draw `size` distinct integers below `total`, all subsets equally likely (R. Floyd, CACM 30(9), 1987)."""
    chosen: set[int] = set()
    for last in range(total - size, total):
        drawn = below(rng, last + 1)
        chosen.add(last if drawn in chosen else drawn)
    return chosen


def require_length(shown: str, total: int, length: int) -> None:
    """Raise TokenError unless one window of T + 1 tokens fits into `total`."""
    if total < length + 1:
        noun = "token" if total == 1 else "tokens"
        raise TokenError(
            f"{shown}: too short: found {total:,} {noun}, expected at least tokens.length + 1 = {length + 1:,}"
        )


def first_outside(windows: Sequence[tuple[int, ...]], begins: Sequence[int], vocab_size: int) -> tuple[int, int] | None:
    """Return (id, offset in tokens) of the first id in windows (B, T + 1) that isn't in 0 … V − 1, or None."""
    for window, begin in zip(windows, begins, strict=True):
        if min(window) < 0 or max(window) >= vocab_size:
            return next((id_, begin + at) for at, id_ in enumerate(window) if not 0 <= id_ < vocab_size)
    return None
