"""What the tracer adds to the forward of a 100-layer model: the same forward with and without it, in turn.

    python benchmarks/tracing.py [--runs 5]

Prints the median seconds of both and the median ratio. The target is at most 1.1 ×.
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
        with Tracer(model, ids, callbacks=Watch().callbacks):
            model(ids)

    with torch.no_grad():
        model(ids), traced()  # warm
        pairs = [(seconds(lambda: model(ids)), seconds(traced)) for _ in range(runs)]
    plain, with_trace = (statistics.median(times) for times in zip(*pairs, strict=True))
    ratio = statistics.median(one / other for other, one in pairs)
    print(f"forward of {LAYERS} layers  {plain:6.2f} s   traced and measured  {with_trace:6.2f} s   ({runs} runs)")
    print(f"traced / plain: {ratio:.2f} × the wall time")


if __name__ == "__main__":
    main()
