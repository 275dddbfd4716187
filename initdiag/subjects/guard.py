"""A module that comes back as it was, whatever runs in between.

What is kept is cheap: references to parameters, gradients and attributes, and copies of buffers only. Whether a
forward wrote into a parameter is told by torch's version counter and by a sample of its numbers.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from initdiag.errors import RunError
from initdiag.subjects.global_state import random_states, set_algorithms, switches
from initdiag.weightless.lazy import is_lazy
from initdiag.weightless.met import version

COPIED = 1 << 26  # bytes; larger buffers (caches of keys and values) are watched like parameters, not copied
SAMPLE = 64  # numbers of a tensor: sees a write to all of it, through .data as well, in about 10 µs


@contextmanager
def unchanged(
    module: nn.Module,
    *,
    training: bool = False,
    requires_grad: bool | None = None,
    grad: bool | None = None,
    fastpath: bool | None = None,
    deterministic: bool | None = None,
    copied: bool = False,
) -> Iterator[None]:
    """Put a module into evaluation mode, and in the end put everything as it was, also after an exception.

    That is: each submodule's mode, attributes, hooks, parameters and buffers (the same objects with the same numbers),
    each parameter's requires_grad and gradient (which are None meanwhile, and hooks on it don't fire, so that a
    backward neither adds to gradients nor steps an optimizer), the random state of torch, numpy and random, and
    torch's global switches.

    Args:
        training: the mode of all submodules meanwhile; their train() and eval() aren't called, which may do more.
        requires_grad: of all parameters of floats, grad: whether gradients are recorded, fastpath: of
            nn.TransformerEncoder and nn.MultiheadAttention, deterministic: torch's algorithms; None to leave them.
        copied: keep copies of the parameters, so that what a forward writes into them can be undone.

    Raises:
        RunError: at the end, where a parameter (not copied) or a large buffer was written in place; names it.
    """
    parts = [_Part(part) for part in module.modules()]
    tensors = _tensors(module, copied)
    with ExitStack() as stack:
        for restore in (*switches(), *random_states()):
            stack.callback(restore)
        written: list[str] = []
        stack.callback(lambda: written.extend(_restore(parts, tensors)))
        for part in parts:
            part.module.training = training
        for kept in tensors:
            kept.begin(requires_grad)
        if fastpath is not None:
            torch.backends.mha.set_fastpath_enabled(fastpath)
        if deterministic is not None:
            set_algorithms(deterministic, warn_only=False)
        if grad is not None:
            torch.set_grad_enabled(grad)
        yield
    if written:
        raise RunError(
            f"the forward writes into '{written[0]}'"
            + (f" and {len(written) - 1} other tensors" if len(written) > 1 else "")
            + ", which can't be undone: build the module anew, and write into a buffer or a copy instead"
        )


class _Part:
    """The attributes of one submodule, by reference; of the dicts and lists among them, also what they hold."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.attributes = dict(vars(module))
        holders = [value for value in self.attributes.values() if isinstance(value, dict | list)]
        self.contents: list[tuple[Any, Any]] = [(holder, holder.copy()) for holder in holders]

    def restore(self) -> None:
        now = vars(self.module)
        if not _same(now, self.attributes):
            now.clear()
            now.update(self.attributes)
        for holder, content in self.contents:
            if (holder or content) and not _same(holder, content):
                holder.clear()
                holder.update(content) if isinstance(holder, dict) else holder.extend(content)


@dataclass
class _Kept:
    """One parameter or buffer."""

    name: str
    tensor: Tensor
    memory: Tensor  # the same storage, should the tensor get another
    version: int | None
    sample: Tensor | None
    copy: Tensor | None
    requires_grad: bool
    gradient: Tensor | None
    hooks: dict[Any, Any] | None  # called when a gradient is there: some step an optimizer
    hooked: dict[Any, Any]

    def begin(self, requires_grad: bool | None) -> None:
        tensor = self.tensor
        if isinstance(tensor, nn.Parameter):
            tensor.grad = None
            if self.hooks:
                self.hooks.clear()  # in place: the engine keeps the dict that it was given
            if requires_grad is not None and (tensor.is_floating_point() or tensor.is_complex()):
                tensor.requires_grad_(requires_grad)

    def end(self) -> bool:
        """Restore the tensor; returns whether its numbers are not what they were."""
        tensor: Any = self.tensor
        if not _same_memory(tensor, self.memory):
            tensor.data = self.memory
        if self.copy is not None:
            if not _same_numbers(_unrepeated(tensor), self.copy):
                _unrepeated(tensor).copy_(self.copy)
            changed = False
        else:
            changed = version(tensor) != self.version or (
                self.sample is not None and not _equal(_sample(tensor), self.sample)
            )
        if isinstance(tensor, nn.Parameter):
            if self.hooks is not None:
                self.hooks.clear()
                self.hooks.update(self.hooked)
            if tensor.requires_grad != self.requires_grad:
                tensor.requires_grad_(self.requires_grad)
            tensor.grad = self.gradient
        return changed


def _tensors(module: nn.Module, all_copied: bool) -> list[_Kept]:
    kept: dict[int, _Kept] = {}
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if id(tensor) not in kept and not tensor.is_meta and not is_lazy(tensor) and tensor.layout is torch.strided:
                copied = all_copied or (not isinstance(tensor, nn.Parameter) and tensor.nbytes <= COPIED)
                hooks = getattr(tensor, "_post_accumulate_grad_hooks", None)
                kept[id(tensor)] = _Kept(
                    name=name,
                    tensor=tensor,
                    memory=tensor.detach(),
                    version=version(tensor),
                    sample=None if copied else _sample(tensor),
                    copy=_unrepeated(tensor).detach().clone() if copied else None,
                    requires_grad=tensor.requires_grad,
                    gradient=tensor.grad if tensor.is_leaf else None,
                    hooks=hooks,
                    hooked=dict(hooks or {}),
                )
    return list(kept.values())


def _restore(parts: list[_Part], tensors: list[_Kept]) -> list[str]:
    with torch.inference_mode(False), torch.no_grad():
        for part in parts:
            part.restore()
        return [kept.name for kept in tensors if kept.end()]


def _sample(tensor: Tensor) -> Tensor | None:
    numel = tensor.numel()
    if not numel or not tensor.is_contiguous():
        return None
    step = max(1, numel // SAMPLE)
    return tensor.as_strided((numel // step,), (step,)).clone()


def _unrepeated(tensor: Tensor) -> Tensor:
    """The memory of an expanded tensor, each number once."""
    return tensor[tuple(0 if stride == 0 else slice(None) for stride in tensor.stride())] if tensor.dim() else tensor


def _same_numbers(a: Tensor | None, b: Tensor | None) -> bool:
    """Bit for bit: NaN is itself, and -0.0 isn't 0.0."""
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return a is b
    return torch.equal(_bytes(a), _bytes(b))


def _equal(a: Tensor | None, b: Tensor) -> bool:
    return a is not None and (torch.equal(a, b) or _same_numbers(a, b))


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _same_memory(a: Tensor, b: Tensor) -> bool:
    return (
        a.data_ptr() == b.data_ptr()
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.dtype == b.dtype
        and a.device == b.device
    )


def _same(a: Any, b: Any) -> bool:
    """Whether two dicts, or two lists, hold the same objects in the same order."""
    if len(a) != len(b):
        return False
    if isinstance(a, dict):
        return all(map(operator.is_, a.values(), b.values())) and list(a) == list(b)
    return all(map(operator.is_, a, b))
