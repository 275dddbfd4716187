"""Tells a person who waits what is going on, on stderr: on a terminal in one line, elsewhere only after a second."""

from __future__ import annotations

import contextlib
import sys
import threading

from initdiag.cli.failure import heed_interrupt

PATIENCE = 1.0  # seconds


class Progress:
    """A callable that takes the next stage; use as a context manager, so that the line is cleared at the end."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self.live = self._live = sys.stderr.isatty()  # small steps are told then, too
        self._patience = threading.Timer(PATIENCE, self._speak)
        self._patience.daemon = True
        self._stage = ""
        self._spoken = False

    def __call__(self, stage: str) -> None:
        heed_interrupt()
        self._stage = stage
        if self._live or self._spoken:
            self._speak()

    def _speak(self) -> None:
        self._spoken = True
        if self._quiet or not self._stage:
            return
        with contextlib.suppress(OSError, ValueError):  # nobody listens
            if self._live:
                print(f"\r\x1b[2K{self._stage} …", end="", file=sys.stderr, flush=True)
            else:
                print(f"{self._stage} ...", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        if not self._live:
            self._patience.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._patience.cancel()
        if self._live and not self._quiet:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
