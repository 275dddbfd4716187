"""Refuses tensors without memory that nothing stands behind."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from initdiag.dispatch import DispatchMode
from initdiag.errors import RunError


class NoStrangers(DispatchMode):
    """While a forward runs: a large parameter that was kept in a list, a closure or another tensor when the module was
    built has been left behind on the meta device, and torch computes with its memory, which isn't there.

    Raises (from operations inside):
        RunError: one of them is used.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for value in args:
            if isinstance(value, Tensor) and value.is_meta:
                raise RunError(
                    f"the forward uses a large weight that is no parameter of a module ({func._schema.name}, of "
                    f"{tuple(value.shape)}): it was kept in a list, a closure or another tensor; register it, or use "
                    f"--engine dense"
                )
        return func(*args, **(kwargs or {}))
