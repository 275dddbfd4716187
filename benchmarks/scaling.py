"""How the weightless engine grows, and what it saves beside the largest dense model that fits, in one run.

    python benchmarks/scaling.py [--length 64] [--runs 3] [--targets] [--skip-dense]

Prints the seconds of one forward for growing depth and growing width at a fixed number of tokens, with the exponents
of a least-squares line through the logarithms (targets: 1.0 in n_layers, at most 1.2 in d_model; what doesn't grow,
the head's product and the process, is measured at no layers and taken off); then the largest Llama-like model whose
weights fit in half of the free memory, dense and weightless, as whole processes. With --targets, the commands of the
README, each with its seconds, its peak memory, and the seconds over a floor measured in the same run: importing torch,
drawing as many normal numbers as they need, and as many floating-point operations at the speed of one large product.
What was asked for stands beside them as such a ratio.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch

from benchmarks.overhead import ENVIRONMENT, INITDIAG, measure
from initdiag.case import prepare
from initdiag.config import from_mapping
from initdiag.engines import Settings, weightless
from initdiag.measure.observe import observe
from initdiag.memory import available
from initdiag.subjects import Subject
from initdiag.tokens import TokenBatch
from initdiag.weightless.normals import Normals

VOCABULARY = 32_000
DEPTHS, WIDTHS = (4, 8, 16, 32), (1024, 2048, 4096, 8192)


def llama(d_model: int, n_layers: int, length: int) -> dict[str, dict[str, object]]:
    """A Llama-like config of any width: d_ff 3.5 times it, four query heads to a key head of 128."""
    heads = d_model // 128
    model = {
        "vocab_size": VOCABULARY, "context": length, "d_model": d_model, "n_layers": n_layers, "n_heads": heads,
        "n_kv_heads": max(1, heads // 4), "d_ff": 7 * d_model // 2, "activation": "silu", "gated": True,
        "norm": "rmsnorm",
        "position": "rotary", "tied": False, "biases": False,
    }  # fmt: skip
    return {"model": model, "init": {"scheme": "scaled"}, "tokens": {"batch": 1, "length": length}}


def seconds(d_model: int, n_layers: int, length: int, runs: int) -> float:
    """Return the median seconds of a forward and all its numbers."""
    case = prepare(from_mapping(llama(d_model, n_layers, length), "llama"))

    def once() -> None:
        def watched(of: Subject, module: torch.nn.Module, batch: TokenBatch) -> object:
            return observe(of, module, batch)

        weightless.run(case.subject, case.batch, 0, Settings(engine="weightless"), watched)

    once()
    return statistics.median(timed(once) for _ in range(runs))


def timed(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """Return the slope of a least-squares line through (ln size, ln cost)."""
    x, y = [math.log(size) for size in sizes], [math.log(cost) for cost in costs]
    mean_x, mean_y = statistics.mean(x), statistics.mean(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def growth(length: int, runs: int) -> None:
    by_depth = [seconds(2048, n_layers, length, runs) for n_layers in DEPTHS]
    rest = (DEPTHS[1] * by_depth[0] - DEPTHS[0] * by_depth[1]) / (DEPTHS[1] - DEPTHS[0])  # at no layers
    print(
        f"T = {length}, d_model 2048:",
        ", ".join(f"{n} layers {s:.2f} s" for n, s in zip(DEPTHS, by_depth, strict=True)),
    )
    print(f"  without layers {rest:.2f} s; exponent in n_layers {exponent(DEPTHS, [s - rest for s in by_depth]):.2f}")
    by_width = [seconds(d_model, 8, length, runs) - seconds(d_model, 4, length, runs) for d_model in WIDTHS]
    print("4 layers more:", ", ".join(f"d_model {d} {s:.2f} s" for d, s in zip(WIDTHS, by_width, strict=True)))
    print(f"  exponent in d_model {exponent(WIDTHS, by_width):.2f}")


def beside_dense(length: int) -> None:
    """The largest model of width 4096 whose weights fit in half of the free memory, both ways."""
    free = available("cpu") or 2**33
    per_layer = 4 * (4096 * 4096 * 2 + 4096 * 1024 * 2 + 3 * 4096 * 14336)
    n_layers = max(1, (free // 2 - 8 * VOCABULARY * 4096) // per_layer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "largest.yaml"
        path.write_text(json.dumps(llama(4096, n_layers, length)))
        found = {}
        for engine in ("weightless", "dense"):
            found[engine] = measure([*INITDIAG, "check", str(path), "-q", "--engine", engine, "--exit-zero"])
            print(f"{engine:10}  {n_layers} layers of width 4096: {found[engine][0]:.1f} s, {found[engine][1]:.0f} MiB")
    time_ratio, memory_ratio = (found["dense"][at] / found["weightless"][at] for at in (0, 1))
    print(f"dense / weightless: {time_ratio:.1f} × the wall time, {memory_ratio:.1f} × the peak memory")


LLAMA = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 16384, "num_hidden_layers": 126,
    "num_attention_heads": 128, "num_key_value_heads": 8, "intermediate_size": 53248, "vocab_size": 128256,
    "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
}  # the class's defaults are DeepSeek-V3
SHORT = ["--set", "tokens.batch=1", "--set", "tokens.length=64"]


# Seconds and MiB that were asked for, where the floor of a 405B forward takes 4 s: the ratio is what carries over.
ASKED_FLOOR = 4.0
ASKED = {
    "llama-3.1-405b": (10, 1000),
    "llama-3.1-405b --backward": (45, 4000),
    "Hugging Face Llama, 405B": (15, 1200),
    "Hugging Face DeepSeek-V3": (45, 3000),
}


def targets() -> None:
    """Whole processes at T = 64: llama-3.1-405b and DeepSeek-V3 (671B), forward and backward; GPT-2 small."""
    floor, small = _floor(draws=1.27e9, products=2.7e11), _floor(draws=8.5e6, products=4.9e9)
    print(f"floor of a 405B forward here: {floor:.1f} s (import, 1.27 G normal numbers, 270 G operations)")
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, content in (("llama", LLAMA), ("deepseek-v3", DEEPSEEK)):
            files[name] = Path(folder) / name
            files[name].mkdir()
            (files[name] / "config.json").write_text(json.dumps(content))
        check = [*INITDIAG, "check", "-q", "--exit-zero", "--engine", "weightless", *SHORT]
        wall, memory = measure([*check, "gpt2"])
        ratio = f"{wall / small:.2f} × its floor of {small:.1f} s (asked: 1.5)"
        print(f"{'gpt2':26}  {wall:6.1f} s  {memory:6.0f} MiB   {ratio}")
        commands = {
            "llama-3.1-405b": [*check, "llama-3.1-405b"],
            "llama-3.1-405b --backward": [*check, "llama-3.1-405b", "--backward"],
            "Hugging Face Llama, 405B": [*check, str(files["llama"])],
            "Hugging Face DeepSeek-V3": [*check, str(files["deepseek-v3"])],
            "DeepSeek-V3 --backward": [*check, str(files["deepseek-v3"]), "--backward"],
        }
        for name, command in commands.items():
            wall, memory = measure(command)
            asked = ""
            if name in ASKED:
                time_asked, memory_asked = ASKED[name]
                asked = f" (asked: {time_asked / ASKED_FLOOR:.2f}, {memory_asked} MiB)"
            print(f"{name:26}  {wall:6.1f} s  {memory:6.0f} MiB   {wall / floor:.2f} × the floor{asked}")


def _floor(draws: float, products: float) -> float:
    """Seconds for importing torch, so many normals in two threads, and so many operations in one large product."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-W", "ignore", "-c", "import torch"], check=True, env=ENVIRONMENT)
    imported = time.perf_counter() - start
    normals = Normals(0, torch.get_num_threads())
    drawn = min(timed(lambda: normals("floor", 64, 2**18)) for _ in range(5)) / (64 * 2**18)
    matrix = torch.randn(2048, 2048)
    multiplied = min(timed(lambda: matrix @ matrix) for _ in range(5)) / (2 * 2048**3)
    return imported + draws * drawn + products * multiplied


def main() -> None:
    parser = argparse.ArgumentParser(description="Growth of the weightless engine.")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--targets", action="store_true", help="only the commands of the README, against a floor")
    parser.add_argument("--skip-dense", action="store_true", help="not the dense model, which takes half a minute")
    arguments = parser.parse_args()
    if arguments.targets:
        targets()
        return
    growth(arguments.length, arguments.runs)
    if not arguments.skip_dense:
        beside_dense(arguments.length)


if __name__ == "__main__":
    main()
