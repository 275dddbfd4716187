"""Uniform ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from statistics import NormalDist

from initdiag.tokens import TokenBatch

Load = Callable[..., TokenBatch]


def test_shapes_and_targets(load: Load) -> None:
    batch = load(batch=3, length=11, vocab_size=1000)
    assert (batch.source, batch.path, batch.total, batch.vocab_size) == ("random", None, None, 1000)
    assert (batch.batch, batch.length) == (3, 11)
    assert all(len(row) == 11 for row in batch.inputs + batch.targets)
    assert all(ids[1:] == next_[:-1] for ids, next_ in zip(batch.inputs, batch.targets, strict=True))


def test_a_seed_is_a_batch(load: Load) -> None:
    assert load(seed=7) == load(seed=7)
    assert load(seed=7) != load(seed=8)


def test_ids_are_uniform(load: Load) -> None:
    cells = 64
    batch = load(batch=64, length=1000, vocab_size=cells, seed=1)
    counts = Counter(id_ for row in batch.targets for id_ in row)
    assert set(counts) == set(range(cells))
    chi_square = sum((count - 1000) ** 2 for count in counts.values()) / 1000
    part = 2 / (9 * (cells - 1))  # Wilson–Hilferty quantile of chi-square; false alarm 1e-6 per draw of a seed
    assert chi_square < (cells - 1) * (1 - part + NormalDist().inv_cdf(1 - 1e-6) * part**0.5) ** 3


def test_neighbours_are_independent(load: Load) -> None:
    """Pairs (input, target) over 8 × 8 cells: 32,000 disjoint pairs, false alarm 1e-6."""
    batch = load(batch=64, length=1000, vocab_size=8, seed=2)
    pairs = Counter(
        pair
        for ids, next_ in zip(batch.inputs, batch.targets, strict=True)
        for pair in list(zip(ids, next_, strict=True))[::2]
    )
    expected = 32_000 / 64
    part = 2 / (9 * 63)
    assert sum((count - expected) ** 2 for count in pairs.values()) / expected < (
        63 * (1 - part + NormalDist().inv_cdf(1 - 1e-6) * part**0.5) ** 3
    )


def test_a_vocabulary_of_one(load: Load) -> None:
    assert load(vocab_size=1).distinct == 1


def test_describe(load: Load) -> None:
    batch = load(batch=2, length=256, seed=0)
    ids = {id_ for row in batch.inputs + batch.targets for id_ in row}
    assert batch.distinct == len(ids)
    assert batch.describe() == f"random, 2 × 256 uniform ids, {len(ids)} distinct"


def test_distinct_targets_leaves_the_first_inputs_out() -> None:
    batch = TokenBatch("random", ((1, 2), (3, 2)), ((2, 2), (2, 4)), None, 10, None)
    assert (batch.distinct, batch.distinct_targets) == (4, 2)
