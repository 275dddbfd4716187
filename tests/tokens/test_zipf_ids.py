"""Ids by Zipf's law."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from collections.abc import Callable
from statistics import NormalDist

import pytest

from initdiag.tokens import TokenBatch, random_ids

Load = Callable[..., TokenBatch]


def test_shapes_source_and_words(load: Load) -> None:
    batch = load(source="zipf", batch=3, length=11, vocab_size=1000)
    assert (batch.source, batch.path, batch.total, batch.batch, batch.length) == ("zipf", None, None, 3, 11)
    assert batch.describe() == f"zipf, 3 × 11 ids by Zipf's law, {batch.distinct} distinct"
    assert load(source="zipf", seed=7) == load(source="zipf", seed=7) != load(source="zipf", seed=8)


def test_the_kth_id_comes_in_proportion_to_one_over_k(load: Load) -> None:
    """Chi-square over all ranks, which counts sort rightly where neighbours differ by many standard errors: the first
    eight of 40; the others are one cell. False alarm 1e-6."""
    cells, drawn = 40, 200 * 1000
    batch = load(source="zipf", batch=200, length=1000, vocab_size=cells, seed=1)
    counts = sorted(Counter(id_ for row in batch.targets for id_ in row).values(), reverse=True)
    law = [1 / rank for rank in range(1, cells + 1)]
    expected = [drawn * one / sum(law) for one in law]
    assert expected[7] - expected[8] > 6 * (2 * expected[8]) ** 0.5  # so that no two change places
    pairs = [*zip(counts[:8], expected[:8], strict=True), (sum(counts[8:]), sum(expected[8:]))]
    part = 2 / (9 * 8)  # Wilson–Hilferty quantile
    assert sum((count - mean) ** 2 / mean for count, mean in pairs) < (
        8 * (1 - part + NormalDist().inv_cdf(1 - 1e-6) * part**0.5) ** 3
    )


def test_which_id_is_frequent_is_drawn(load: Load) -> None:
    """All ids come in the first place: of 400 seeds and 8 ids, one is missing with probability 8·(7/8)⁴⁰⁰ < 1e-22."""
    first = {
        Counter(load(source="zipf", batch=1, length=200, vocab_size=8, seed=seed).inputs[0]).most_common(1)[0][0]
        for seed in range(400)
    }
    assert first == set(range(8))


@pytest.mark.parametrize("vocab_size", [1, 2, 3])
def test_small_vocabularies(load: Load, vocab_size: int) -> None:
    batch = load(source="zipf", batch=2, length=400, vocab_size=vocab_size)
    assert {id_ for row in batch.inputs for id_ in row} == set(range(vocab_size))


def test_it_has_no_use_for_files(sentence: Callable[..., str]) -> None:
    assert sentence(source="zipf", path="a.txt") == (
        "tokens: path is 'a.txt', but source is zipf, expected source: text or file"
    )


def test_the_sum_of_a_large_vocabulary_is_its_series() -> None:
    """Up to 1,000 it is summed, beyond it is the asymptotic series: alike where both can be had."""
    for count in (999, 1000, 1001, 20_000):
        assert random_ids._harmonic(count) == pytest.approx(math.fsum(1 / k for k in range(1, count + 1)), rel=1e-14)


def test_a_large_vocabulary_takes_no_list(load: Load) -> None:
    """The list of 2²⁸ sums would be 8 GiB. Half of all draws are among some ten thousand ids, so that some repeat."""
    tracemalloc.start()
    batch = load(source="zipf", batch=1, length=200, vocab_size=2**28)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**20
    assert 60 < batch.distinct < 200
