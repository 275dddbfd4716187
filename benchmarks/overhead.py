"""What initdiag costs beside a script written by hand, as ratios of whole processes measured in turn in one run.

    python benchmarks/overhead.py [--runs 5] [--modules]

Prints the median wall time and peak memory of each command, and the medians of the ratios, pair by pair. The targets
are `check` at most 1.1 × the wall time and 1.0 × the peak memory of by_hand.py, and `compare` of three schemes at
most 2.4 × one `check`. With --modules, the Hugging Face class of GPT-2 small: `check` at most 1.25 × the wall time and
1.1 × the peak memory of hooks_by_hand.py, both with and without a backward.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
INITDIAG = [sys.executable, "-m", "initdiag"]
COMMANDS = {
    "by hand": [sys.executable, "-W", "ignore", str(HERE / "by_hand.py")],
    "check": [*INITDIAG, "check", str(HERE.parent / "configs/gpt2.yaml"), "-q"],
    "compare": [*INITDIAG, "compare", "--schemes", "default,gpt2,scaled", "-q", "--exit-zero"],
}
MODULES = {
    "hooks": [sys.executable, "-W", "ignore", str(HERE / "hooks_by_hand.py")],
    "check": [*INITDIAG, "check", str(HERE / "gpt2"), "-q"],
    "hooks, backward": [sys.executable, "-W", "ignore", str(HERE / "hooks_by_hand.py"), "--backward"],
    "check --backward": [*INITDIAG, "check", str(HERE / "gpt2"), "-q", "--backward"],
}
# as installed packages run: with bytecode, which the uncounted first run writes
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
RATIOS = (("check", "by hand"), ("compare", "check"))
MODULE_RATIOS = (("check", "hooks"), ("check --backward", "hooks, backward"))


def measure(command: list[str]) -> tuple[float, float]:
    """Return wall seconds and peak MiB of one process."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=ENVIRONMENT)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit(f"{' '.join(command)} ended with status {status}")
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss: bytes there, KiB on Linux
    return seconds, usage.ru_maxrss * unit / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description="Whole-process cost of initdiag against a script written by hand.")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--modules", action="store_true", help="the Hugging Face class in place of the reference")
    arguments = parser.parse_args()
    runs, commands, ratios = arguments.runs, COMMANDS, RATIOS
    if arguments.modules:
        commands, ratios = MODULES, MODULE_RATIOS
    for command in commands.values():
        measure(command)  # warm the file cache
    measured: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(runs):  # in turn, so that a machine that drifts is fair to all
        for name, command in commands.items():
            measured[name].append(measure(command))
    for name, results in measured.items():
        seconds, memory = zip(*results, strict=True)
        print(f"{name:16}  {statistics.median(seconds):6.2f} s  {statistics.median(memory):6.0f} MiB   ({runs} runs)")
    for name, base in ratios:
        pairs = list(zip(measured[name], measured[base], strict=True))
        time_ratio = statistics.median(one[0] / other[0] for one, other in pairs)
        memory_ratio = statistics.median(one[1] / other[1] for one, other in pairs)
        print(f"{name} / {base}: {time_ratio:.2f} × the wall time, {memory_ratio:.2f} × the peak memory")


if __name__ == "__main__":
    main()
