"""The weightless engine gives what the dense one gives, in distribution: six wirings, tied and untied.

Each model runs with 64 seeds under both engines, forward and backward, with every matrix answered without entries.
Compared are mean and spread of every number of `weightless_models.numbers`, and how each pair of them goes together;
benchmarks/weightless_statistics.py has the permutation test and its table. All together raise a false alarm with
probability 1e-3 at most (family-wise and exact, whatever the distributions); seeds are fixed, so that what passes stays
passing. With 64 runs a side, a difference in a mean of 1.1 standard deviations of that number over seeds is found nine
times in ten, and with it a matrix whose std is off by 3 %.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from benchmarks.weightless_statistics import ALPHA, SEEDS, compare, judged
from tests.engines.weightless_models import MODELS, every_matrix_asked, model, sample

RUNS = 64
NUMBERS = tuple(f"number {at}" for at in range(30))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_both_engines_give_one_distribution(name: str) -> None:
    verdict = judged(name, RUNS, layers=1 if name.endswith(" tied") else 2)
    differences = "; ".join(f"{label} by {size:.1f} std" for label, size in verdict.largest[:8])
    assert verdict.p > ALPHA / len(MODELS), f"family-wise p = {verdict.p:.1e}: {differences}"


def test_a_seed_gives_each_engine_its_own_draw_and_again_the_same() -> None:
    of = model("llama, untied", layers=1)
    with every_matrix_asked():
        names, dense = sample(of, "dense", (3, 4))
        _, weightless = sample(of, "weightless", (3, 4))
        _, again = sample(of, "weightless", (3,))
    assert not torch.isclose(dense, weightless, rtol=1e-4).any(), names
    assert torch.equal(again[0], weightless[0])
    assert not torch.isclose(weightless[0], weightless[1], rtol=1e-4).any()


def _draws(seed: int, runs: int = RUNS) -> Tensor:
    """Log-normal numbers with a common factor: skewed, heavy-tailed and dependent."""
    generator = torch.Generator().manual_seed(seed)
    common, own = (torch.randn(runs, width, generator=generator, dtype=torch.float64) for width in (1, len(NUMBERS)))
    return (0.7 * common + 0.7 * own - torch.tensor([0.0, 1.0]).repeat(len(NUMBERS) // 2)).exp() - 0.1


def test_false_alarms_are_as_rare_as_stated() -> None:
    """Of 200 comparisons at a rate of 0.05, up to 26 alarms: the binomial's tail beyond is 5e-6."""
    alarms = sum(compare(NUMBERS, _draws(2 * at, 16), _draws(2 * at + 1, 16), 0.05).p <= 0.05 for at in range(200))
    assert 1 <= alarms <= 26  # none at all has probability 4e-5


@pytest.mark.parametrize("kind", ["mean", "spread", "together"])
def test_a_difference_is_found_and_named(kind: str) -> None:
    dense, weightless = _draws(0), _draws(1)
    log = (weightless[:, 4] + 0.1).log()
    if kind == "mean":
        changed = log + 1.5
    elif kind == "spread":
        changed = 3 * (log - log.mean()) + log.mean()
    else:  # the same numbers in other runs
        changed = log.roll(1)
        dense[:, 4], weightless[:, 4] = dense[:, 6], weightless[:, 6]
        dense[:, 4] *= 1.1
        changed = (weightless[:, 6].roll(1) + 0.1).log()
    weightless[:, 4] = changed.exp() - 0.1
    verdict = compare(NUMBERS, dense, weightless, ALPHA)
    assert verdict.p <= ALPHA
    expected = {"mean": "number 4", "spread": "spread of number 4", "together": "number 4 with number 6"}
    assert expected[kind] in [label for label, _ in verdict.largest]


def test_samples_of_different_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one shape.*\(64, 30\) and \(32, 30\)"):
        compare(NUMBERS, _draws(0), _draws(1, 32), ALPHA)
