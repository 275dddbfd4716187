"""Out of a caller's torch.inference_mode: weights that are made in it can't be written outside, nor have a backward."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

Run = TypeVar("Run", bound=Callable[..., Any])


def outside(function: Run) -> Run:
    """Let a function run outside of it; where torch isn't imported yet, nobody is in it."""

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if not hasattr(torch, "inference_mode"):
            return function(*args, **kwargs)
        with torch.inference_mode(False):
            return function(*args, **kwargs)

    return run  # type: ignore[return-value]
