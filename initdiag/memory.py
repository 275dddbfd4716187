"""How much memory a device has left, and whether a model that is yet to be built will fit."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from initdiag.errors import RunError

SHARE = 0.8  # of the free memory that weights may take: activations need the rest
OUT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")  # as allocators put it


def available(device: str) -> int | None:
    """Return the free memory of a device in bytes, where the system tells."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    meminfo = Path("/proc/meminfo")
    if device == "cpu" and meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def require_room(name: str, needed: int, dtype: str, device: str, instead: str, narrow: int | None = None) -> None:
    """Check that weights fit; `narrow`: the bytes that they take as bfloat16, where that can be asked for.

    Raises:
        RunError: they don't; says what they need, what there is, and what to do instead.
    """
    there = available(device)
    if there is not None and needed > there:
        instead += ", or --dtype bfloat16" if narrow is not None and narrow <= there else ""
        raise RunError(
            f"the weights of {name} need {needed / 2**30:.1f} GiB as {dtype}; {device} has {there / 2**30:.1f} GiB "
            f"available. {instead}"
        )


def give_back() -> None:
    """Return freed memory to the system, where the C library can: between blocks that keep what entered them, glibc
    holds on to 40 MiB of holes a layer."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
