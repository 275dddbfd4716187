"""What it costs to draw weights, beside torch.Tensor.normal_ in the same run.

    python benchmarks/drawing.py [--repeats 15] [--threads N]

For each distribution, dtype and size: the rate of `engines.draw.fill`, on all cores, over that of normal_ on the same
tensors (a) as it is, one call after the other, each of which runs on one core, and (b) in as many Python threads as we
use. The target is 0.8 of (b). A size stands for several tensors of it, one for each thread at least; "GPT-2" for all
parameters of the 12-layer model, its vectors constant. Then orthogonal matrices, beside nn.init.orthogonal_.

Whatever else runs on the machine only adds time: the fastest of many repeats is taken, of all ways in turn.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from torch import Tensor, nn

from initdiag.engines.draw import fill
from initdiag.model import Architecture, parameters
from initdiag.schemes.distributions import Constant, Distribution, Normal, Orthogonal, Truncated, Uniform, truncated

LAWS: dict[str, Distribution] = {
    "normal": Normal(0.02),
    "uniform": Uniform(0.02),
    "cut at 2": Truncated(0.02, 2.0),
    "cut at 3": Truncated(0.02, 3.0),
    "cut at 2, corrected": truncated(0.02, 2.0),
    "cut at 3, corrected": truncated(0.02, 3.0),
    "cut at 0.5": Truncated(0.02, 0.5),
    "cut at 5": Truncated(0.02, 5.0),
    "constant": Constant(1.0),
}
SIZES = (2**16, 2**20, 2**24)
ENTRIES = 2**22  # at least, of one measurement
VECTORS = Constant(0.0)
GPT2 = Architecture(vocab_size=50_257, context=1024, d_model=768, n_layers=12, n_heads=12)


def fastest(ways: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return the seconds of each, which run in turn."""
    best = dict.fromkeys(ways, math.inf)
    for _ in range(repeats + 1):  # the first one warms up, and is never the fastest
        for name, run in ways.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def row(tensors: list[Tensor], law: Distribution, threads: int, pool: ThreadPoolExecutor, repeats: int) -> str:
    """Measure one distribution on these tensors; those with one axis are constant."""
    todo = [(x, law if x.dim() > 1 else VECTORS, str(at)) for at, x in enumerate(tensors)]
    largest_first = sorted(tensors, key=Tensor.numel, reverse=True)
    best = fastest(
        {
            "fill": lambda: fill(todo, 0, threads),
            "normal_": lambda: [x.normal_() for x in tensors],
            "threads": lambda: list(pool.map(Tensor.normal_, largest_first)),
        },
        repeats,
    )
    rate = sum(map(Tensor.numel, tensors)) / best["fill"]
    return f"{rate / 1e6:7.0f} M/s {best['normal_'] / best['fill']:7.2f} {best['threads'] / best['fill']:7.2f}"


def orthogonal(shape: tuple[int, int], count: int, threads: int, repeats: int) -> float:
    tensors = [torch.empty(shape) for _ in range(count)]
    todo = [(x, Orthogonal(1.0, max(shape)), str(at)) for at, x in enumerate(tensors)]
    ways = {"fill": lambda: fill(todo, 0, threads), "torch": lambda: [nn.init.orthogonal_(x) for x in tensors]}
    best = fastest(ways, repeats)
    return best["torch"] / best["fill"]


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    options.add_argument("--repeats", type=int, default=15)
    options.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    options.add_argument("--laws", nargs="*", default=list(LAWS), choices=LAWS, metavar="LAW")
    given = options.parse_args()
    gpt2 = [parameter.shape for parameter in parameters(GPT2)]
    print(f"torch {torch.__version__}, {given.threads} threads, the fastest of {given.repeats}")
    print(f"{'':34}        ours  (a) one (b) threads")
    worst = math.inf
    with ThreadPoolExecutor(given.threads) as pool, torch.no_grad():
        for dtype in (torch.float32, torch.bfloat16):
            for size in (*SIZES, None):
                if size is None:
                    tensors = [torch.empty(shape, dtype=dtype) for shape in gpt2]
                else:
                    tensors = [
                        torch.empty(256, size // 256, dtype=dtype) for _ in range(max(given.threads, ENTRIES // size))
                    ]
                for name in given.laws:
                    told = row(tensors, LAWS[name], given.threads, pool, given.repeats)
                    worst = min(worst, float(told.split()[-1]))
                    where = "GPT-2" if size is None else f"{len(tensors)} × 2^{size.bit_length() - 1}"
                    print(f"{str(dtype)[6:]:9} {where:9} {name:20} {told}", flush=True)
    print(f"the least of (b): {worst:.2f} (target 0.8)")
    for shape, count in (((768, 768), 12), ((3072, 768), 6)):
        ratio = orthogonal(shape, count, given.threads, max(3, given.repeats // 4))
        print(f"orthogonal, {count} × {shape}: {ratio:.2f} × the rate of nn.init.orthogonal_")


if __name__ == "__main__":
    main()
