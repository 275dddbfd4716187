"""Where the program starts: as little as possible, so that Ctrl-C is heard from the first moment on."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the program and exit with its code."""
    try:
        from initdiag.cli.main import run
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(run())
