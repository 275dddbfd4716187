"""What schemes promise about depth, on measured models: log Σ of the branch variances against log N.

The laws are those of facts/schemes.md, section B: unscaled +1, σ/√(2N) 0, σ/√(2(l+1)) logarithmic, wang −1.
"""

from __future__ import annotations

import math
from statistics import mean, stdev
from typing import Any

import pytest

from tests.judged import measured

DEPTHS = (4, 8, 16)
SEEDS = (0, 1, 2)
MODEL: dict[str, Any] = {"vocab_size": 128, "context": 32, "d_model": 128, "n_heads": 4, "activation": "gelu_tanh"}
STD = math.sqrt(2 / (5 * 128))  # small init's, so that branches are large beside the embedding's variance
# Attention's part of a branch grows from layer to layer as tokens become alike, by a few percent of the sum; measured
# slopes of facts/schemes.md, L = 6 to 48: +1.02, −0.02, −1.06 for laws of +1, 0 and −1.
DRIFT = 0.1


def total(scheme: str, n_layers: int, seed: int, **init: Any) -> float:
    """Σ of the branch variances of one model."""
    config = {
        "model": {**MODEL, "n_layers": n_layers},
        "init": {"scheme": scheme, "seed": seed, **init},
        "tokens": {"batch": 4, "length": 32},
    }
    branches = measured(config).residual.branches
    assert len(branches) == 2 * n_layers
    return math.fsum(branch.branch_variance for branch in branches)


def slopes(scheme: str, **init: Any) -> tuple[float, float]:
    """The slope of log Σ against log N by least squares: mean over seeds, and its standard error."""
    x = [math.log(n) for n in DEPTHS]
    centred = [one - mean(x) for one in x]
    found = []
    for seed in SEEDS:
        y = [math.log(total(scheme, n, seed, **init)) for n in DEPTHS]
        found.append(math.fsum(a * b for a, b in zip(centred, y, strict=True)) / math.fsum(a * a for a in centred))
    return mean(found), stdev(found) / math.sqrt(len(SEEDS))


LAWS: list[tuple[str, dict[str, Any], float]] = [
    ("gpt2", {"std": STD}, 1.0),
    ("scaled", {"std": STD}, 0.0),
    ("wang", {}, -1.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "init", "law"), LAWS, ids=[law[0] for law in LAWS])
def test_slope(scheme: str, init: dict[str, Any], law: float) -> None:
    slope, error = slopes(scheme, **init)
    assert error < 0.05  # else three seeds would not tell the laws apart
    assert abs(slope - law) < DRIFT + 5 * error


@pytest.mark.slow
def test_a_std_by_layer_makes_the_sum_grow_like_log_n() -> None:
    """σ/√(2(l+1)): every doubling of the depth adds the same, Σ over l from N to 2N of 1/(l+1), near ln 2 branches.

    The last doubling and the one before it are compared: their ratio is 1 for a logarithm, 2 for N, 1/2 for 1/N. The
    sums themselves are 0.634 from 4 to 8 and 0.663 from 8 to 16, a ratio of 1.045.
    """
    ratios = []
    for seed in SEEDS:
        sums = [total("olmo-mitchell", n, seed) for n in DEPTHS]
        ratios.append((sums[2] - sums[1]) / (sums[1] - sums[0]))
    error = stdev(ratios) / math.sqrt(len(SEEDS))
    assert error < 0.1
    assert abs(mean(ratios) - 1.045) < 0.1 + 5 * error


@pytest.mark.slow
def test_zero_residual_branches_add_nothing() -> None:
    assert total("zero-residual", 8, 0) == 0
