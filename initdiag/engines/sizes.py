"""Which parameters are large enough to be better asked than drawn. No torch."""

from __future__ import annotations

import math

from initdiag.weightless.law import LARGE

HUGE = 2**26  # entries, 256 MiB of float32, from which memory counts more than time
WIDE = 2  # a side shorter than this many times the tokens is used up by one forward


def is_large(shape: tuple[int, ...], tokens: int) -> bool:
    """Whether a parameter is better asked than drawn, by a forward of so many tokens (B·T)."""
    count, sides = math.prod(shape), [size for size in shape if size > 1]
    if len(sides) < 2 or count < LARGE:
        return False
    return count >= HUGE or min(sides[-2:]) > WIDE * tokens
