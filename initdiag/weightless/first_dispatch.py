"""Spares a process of ours an import that torch makes when it first meets a tensor subclass."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch import Tensor

from initdiag.schemes import Constant
from initdiag.weightless.law import uniform_law
from initdiag.weightless.lazy import Lazy
from initdiag.weightless.normals import Normals
from initdiag.weightless.source import Source
from initdiag.weightless.weight import Weight

NAME = "torch.distributed.tensor"


def spare_import() -> None:
    """Let torch take a class that nobody uses for DTensor, whose import takes a second (sympy, torch.fx).

    torch asks for that class once in a process, so DTensor is of no use in it afterwards: only for a process that runs
    nothing but one command of ours, which refuses modules with DTensors anyway. Where DTensor is imported already,
    nothing happens.
    """
    if NAME in sys.modules:
        return
    stand_in = ModuleType(NAME)
    stand_in.DTensor = type("DTensor", (Tensor,), {})  # type: ignore[attr-defined]
    sys.modules[NAME] = stand_in
    try:
        source = Source("", (1, 1), uniform_law(Constant(0.0), 1), Normals(0), lambda *_: True)
        Lazy(Weight(source, torch.empty(1, 1, device="meta")), torch.float32).neg()
    finally:
        del sys.modules[NAME]
