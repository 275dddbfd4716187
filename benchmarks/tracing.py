"""What the tracer adds to the forward of a 100-layer model: the same forward with and without it, in turn.

    python benchmarks/tracing.py [--runs 5]

Prints the median seconds and the median ratios: of the trace alone (roles, stream, branches; the target is at most
1.1 ×), and with all numbers that are taken on the way.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from benchmarks.model_factories import build
from initdiag.measure.watch import Watch
from initdiag.trace import Tracer

LAYERS, D_MODEL, LENGTH = 100, 512, 256


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description="The tracer's share of a forward.")
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    model = build(n_layers=LAYERS, d_model=D_MODEL, context=LENGTH).eval()
    ids = torch.randint(1000, (2, LENGTH), generator=torch.Generator().manual_seed(0))

    def traced() -> None:
        with Tracer(model, ids):
            model(ids)

    def measured() -> None:
        with Tracer(model, ids, callbacks=Watch((2, LENGTH)).callbacks):
            model(ids)

    ways: dict[str, Callable[[], object]] = {"plain": lambda: model(ids), "traced": traced, "measured": measured}
    with torch.no_grad():
        for run in ways.values():
            run()  # warm
        times = [{name: seconds(run) for name, run in ways.items()} for _ in range(runs)]
    for name in ways:
        median = statistics.median(one[name] for one in times)
        ratio = statistics.median(one[name] / one["plain"] for one in times)
        print(f"forward of {LAYERS} layers, {name:8}  {median:6.2f} s   {ratio:.2f} ×   ({runs} runs)")


if __name__ == "__main__":
    main()
