"""Runs a module's own init once more, on a copy without memory, and says what it scales again.

The copy is on the meta device: no values are needed to see that a weight is multiplied without having been drawn
afresh. The user's module is neither read nor written.
"""

from __future__ import annotations

import copy
import inspect
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from initdiag.subjects.contents import Content
from initdiag.subjects.recorder import named_tensors
from initdiag.subjects.writes import Recorder

# In the order of preference: what initializes all of a module comes before what initializes one part of it.
METHODS = ("init_weights", "initialize_weights", "reset_parameters", "init_parameters", "_init_weights")


def second_init(module: nn.Module) -> tuple[tuple[str, float], ...]:
    """Return (parameter, factor) for all that a second call of the module's own init would multiply.

    The init is the first of METHODS that the module's class has; one that takes a submodule is called through
    Module.apply. () where there is none, where it needs more arguments, or where it raises.
    """
    with _random_state():
        try:
            twin = _without_memory(module)
            init = _own_init(twin)
            if init is None:
                return ()
            held = [(tensor, Content("itself", owner=name)) for name, tensor in named_tensors(twin)]
            # a closure may still hold the user's tensors: a write to one of them raises
            with Recorder(held, untouchable=[tensor for _, tensor in named_tensors(module)]) as recorder:
                init()
        except Exception:  # whatever the user's code raises when it is called out of turn
            return ()
        found = [(name, recorder.content(parameter)) for name, parameter in twin.named_parameters()]
    factors = [(name, _factor(name, content)) for name, content in found if content is not None]
    return tuple((name, factor) for name, factor in factors if abs(factor) != 1)


def _factor(name: str, content: Content) -> float:
    """Return what a parameter's old values are multiplied by, or 1; zero forgets them, which is idempotent."""
    if content.base != "itself" or content.owner != name or content.mean or not content.scale:
        return 1.0
    return content.scale if content.scale != 1 else (content.piece_factor or 1.0)


def _own_init(module: nn.Module) -> Callable[[], Any] | None:
    for name in METHODS:
        function = getattr(type(module), name, None)
        if not inspect.isfunction(function):
            continue
        needed = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        method = getattr(module, name)
        if len(needed) == 1:
            return method  # type: ignore[no-any-return]
        if len(needed) == 2 and needed[1].kind is not inspect.Parameter.KEYWORD_ONLY:
            return lambda: module.apply(method)
    return None


def _without_memory(module: nn.Module) -> nn.Module:
    """Copy a module's structure; its tensors become meta tensors, tied ones stay tied.

    Hugging Face marks what is initialized, and skips it the next time: the marks are left behind.
    """
    memo: dict[int, Any] = {}
    for part in module.modules():
        members = [*part._parameters.values(), *part._buffers.values(), *vars(part).values()]
        for tensor in members:
            if isinstance(tensor, Tensor) and id(tensor) not in memo:
                memo[id(tensor)] = _meta(tensor)
    twin = copy.deepcopy(module, memo)
    for part in twin.modules():
        vars(part).pop("_is_hf_initialized", None)
    return twin


def _meta(tensor: Tensor) -> Tensor:
    empty: Tensor = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    if isinstance(tensor, nn.Parameter):
        empty = nn.Parameter(empty, requires_grad=tensor.requires_grad)
        marks = {name: value for name, value in vars(tensor).items() if name != "_is_hf_initialized"}
        vars(empty).update(marks)
    return empty


@contextmanager
def _random_state() -> Iterator[None]:
    """Restore the random state of torch (CPU), random and NumPy."""
    numpy = sys.modules.get("numpy")
    state, pythons = torch.get_rng_state(), random.getstate()
    numpys = numpy.random.get_state() if numpy else None
    try:
        yield
    finally:
        torch.set_rng_state(state)
        random.setstate(pythons)
        if numpy:
            numpy.random.set_state(numpys)
