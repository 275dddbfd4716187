"""Whose code writes to a tensor, and what functions of nn.init were asked for: read from the stack."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from initdiag.subjects.contents import Content, truncated
from initdiag.subjects.operands import storage_key

TORCH = str(Path(torch.__file__).parent) + "/"
INIT = nn.init.__file__
_CONSTRUCTORS = TORCH + "nn/modules/"
OWN = str(Path(__file__).parent) + "/"
# transformers wraps every function of nn.init: looked through, like torch's own
_LOOKED_THROUGH = (TORCH, "/transformers/initialization.py")


class MetaQuestions(TorchFunctionMode):
    """nn.init.trunc_normal_, orthogonal_, sparse_ and dirac_ return at once for a meta tensor: no operation runs that
    a dispatch mode could see. That they ask `tensor.is_meta` first can be seen, and is taken for the write."""

    def __init__(self, recorder: Any) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if result is True and func == torch.Tensor.is_meta.__get__:  # type: ignore[attr-defined]
            frame = sys._getframe(1)
            if frame.f_code.co_filename == INIT:
                self._recorder.skipped(args[0], frame)
        return result


def author_of(frame: FrameType | None, tensor: Tensor) -> tuple[str, Content | None]:
    """Say whose code writes, from the stack: "torch" for constructors of torch.nn, else "user".

    What nn.init.trunc_normal_ draws is read from its own arguments: torch draws it by rejection or by inverse
    transform, from release to release. A user's function under Module.apply is the user's; so is a call of a torch
    module's reset_parameters() from the user's code.
    """
    cut: Content | None = None
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path == INIT and name == "_no_grad_trunc_normal_":
            values = frame.f_locals
            if storage_key(values["tensor"]) == storage_key(tensor):
                cut = truncated(*(float(values[key]) for key in ("mean", "std", "a", "b")))
        elif path.startswith(_CONSTRUCTORS) and name == "__init__":
            return "torch", cut
        elif not (path.startswith((OWN, TORCH)) or path.endswith(_LOOKED_THROUGH)):
            return "user", cut
        frame = frame.f_back
    return "user", cut


def signed(author: str, content: Content, before: Content | None) -> Content:
    """Sign a content; the user's code rewrites where constructors of torch.nn had drawn something before."""
    over = before is not None and (before.rewritten or (before.author == "torch" and before.base != "nothing"))
    return replace(content, author=author, rewritten=over and author == "user")
