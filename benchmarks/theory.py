"""Whether initdiag.theory predicts what is measured, over all wirings; and how its error falls with width.

    python benchmarks/theory.py [--seeds 8] [--pairs NAME ...] [--backward] [--widths [NAME ...]] [--workers 2]

Each (config, scheme) pair of theory_pairs.py, d_model 1024 or more, is drawn with every seed, weights and tokens, and
run by the weightless engine; measured − predicted is averaged over seeds. One row per pair: the worst deviation of each
kind of number, ± its standard error, of stream and attention over all branches and layers. Asked are: stream variance
after every branch within 2 %, loss on given and on uniform targets within 0.02 nats, logit std within 1 %, attention
entropy within 2 %, gradient norms within 5 %. A "~" behind a number: outside of that but within 3 standard errors, as
where a loss of hundreds of nats has seeds that differ by more; a "!": missed.

Then the spreads: the standard deviation over seeds over the one that is predicted, by kind of number. Beyond noise,
1 is right and less is cautious.

With --widths, only some pairs, at widths from 64 to 1,024 and as many seeds as tell bias from noise.
"""

from __future__ import annotations

import argparse
import math
import os
import pickle
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))  # a process for each core instead
sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.theory_pairs import PAIRS, WIDE, Pair
from benchmarks.theory_runs import KINDS, Gap, gaps, off_by

WIDTHS = {64: 96, 128: 96, 256: 64, 512: 32, 1024: 16}  # d_model, and how many seeds
WIDTH_KINDS = ("stream", "attention std")
SHOWN = ("stream", "loss", "uniform", "logit std", "entropy", "attention std", "self-logit", "ratio", "share")
GRADIENTS = ("gradient", "parameter")
MARKS = {"ok": " ", "noise": "~", "miss": "!", "": " "}


def worst(found: Iterable[Gap], kind: str) -> Gap | None:
    """Return the number of a kind that is furthest off; one that is missed before one that is noisy."""
    return max(
        (gap for gap in found if gap.kind == kind),
        key=lambda gap: (gap.verdict == "miss", abs(gap.deviation)),
        default=None,
    )


def cell(gap: Gap | None) -> str:
    if gap is None:
        return f"{'-':>16}"
    times, digits = (1, 3) if KINDS[gap.kind][0] else (100, 2)
    text = f"{times * gap.deviation:+.{digits}f} ±{times * gap.error:.{digits}f}{MARKS[gap.verdict]}"
    return f"{text:>16}"


def header(kind: str) -> str:
    return f"{kind + (' ' if KINDS[kind][0] else ' %'):>16}"


def row(name: str, several: Sequence[Gap], kinds: Sequence[str]) -> str:
    return f"{name:20}" + "".join(cell(worst(several, kind)) for kind in kinds)


def print_counts(found: Mapping[str, Sequence[Gap]], kinds: Sequence[str]) -> None:
    print("\npairs in which all numbers of a kind hold:")
    for kind in kinds:
        if KINDS[kind][1] is None:
            continue
        verdicts = [gap.verdict for several in found.values() if (gap := worst(several, kind)) is not None]
        counts = ", ".join(f"{verdicts.count(one)} {one}" for one in ("ok", "noise", "miss"))
        print(f"  {kind:12} {counts}")
    for name, several in found.items():
        for gap in several:
            if gap.verdict == "miss":
                print(f"  missed: {name}, {gap.kind} {gap.name}: {100 * gap.deviation:+.2f} ±{100 * gap.error:.2f} %")


def print_spreads(found: Mapping[str, Sequence[Gap]]) -> None:
    """Std over seeds over the predicted one; of kinds that have several numbers in a pair, of their root mean squares,
    since the numbers of one run are not independent."""
    print("\nstd over seeds / predicted spread: geometric mean, and the pairs between which it lies")
    for kind in KINDS:
        ratios = {name: ratio for name, several in found.items() if (ratio := spread_ratio(several, kind)) is not None}
        if not ratios:
            continue
        mean = math.exp(statistics.fmean(map(math.log, ratios.values())))
        low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
        print(f"  {kind:14} {mean:5.2f}   {ratios[low]:5.2f} ({low}) to {ratios[high]:5.2f} ({high})")


def spread_ratio(found: Iterable[Gap], kind: str) -> float | None:
    """None where nothing is left to chance but rounding: less than 1e-6 of the number."""
    kept = [gap for gap in found if gap.kind == kind and gap.spread > 1e-6 * abs(gap.predicted)]
    square = statistics.fmean((gap.std / gap.spread) ** 2 for gap in kept) if kept else 0.0
    return math.sqrt(square) if square else None


def compare(
    pool: ProcessPoolExecutor, pairs: Mapping[str, Pair], seeds: int, backward: bool, kinds: Sequence[str]
) -> dict[str, list[Gap]]:
    """Run all pairs, and print each row when it is there."""
    print(f"{'':20}" + "".join(map(header, kinds)))
    runs = {name: pool.submit(gaps, name, pair, seeds, backward) for name, pair in pairs.items()}
    found = {}
    for name, run in runs.items():
        found[name] = run.result()
        print(row(name, found[name], kinds), flush=True)
    return found


def print_widths(pool: ProcessPoolExecutor, names: Iterable[str]) -> None:
    """How far one seed, and the mean of all, are from what is predicted, relative, in the mean over branches (layers).

    `one seed`: the standard deviation over seeds, with the distance of their mean. `mean`: |mean − predicted|, and in
    brackets what it would be of noise alone (`theory_runs.off_by`).
    """
    columns = [f"{kind}, {which} %" for kind in WIDTH_KINDS for which in ("one seed", "mean")]
    for name in names:
        print(f"{name:20}seeds" + "".join(f"{column:>28}" for column in columns))
        runs = {
            width: pool.submit(gaps, name, WIDE[name], seeds, d_model=width, n_heads=max(2, width // 64))
            for width, seeds in WIDTHS.items()
        }
        for width, run in runs.items():
            cells = []
            for kind in WIDTH_KINDS:
                several = [gap for gap in run.result() if gap.kind == kind]
                one = statistics.fmean(math.hypot(gap.std / gap.scale, gap.deviation) for gap in several)
                off, noise = off_by(several)
                cells += [f"{100 * one:.2f}", f"{100 * off:.2f} ({100 * noise:.2f})"]
            print(f"{width:<20}{WIDTHS[width]:5}" + "".join(f"{cell:>28}" for cell in cells), flush=True)
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description="Predicted beside measured.")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, metavar="NAME", help=f"of: {', '.join(PAIRS)}")
    parser.add_argument("--backward", action="store_true", help="gradient norms as well")
    parser.add_argument(
        "--widths", nargs="*", metavar="NAME", help=f"only the error against width, of: {', '.join(WIDE)}"
    )
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--save", type=Path, help="pickle all numbers into this file")
    arguments = parser.parse_args()
    start = time.perf_counter()
    with ProcessPoolExecutor(arguments.workers, mp_context=get_context("spawn")) as pool:
        if arguments.widths is not None:
            print_widths(pool, arguments.widths or WIDE)
        else:
            pairs = {name: PAIRS[name] for name in arguments.pairs or PAIRS}
            kinds = (*SHOWN, *(GRADIENTS if arguments.backward else ()))
            found = compare(pool, pairs, arguments.seeds, arguments.backward, kinds)
            if arguments.save:
                arguments.save.write_bytes(pickle.dumps(found))
            print_counts(found, kinds)
            print_spreads(found)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
