"""Whether the weightless engine gives what the dense one gives, in distribution, number by number.

    python benchmarks/weightless_statistics.py [--seeds 256] [--layers 2] [--models "gpt2, tied" …]

Both engines run the small models of tests/engines/weightless_models.py with the same seeds, which give them independent
draws. Prints for each number of each model mean and std under both engines, z of the difference of means (Welch) and
the F ratio of the variances, of the logarithm where a number is always positive; then the verdict on the model.

The verdict is a permutation test of all numbers of a model together (Westfall and Young, 1993): were both engines the
same distribution, runs could change sides. Compared are the mean of each number, its mean distance from the median
(spread, as Brown and Forsythe), and the mean distance from 0 of the difference and of the sum of each pair of numbers
in units of their std (how they go together). What differs is taken in units of its std over permutations; the p-value
is the share of permutations whose largest difference of all is as large as the one seen. It is exact for any
distribution, dependence and number of seeds, and family-wise over all of a model's comparisons; over models it is
Bonferroni's.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script: for `tests`

from tests.engines.weightless_models import MODELS, every_matrix_asked, model, sample

ALPHA = 1e-3  # of a false alarm over all comparisons of all models
PERMUTATIONS = 2**15 - 1  # the smallest p-value is then 2⁻¹⁵, less than ALPHA over twelve models
SEEDS = 10_000  # from the first seed of one model to that of the next
STEP = 2**10  # permutations at a time
FEW = 50  # exceedances that tell p well enough


@dataclass(frozen=True)
class Row:
    """One number of a model under both engines; `log` says that its logarithm is what is compared."""

    name: str
    log: bool
    dense: tuple[float, float]
    weightless: tuple[float, float]
    z: float
    f: float


@dataclass(frozen=True)
class Verdict:
    """What all comparisons of one model say together.

    p: family-wise over them. largest: the differences of `critical` or more, else the largest one, in units of their
    std over permutations, with what they are of. critical: what the largest of a permutation reaches with probability
    alpha (as far as so many permutations were made as tell).
    """

    rows: tuple[Row, ...]
    comparisons: int
    p: float
    critical: float
    largest: tuple[tuple[str, float], ...]


def compare(
    names: Sequence[str], dense: Tensor, weightless: Tensor, alpha: float, permutations: int = PERMUTATIONS
) -> Verdict:
    """Compare two samples (runs, numbers) of float64, one run of each engine a row.

    Raises:
        ValueError: the samples differ in shape.
    """
    if dense.shape != weightless.shape:
        raise ValueError(f"expected samples of one shape, found {tuple(dense.shape)} and {tuple(weightless.shape)}")
    rows = []
    columns = []
    for at, name in enumerate(names):
        both = torch.cat([dense[:, at], weightless[:, at]])
        log = bool((both > 0).all())
        one, two = both.log().chunk(2) if log else both.chunk(2)
        moments = [(float(x.mean()), float(x.std())) for x in (dense[:, at], weightless[:, at])]
        error = math.sqrt(float(one.var() + two.var()) / len(one))
        if error == 0:  # a constant says nothing of the draws; but it must be the same one
            error = math.nan if float(one[0]) == float(two[0]) else 0.0
        z = float(two.mean() - one.mean()) / error if error else math.inf
        rows.append(Row(name, log, moments[0], moments[1], z, float(two.var() / one.var())))
        columns.append(torch.cat([one, two]))
    labels, features = _features(names, torch.stack(columns, dim=1))
    generator = torch.Generator().manual_seed(0)
    sides = torch.ones(len(features))
    sides[: len(dense)] = -1
    seen = (sides @ features).abs()
    peak, limit = float(seen.max()), int(alpha * (permutations + 1)) - 1  # permutations that may exceed it
    chance: list[Tensor] = []
    exceeding = done = 0
    while done < permutations and exceeding <= max(limit, FEW):  # from there on p is above alpha, whatever follows
        count = min(STEP, permutations - done)
        order = torch.rand(count, len(sides), generator=generator).argsort(dim=1)
        chance.append((sides[order] @ features).abs().amax(dim=1))
        exceeding += int((chance[-1] >= peak).sum())
        done += count
    critical = float(torch.cat(chance).sort(descending=True).values[max(int(alpha * done) - 1, 0)])
    above = [at for at in seen.argsort(descending=True).tolist() if seen[at] >= min(critical, peak)]
    largest = tuple((labels[at], float(seen[at])) for at in above)
    return Verdict(tuple(rows), len(labels), (1 + exceeding) / (1 + done), critical, largest)


def _features(names: Sequence[str], values: Tensor) -> tuple[list[str], Tensor]:
    """What is summed over each side: numbers, their spread, that of differences and sums; (runs, comparisons), float32.

    Centred over all runs and scaled so that a random half's sum minus the other's has std 1.
    """
    count = len(values)
    z = values - values.mean(0)
    std = z.std(0, unbiased=False)
    z = z / torch.where(std > 0, std, 1.0)
    first, second = torch.triu_indices(len(names), len(names), offset=1)
    labels = [*names, *(f"spread of {name}" for name in names)]
    pairs = list(zip(first.tolist(), second.tolist(), strict=True))
    labels += [f"{names[a]} {sign} {names[b]}" for sign in "-+" for a, b in pairs]
    spread = (values - values.median(0).values).abs()
    features = torch.cat([z, spread, (z[:, first] - z[:, second]).abs(), (z[:, first] + z[:, second]).abs()], dim=1)
    features = features - features.mean(0)
    scale = features.square().sum(0).mul(count / (count - 1)).sqrt()
    moving = scale > 0
    labels = [label for label, kept in zip(labels, moving.tolist(), strict=True) if kept]
    return labels, (features[:, moving] / scale[moving]).float()


def judged(name: str, runs: int, layers: int = 2, alpha: float = ALPHA / len(MODELS)) -> Verdict:
    """Run a model of MODELS under both engines, with seeds that no other model has, and compare."""
    of, first = model(name, layers), SEEDS * MODELS.index(name)
    seeds = range(first, first + runs)
    with every_matrix_asked():
        names, dense = sample(of, "dense", seeds)
        others, weightless = sample(of, "weightless", seeds)
    if names != others:
        raise ValueError(f"{name}: the engines see different numbers, {set(names) ^ set(others)}")
    return compare(names, dense, weightless, alpha)


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--seeds", type=int, default=256)
    options.add_argument("--layers", type=int, default=2)
    options.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS, metavar="MODEL")
    given = options.parse_args()
    torch.set_num_threads(1)
    alpha = ALPHA / len(given.models)
    failed = []
    for name in given.models:
        verdict = judged(name, given.seeds, given.layers, alpha)
        print(f"\n{name}\n{'':44}  {'dense':>22}  {'weightless':>22}  {'z':>6}  {'F':>5}")
        for row in verdict.rows:
            means = "  ".join(f"{mean:11.4g} ± {std:8.3g}" for mean, std in (row.dense, row.weightless))
            print(f"{row.name[-44:]:44}  {means}  {row.z:6.2f}  {row.f:5.2f}{'  log' if row.log else ''}")
        label, size = verdict.largest[0]
        print(f"{verdict.comparisons} comparisons; largest {size:.2f} std: {label}; family-wise p = {verdict.p:.2g}")
        if verdict.p <= alpha:
            failed.append(name)
            for label, size in verdict.largest:
                print(f"  DIFFERS by {size:.2f} std (critical {verdict.critical:.2f}): {label}")
    what = f"differ: {', '.join(failed)}" if failed else "no difference found"
    print(f"\n{len(given.models)} models, {given.seeds} seeds, family-wise false-alarm rate {ALPHA:g}: {what}")
    raise SystemExit(bool(failed))


if __name__ == "__main__":
    main()
