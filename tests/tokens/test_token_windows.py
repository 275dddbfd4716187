"""Where windows begin: uniform, disjoint where that is possible, the same for the same seed for ever."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, pairwise
from random import Random
from statistics import NormalDist

from hypothesis import given
from hypothesis import strategies as st

from initdiag.tokens.windows import below, first_outside, starts

FALSE_ALARM = 1e-6  # of each chi-square test, had its seed not been fixed


def chi_square_limit(cells: int) -> float:
    """The quantile of chi-square with cells − 1 degrees of freedom that is exceeded with probability FALSE_ALARM.

    Wilson and Hilferty, PNAS 17 (1931): the cube root is nearly normal; here it is good to about 1 %.
    """
    freedom = cells - 1
    part = 2 / (9 * freedom)
    return float(freedom * (1 - part + NormalDist().inv_cdf(1 - FALSE_ALARM) * part**0.5) ** 3)


def chi_square(counts: Counter[object], cells: int) -> float:
    expected = sum(counts.values()) / cells
    return sum((count - expected) ** 2 for count in counts.values()) / expected + (cells - len(counts)) * expected


def test_below_is_pinned() -> None:
    """These numbers may never change: a seed in a config means one batch, whatever the Python version."""
    rng = Random(0)
    assert [below(rng, 50257) for _ in range(5)] == [39583, 22062, 42729, 26050, 13369]


def test_below_is_uniform() -> None:
    rng = Random(1)
    counts: Counter[object] = Counter(below(rng, 61) for _ in range(61_000))
    assert chi_square(counts, 61) < chi_square_limit(61)


def test_below_has_no_remainder_bias() -> None:
    """A plain remainder of 53 bits would draw the lower half of this range twice as often."""
    rng = Random(2)
    bound = 2**53 // 3 * 2
    lower = sum(below(rng, bound) < bound // 2 for _ in range(10_000))
    assert abs(lower - 5_000) < 250  # 5 standard deviations of 50: false alarm 6e-7


def test_single_start_is_uniform_over_all_valid_ones() -> None:
    rng = Random(3)
    counts: Counter[object] = Counter(starts(rng, 20, batch=1, length=4) for _ in range(16_000))
    assert set(counts) == {(begin,) for begin in range(16)}  # the last window ends with the last token
    assert chi_square(counts, 16) < chi_square_limit(16)


def test_every_set_of_disjoint_windows_is_equally_likely() -> None:
    every = [pair for pair in combinations(range(8), 2) if pair[1] - pair[0] >= 3]
    rng = Random(4)
    counts: Counter[object] = Counter(starts(rng, 10, batch=2, length=2) for _ in range(1_000 * len(every)))
    assert set(counts) == set(every)
    assert chi_square(counts, len(every)) < chi_square_limit(len(every))


@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 80), st.integers(0, 2**63 - 1))
def test_windows_lie_inside_and_overlap_only_when_they_must(batch: int, length: int, more: int, seed: int) -> None:
    total = length + 1 + more
    begins = starts(Random(seed), total, batch=batch, length=length)
    assert len(begins) == batch
    assert begins[0] >= 0
    assert begins[-1] + length + 1 <= total
    assert list(begins) == sorted(begins)
    if total >= batch * (length + 1):
        assert all(after - before >= length + 1 for before, after in pairwise(begins))


def test_a_source_that_fits_exactly_is_read_whole() -> None:
    assert starts(Random(5), 12, batch=3, length=3) == (0, 4, 8)


def test_first_outside_counts_from_the_start_of_the_source() -> None:
    assert first_outside([(1, 2), (3, 9), (9, 9)], (10, 20, 30), 5) == (9, 21)
    assert first_outside([(1, 2), (3, -1)], (10, 20), 5) == (-1, 21)
    assert first_outside([(0, 4)], (0,), 5) is None
