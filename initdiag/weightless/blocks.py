"""Runs a stack of blocks in the memory of one: what a block has asked its weights is forgotten when it ends.

The same questions get the same answers from the seed, so a backward runs a block's forward again when it comes to it
(activation checkpointing, arXiv 1604.06174), keeping only what entered the block.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from initdiag.dispatch import no_modes
from initdiag.memory import give_back
from initdiag.weightless.lazy import is_lazy, source_of
from initdiag.weightless.met import FEW, version
from initdiag.weightless.source import AskedAgainError, Source

ROUNDED = 1e-3  # of the largest entry of a sample: bfloat16 rounds by 0.004 of each, in the same way both times
Tell = Callable[[int, int], None]


def silent(_: int, __: int) -> None:
    return None


def sources_of(module: nn.Module) -> dict[str, Source]:
    """Return the sources of a module's parameters that have no entries, by name."""
    found = ((name, source_of(parameter)) for name, parameter in module.named_parameters())
    return {name: source for name, source in found if source is not None}


def stacked(module: nn.Module) -> list[nn.Module]:
    """Return the blocks of a module: the members of its outermost lists of modules that hold such parameters."""
    if isinstance(module, nn.ModuleList | nn.Sequential) and len(module) > 1:
        members = [member for member in module if sources_of(member)]
        if len(members) > 1:
            return members
    return [block for child in module.children() for block in stacked(child)]


@contextmanager
def in_blocks(module: nn.Module, entrances: Sequence[str] = ("forward",), tell: Tell = silent) -> Iterator[None]:
    """Run the blocks of a module one by one in the way above.

    Args:
        entrances: names of the methods that begin a forward; everything asked before is forgotten then.
        tell: is called with (i, n) when block i of n begins.

    Raises (from a forward or backward inside):
        AskedAgainError: run it without this, at the price of its memory.
    """
    scope = _Scope(module)
    blocks = stacked(module)
    changed: list[tuple[nn.Module, str, Any]] = []
    try:
        for at, block in enumerate(blocks):
            changed.append((block, "forward", vars(block).get("forward")))
            told = functools.partial(tell, at + 1, len(blocks))
            block.forward = scope.one_by_one(block, block.forward, told)
        for name in entrances:
            method = getattr(module, name)
            changed.append((module, name, vars(module).get(name)))
            setattr(module, name, scope.entered(method))
        yield
    finally:
        for owner, name, before in reversed(changed):  # somebody else's method on the instance comes back
            vars(owner).pop(name, None)
            if before is not None:
                vars(owner)[name] = before
        scope.forget()


Circumstances = tuple[Tensor, bool, torch.dtype]  # random state, autocast


class _Scope:
    """Which sources belong to which block, and which of them remember something."""

    def __init__(self, module: nn.Module) -> None:
        self._all = list(sources_of(module).values())
        self._owners: Counter[int] = Counter()
        for _, part in module.named_modules(remove_duplicate=False):  # one module in two blocks counts twice
            self._owners.update(id(p) for p in part._parameters.values() if p is not None)
        self._ran: set[int] = set()
        self._inside = False
        self._awake: list[Source] = []

    def forget(self) -> None:
        for source in self._all:
            source.forget()
            source.bases.forget()

    def entered(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def begin(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return method(*args, **kwargs)
            self.forget()
            self._ran.clear()
            self._inside = True
            try:
                return method(*args, **kwargs)
            finally:
                self._inside = False

        return begin

    def one_by_one(self, block: nn.Module, forward: Callable[..., Any], told: Callable[[], None]) -> Callable[..., Any]:
        own = [
            source
            for parameter in block.parameters()
            if (source := source_of(parameter)) is not None and self._owners[id(parameter)] == 1
        ]

        @functools.wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            if id(block) in self._ran or any(source.asked for source in own):  # a part of it by itself, before
                raise AskedAgainError
            self._ran.add(id(block))
            told()
            if not torch.is_grad_enabled():
                result = forward(*args, **kwargs)
            else:
                state, versions = _circumstances(), _versions((args, kwargs))

                def again() -> list[Tensor]:
                    if _versions((args, kwargs)) != versions:  # it wrote into what entered it
                        raise AskedAgainError
                    return self._again(own, forward, args, kwargs, state)

                saved = _Saved(again)
                with saved_tensors_hooks(saved.pack, saved.unpack):
                    result = forward(*args, **kwargs)
            _forget(own)
            if torch.is_grad_enabled():
                give_back()
            return result

        return run

    def _again(
        self, own: list[Source], forward: Callable[..., Any], args: Any, kwargs: dict[str, Any], state: Circumstances
    ) -> list[Tensor]:
        """Run a block once more, as it ran before, and return what its graph keeps, in the same order."""
        _forget(self._awake)
        give_back()
        self._awake = own
        for source in own:
            source.forget()
        kept: list[Tensor] = []

        def keep(tensor: Tensor) -> None:  # to return a result itself would tie it to its own graph for ever
            if not _held(tensor):
                kept.append(tensor.detach())

        with (
            no_modes(),
            torch.random.fork_rng(devices=[]),
            torch.enable_grad(),
            torch.autocast("cpu", dtype=state[2], enabled=state[1]),
            saved_tensors_hooks(keep, lambda nothing: nothing),
        ):
            torch.set_rng_state(state[0])
            forward(*_cut_off(args), **_cut_off(kwargs))
        return kept


def _circumstances() -> Circumstances:
    return torch.get_rng_state(), torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")


class _Saved:
    """Stands in for the tensors that a block's graph keeps."""

    def __init__(self, again: Callable[[], list[Tensor]]) -> None:
        self._again = again
        self._samples: list[tuple[torch.Size, Tensor]] = []
        self._tensors: list[Tensor] | None = None

    def pack(self, tensor: Tensor) -> Tensor | int:
        if _held(tensor):
            return tensor
        self._samples.append((tensor.shape, _sample(tensor)))
        return len(self._samples) - 1

    def unpack(self, packed: Tensor | int) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        if self._tensors is None:
            self._tensors = self._again()
            found = [(tensor.shape, _sample(tensor)) for tensor in self._tensors]
            if len(found) != len(self._samples) or not all(map(_alike, found, self._samples)):
                raise AskedAgainError  # it read what has changed since: a counter, a cache, its own input
        return self._tensors[packed]


def _sample(tensor: Tensor) -> Tensor:
    """Entries of the first and the last row of a tensor, by which a block that computes something else is told."""
    if tensor.dim() == 0 or not tensor.numel():
        return tensor.detach().clone().view(-1) if tensor.is_contiguous() else tensor.new_zeros(0)
    first, last = (tensor.detach()[(at,) * (tensor.dim() - 1)] for at in (0, -1))
    return torch.cat((first[:FEW], last[-FEW:]))


def _alike(one: tuple[torch.Size, Tensor], two: tuple[torch.Size, Tensor]) -> bool:
    """Whether two samples agree but for roundings: products may be summed in another order."""
    if one[0] != two[0] or not one[1].is_floating_point():
        return one[0] == two[0] and torch.equal(one[1], two[1])
    a, b = one[1].double().nan_to_num(), two[1].double().nan_to_num()
    size = float(b.abs().max()) if b.numel() else 0.0
    return bool(((a - b).abs() <= ROUNDED * size).all())


def _held(tensor: Tensor) -> bool:
    """Whether a graph may keep a tensor as it is: weights, which are there anyway."""
    return is_lazy(tensor) or isinstance(tensor, nn.Parameter)


def _cut_off(value: Any) -> Any:
    """The arguments of a block without the graph that led to them."""
    if isinstance(value, Tensor):
        return value.detach().requires_grad_(value.requires_grad) if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _cut_off(item) for key, item in value.items()}
    return type(value)(_cut_off(item) for item in value) if type(value) in (list, tuple) else value


def _versions(value: Any) -> list[int | None]:
    """How often the tensors among a block's arguments were written to."""
    if isinstance(value, Tensor):
        return [version(value)]
    if isinstance(value, dict):
        return [count for item in value.values() for count in _versions(item)]
    return [count for item in value for count in _versions(item)] if type(value) in (list, tuple) else []


def _forget(sources: Sequence[Source]) -> None:
    for source in sources:
        source.forget(closed=True)
    if sources:
        sources[0].bases.forget()
