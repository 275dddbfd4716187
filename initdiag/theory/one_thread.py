"""Keeps numpy's products to one thread.

On matrices this small, threads wait for each other, on a busy machine a hundred times longer than the work takes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_TURN = threading.Lock()  # limits of several Python threads would be put back in the wrong order


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit OpenBLAS to one thread inside, where it isn't already, and put it back."""
    if os.environ.get("OPENBLAS_NUM_THREADS") == "1":  # as the program initdiag has it from its start
        yield
        return
    known = dict(os.environ)
    import threadpoolctl

    if "KMP_DUPLICATE_LIB_OK" not in known:  # its import sets it
        os.environ.pop("KMP_DUPLICATE_LIB_OK", None)
    with _TURN, threadpoolctl.ThreadpoolController().select(internal_api="openblas").limit(limits=1):
        yield
