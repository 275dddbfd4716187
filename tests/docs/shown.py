"""The commands that the pages show with their output, and the program in this process, to be held against them."""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import console
import pytest

from initdiag.cli import check, compare
from initdiag.cli.main import run as program
from initdiag.report import Report

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SHOWN = [(page, block) for page in PAGES for block in console.shown(page)]
NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
BARS = re.compile(r"[▏▎▍▌▋▊▉█▁▂▃▄▅▆▇]+")


@dataclass(frozen=True)
class Printed:
    """What a command printed on stdout, and the reports of checks and comparisons that it made."""

    out: str
    reports: tuple[Report, ...]


def ran(command: str) -> Printed:
    """Run a command in this process as `console.run` does in its own."""
    with _environment() as (out, reports):
        sys.argv = shlex.split(command)
        code = program()
        out.flush()
    assert code in (0, 1), command
    return Printed(out.buffer.getvalue().decode(), tuple(reports))  # type: ignore[attr-defined]


@contextmanager
def _environment() -> Iterator[tuple[io.TextIOWrapper, list[Report]]]:
    reports: list[Report] = []

    def kept(function):  # type: ignore[no-untyped-def]
        def call(*arguments, **named):  # type: ignore[no-untyped-def]
            reports.append(function(*arguments, **named))
            return reports[-1]

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "GITHUB_ACTIONS", "INITDIAG_OUTPUT_FORMAT"):
            patch.delenv(name, raising=False)
        patch.setenv("TERM", "dumb")
        patch.setenv("COLUMNS", "80")
        patch.chdir(ROOT)
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "argv", [])
        patch.setattr(check, "run_check", kept(check.run_check))
        patch.setattr(compare, "run_compare", kept(compare.run_compare))
        yield out, reports


def assert_shown(block: console.Shown, printed: str, page: Path) -> None:
    """Words are the same; numbers to 1e-3, since another machine's kernels add floats in another order."""
    fresh = console.fitted(printed, block.output)
    new, old = (BARS.sub("", NUMBER.sub("0", text)).split() for text in (fresh, block.output))
    assert new == old, f"run `make docs` for {page.name}"
    for one, other in zip(NUMBER.findall(fresh), NUMBER.findall(block.output), strict=True):
        assert float(one.replace(",", "")) == pytest.approx(float(other.replace(",", "")), rel=1e-3, abs=1e-6), (
            block.command
        )
