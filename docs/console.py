"""Runs the commands that the pages show, and writes their real output below them.

    python docs/console.py README.md docs/*.md

A block starts with ```console and a line `$ command`; what follows, up to the closing fence, is its output. A line
`[…]` in it stands for lines that are left out and is kept. tests/docs compares the same blocks with fresh output.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```console\n\$ (?P<command>initdiag [^\n]*)\n(?P<output>.*?)```\n", re.DOTALL)
GAP = "[…]"


@dataclass(frozen=True)
class Shown:
    """A command and the output that a page shows for it."""

    command: str
    output: str


def shown(page: Path) -> Iterator[Shown]:
    """Yield the blocks of a page."""
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield Shown(match["command"], match["output"])


def run(command: str) -> str:
    """Return what a command prints on stdout, in the root of the checkout, as in a CI log of 80 columns.

    Raises:
        RuntimeError: it ended with another exit code than 0 or 1: no page shows a program that broke.
    """
    environment = {key: value for key, value in os.environ.items() if key not in ("FORCE_COLOR", "GITHUB_ACTIONS")}
    words = [sys.executable, "-m", *shlex.split(command)]
    environment |= {"COLUMNS": "80", "TERM": "dumb", "PYTHONIOENCODING": "utf-8"}
    result = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=False)
    if result.returncode not in (0, 1):
        raise RuntimeError(f"{command}: exit code {result.returncode}\n{result.stderr.decode()}")
    return result.stdout.decode()


def fitted(fresh: str, old: str) -> str:
    """Leave out of fresh output what the page leaves out.

    What stands before the first gap keeps its number of lines; after a gap, output goes on with the line that the page
    has there, numbers aside, for as many lines as the page has, and to its end after the last gap.

    Raises:
        RuntimeError: that line isn't in the output any more.
    """
    lines, parts = fresh.splitlines(), _parts(old.splitlines())
    kept, at = lines[: len(parts[0])] if len(parts) > 1 else lines, len(parts[0])
    for part in parts[1:]:
        found = next((i for i in range(at, len(lines)) if part and _words(lines[i]) == _words(part[0])), None)
        if found is None:
            raise RuntimeError(f"no line {part[:1]} in\n{fresh}")
        at = len(lines) if part is parts[-1] else found + len(part)
        kept = [*kept, GAP, *lines[found:at]]
    return "\n".join(kept) + "\n" if kept else ""


def _parts(lines: list[str]) -> list[list[str]]:
    """Split at the gaps."""
    parts: list[list[str]] = [[]]
    for line in lines:
        if line == GAP:
            parts.append([])
        else:
            parts[-1].append(line)
    return parts


def _words(line: str) -> list[str]:
    return re.sub(r"[\d.,]+", "0", line).split()


def main() -> None:
    for name in sys.argv[1:]:
        page = Path(name)

        def fresh(match: re.Match[str]) -> str:
            return f"```console\n$ {match['command']}\n{fitted(run(match['command']), match['output'])}```\n"

        page.write_text(BLOCK.sub(fresh, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
