"""Refuses tensors without memory that nothing stands behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from initdiag.errors import RunError


def refuse_strangers(func: Any, inputs: Sequence[Tensor]) -> None:
    """Refuse an operation on memory that isn't there, with which torch would just compute: that of a large parameter
    that was kept in a list, a closure or another tensor when the module was built, and left behind on the meta device.

    What has no real tensor among its inputs computes nothing that could be wrong.

    Raises:
        RunError: some inputs are such tensors.
    """
    strangers = [value for value in inputs if value.is_meta]
    if 0 < len(strangers) < len(inputs):
        raise RunError(
            f"the forward uses a large weight that is no parameter of a module ({func._schema.name}, of "
            f"{tuple(strangers[0].shape)}): it was kept in a list, a closure or another tensor; register it, or use "
            f"--engine dense"
        )
