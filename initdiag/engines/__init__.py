"""How a Subject runs. The door is `dense.run`; `dense` needs torch, so it is imported when something runs."""

from __future__ import annotations

import gc
import warnings

from initdiag.engines.settings import DEVICES, DTYPES, ENGINES, Settings


def import_torch(settings: Settings) -> None:
    """Import torch with the garbage collector at rest: it finds nothing there, and takes a tenth of the time.

    In a process of our own, which begins without it, it is on from here, when models are built and run, and never looks
    at what was imported, which is half a second of a short run.
    """
    running = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():  # nothing here needs NumPy
            warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
            import torch  # noqa: F401
    finally:
        if running or settings.own_process:
            gc.enable()
    if settings.own_process and not gc.get_freeze_count():  # once: models that come later are to be collected
        gc.freeze()


__all__ = ["DEVICES", "DTYPES", "ENGINES", "Settings", "import_torch"]
