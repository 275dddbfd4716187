"""Tells a person who waits what is going on, on stderr: on a terminal in one line, elsewhere only after a second."""

from __future__ import annotations

import sys
import time

PATIENCE = 1.0  # seconds


class Progress:
    """A callable that takes the next stage; use as a context manager, so that the line is cleared at the end."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._live = sys.stderr.isatty()
        self._start = time.monotonic()

    def __call__(self, stage: str) -> None:
        if self._quiet:
            return
        if self._live:
            print(f"\r\x1b[2K{stage} …", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._start >= PATIENCE:
            print(f"{stage} ...", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live and not self._quiet:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
