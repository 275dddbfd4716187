"""A family of transformers beside the same architecture as a config of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Family:
    """One of their real classes at a small size, and what it is called here.

    model: the `model:` section of our config. theirs() builds their class. ours(state) turns their state dict into
    ours: renamed, and where they pack or interleave what we keep apart, cut and reordered.
    """

    name: str
    model: Mapping[str, Any]
    theirs: Callable[[], nn.Module]
    ours: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
