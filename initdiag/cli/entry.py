"""Where the program starts: as little as possible, so that Ctrl-C is heard from the first moment on."""

from __future__ import annotations

import gc
import os
import sys

from initdiag.cli.failure import Exit  # it imports little itself


def main() -> None:
    """Run the program and exit with its code."""
    # Theory's matrices are small: threads of OpenBLAS wait for each other, on a busy machine a hundred times longer
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What is imported stays, so nothing is found among it; import_torch turns the collector on, before a model runs
    gc.disable()
    try:
        from initdiag.cli.main import run

        code = run()
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    if code == Exit.INTERRUPTED:
        # An interrupt inside torch's import makes Python kill itself by SIGINT at its exit, whatever was caught.
        os._exit(code)
    if not gc.isenabled():  # no model ran, and nobody else's objects are left: no need to look for cycles at the exit
        gc.freeze()
    sys.exit(code)
