"""Watches a module being built, and says what its init code drew, what it skipped and what nothing ever wrote.

Every write is followed (writes.py), and memory is allocated under torch's deterministic fill, so that what was never
written is NaN instead of whatever the allocator hands out, mostly zeros.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from initdiag.errors import RunError
from initdiag.schemes import Distribution
from initdiag.subjects.contents import NOTHING, Content
from initdiag.subjects.writes import Recorder

ALLOCATIONS = ("empty", "zeros", "ones", "full", "randn", "rand")


@dataclass(frozen=True)
class Built:
    """A module and what its init code did.

    distributions: by name of parameter or buffer, what its last write drew it from, where that has a name.
    unwritten: parameters and buffers with memory that nothing wrote. untouched: parameters that hold what the
    constructors of torch.nn drew, although the user's code wrote over other matrices of those constructors.
    """

    module: nn.Module
    distributions: Mapping[str, Distribution]
    unwritten: tuple[str, ...]
    untouched: tuple[str, ...]


class TooLargeError(RunError):
    """A build asks for more memory than it may take."""


class _Bounded(Recorder):
    """Watches a build that may allocate `room` bytes."""

    def __init__(self, room: int) -> None:
        super().__init__()
        self._left = room

    def _run(self, func: Any, args: Any, kwargs: Any, operation: str, targets: list[Tensor]) -> Any:
        if operation in ALLOCATIONS and args and isinstance(args[0], list | tuple):
            self._left -= math.prod(args[0]) * (kwargs.get("dtype") or torch.get_default_dtype()).itemsize
            if self._left < 0:
                raise TooLargeError("the model is too large to be built with its weights; use --engine weightless")
        return super()._run(func, args, kwargs, operation, targets)


def build_watched(build: Callable[[], nn.Module], room: int | None = None) -> Built:
    """Build a module and watch it; what build() raises is raised, and TooLargeError where it asks for more than `room`
    bytes.

    Memory that build() leaves unwritten is NaN afterwards (integers: the largest value). torch's deterministic
    settings are restored; seeds are the caller's business. On the meta device there is no memory to be unwritten.
    """
    with deterministic_fill(), Recorder() if room is None else _Bounded(room) as recorder:
        module = build()
    return seen(module, recorder)


def seen(module: nn.Module, recorder: Recorder) -> Built:
    """Say what a recorder saw of a module that was built under it."""
    tensors = dict(named_tensors(module))
    contents = {name: content for name, tensor in tensors.items() if (content := recorder.content(tensor)) is not None}
    distributions = {name: content.distribution for name, content in contents.items()}
    return Built(
        module=module,
        distributions={name: found for name, found in distributions.items() if found is not None},
        unwritten=tuple(name for name, content in contents.items() if _unwritten(tensors[name], content)),
        untouched=_untouched(
            {name: contents[name] for name, _ in module.named_parameters() if name in contents}, tensors
        ),
    )


def named_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter and buffer, each once."""
    yield from chain(module.named_parameters(), module.named_buffers())


def _unwritten(tensor: Tensor, content: Content) -> bool:
    """Whether there is memory that nothing wrote; what NumPy filled behind torch's back shows in what it holds."""
    if not content.fresh or tensor.is_meta or not tensor.numel():
        return False
    if tensor.is_floating_point() or tensor.is_complex():
        wide = tensor.detach() if tensor.element_size() > 1 else tensor.detach().float()  # float8 has no isnan
        return bool(wide.isnan().any())
    if content.base != NOTHING.base or content.pieces:
        return False
    largest = 1 if tensor.dtype == torch.bool else torch.iinfo(tensor.dtype).max
    return bool((tensor == largest).all())


def _untouched(contents: Mapping[str, Content], tensors: Mapping[str, Tensor]) -> tuple[str, ...]:
    """List the parameters that an init function left as torch's constructors drew them; constants aren't worth a word.

    That there is an init function shows in a matrix of those constructors that was written again. A matrix of the
    user's own (a table of positions drawn in a constructor) says nothing about the others.
    """
    if not any(content.rewritten and tensors[name].dim() > 1 for name, content in contents.items()):
        return ()
    return tuple(name for name, content in contents.items() if content.author == "torch" and content.base != "constant")


@contextmanager
def deterministic_fill() -> Iterator[None]:
    """Let torch fill new memory with NaN (integers: the largest value); warn only where it has no deterministic way.

    set_deterministic_debug_mode is use_deterministic_algorithms without its import of torch._inductor.
    """
    filling: Any = torch.utils.deterministic  # a module with a property, which mypy doesn't see
    mode, fill = torch.get_deterministic_debug_mode(), filling.fill_uninitialized_memory
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*does not have a deterministic implementation")
        try:
            torch.set_deterministic_debug_mode("warn")
            filling.fill_uninitialized_memory = True
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            filling.fill_uninitialized_memory = fill
