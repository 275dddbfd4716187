"""What `initdiag predict` costs, as a whole process, against a process that only imports what it needs.

    python benchmarks/predict.py [--repeats 5]

Prints wall time (the least of the repeats), peak memory, and the ratio to the baseline: numpy, pydantic, typer and yaml
imported, one pydantic model made, nothing done. Width is to cost nothing, depth no more than in proportion.
"""

from __future__ import annotations

import argparse
import compileall
import os
import subprocess
import sys
import time
from pathlib import Path

BASELINE = "import numpy, typer, yaml; from pydantic import BaseModel; type('M', (BaseModel,), {})"
PROGRAM = "import sys; from initdiag.cli.entry import main; sys.argv = ['initdiag', *{words!r}]; main()"
PEAK = """
import atexit, pathlib
status = pathlib.Path("/proc/self/status")
atexit.register(lambda: print("PEAK", status.read_text().partition("VmHWM:")[2].split()[0]))
"""
COMMANDS = {
    "gpt2": "predict gpt2 -q --exit-zero",
    "gpt2, 4 x as wide": "predict gpt2 -q --exit-zero --set model.d_model=3072 --set model.n_heads=48",
    "gpt2, one sequence": "predict gpt2 -q --exit-zero --set tokens.batch=1",
    "gpt2, 4 x as deep, one sequence": "predict gpt2 -q --exit-zero --set tokens.batch=1 --set model.n_layers=48",
    "llama-3.1-405b, without advice": "predict llama-3.1-405b -q --exit-zero --set gate.select=[LOSS003]",
    "llama-3.1-405b, with advice": "predict llama-3.1-405b -q --exit-zero",
}


def measured(code: str, repeats: int) -> tuple[float, float]:
    """Return seconds and MB of a process."""
    best, peak = float("inf"), 0.0
    for _ in range(repeats):
        began = time.perf_counter()
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        ran = subprocess.run(
            [sys.executable, "-c", PEAK + code], capture_output=True, text=True, env=environment, check=True
        )
        best = min(best, time.perf_counter() - began)
        peak = float(ran.stdout.rpartition("PEAK ")[2]) / 1024
    return best, peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    os.chdir(Path(__file__).parent.parent)
    compileall.compile_dir("initdiag", quiet=1)  # as it is where it is installed
    baseline, peak = measured(BASELINE, repeats)
    print(f"{'imports only':34}{baseline:7.2f} s {peak:6.0f} MB   1.0")
    for name, words in COMMANDS.items():
        seconds, peak = measured(PROGRAM.format(words=words.split()), repeats)
        print(f"{name:34}{seconds:7.2f} s {peak:6.0f} MB {seconds / baseline:5.1f}")


if __name__ == "__main__":
    main()
