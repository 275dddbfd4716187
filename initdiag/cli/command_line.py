"""The command line as a person could repeat it."""

from __future__ import annotations

import shlex
import sys


def command_line() -> str:
    """Return the command that runs now, quoted for a shell."""
    return shlex.join(["initdiag", *sys.argv[1:]])
