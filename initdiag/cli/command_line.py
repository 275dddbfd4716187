"""The command line as a person could repeat it."""

from __future__ import annotations

import shlex
import sys

from initdiag.errors import printable


def command_line() -> str:
    """Return the command that runs now, quoted for a shell."""
    return printable(shlex.join(["initdiag", *sys.argv[1:]]))
