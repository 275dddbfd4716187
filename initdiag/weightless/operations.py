"""What torch's operations do with tensors that have no entries.

Views go to the layout, products are asked of the source, and what else needs entries gets them, which the report
then says. Writing into such a tensor is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from initdiag.errors import RunError
from initdiag.weightless import gradients, products, rows
from initdiag.weightless.factors import Gradient
from initdiag.weightless.joined import Joined, concatenated, flattened, reshaped, stack_of
from initdiag.weightless.lazy import Lazy
from initdiag.weightless.weight import Weight

SAME = frozenset(("clone", "_to_copy", "detach", "alias", "contiguous", "lift_fresh"))
MADE_LIKE = frozenset(
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like "
    "new_zeros new_ones new_empty new_full new_empty_strided".split()
)


def answer(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Carry out one operation of which an argument is Lazy.

    Raises:
        RunError: it writes into a tensor that has no entries, or needs entries that don't fit in memory.
    """
    name = func._schema.name.rpartition("::")[2]
    first = args[0] if args else None
    if name in MADE_LIKE and isinstance(first, Lazy):
        return func(torch.zeros((), dtype=first.dtype).expand(first.shape), *args[1:], **kwargs)
    if name in SAME and isinstance(first, Lazy):
        dtype = kwargs.get("dtype") or first.dtype
        return Lazy(first.value, dtype) if dtype.is_floating_point else _on_entries(func, args, kwargs)
    if isinstance(first, Lazy) and (func.is_view or name == "_unsafe_view"):
        found = _view(func, first, args[1:], kwargs)
    else:
        handler = HANDLERS.get(name)
        found = handler(*args, **kwargs) if handler else NotImplemented
    if found is NotImplemented and torch.is_inference_mode_enabled() and func._can_decompose():
        found = func.decompose(*args, **kwargs)  # as autograd does elsewhere
    if found is NotImplemented and name in ("view", "_unsafe_view") and isinstance(first, Lazy):
        return func(_real(first, func._schema.name).contiguous(), *args[1:], **kwargs)  # a copy in all but name
    return _on_entries(func, args, kwargs) if found is NotImplemented else found


def _view(func: Any, tensor: Lazy, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    value = tensor.value
    if isinstance(value, Gradient):
        seen = gradients.view(func, value, args, kwargs)
    elif isinstance(value, Joined):
        seen = _view_of_parts(func, value, args, kwargs)
    else:
        try:
            several = func(value.layout, *args, **kwargs)
        except RuntimeError:  # a copy that claims to be contiguous, viewed as such
            seen = flattened(value, args[0]) if args and isinstance(args[0], list | tuple) else None
        else:
            if not isinstance(several, Tensor):
                parts = [value.viewed(lambda one, at=at: func(one, *args, **kwargs)[at]) for at in range(len(several))]
                return [Lazy(part, tensor.dtype) for part in parts]
            seen = value.viewed(func, *args, **kwargs)
    return NotImplemented if seen is None or seen is NotImplemented else Lazy(seen, tensor.dtype)


def _view_of_parts(func: Any, value: Joined, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Joined | None:
    layout, last = func(value.layout, *args, **kwargs), value.layout.shape[-2:]
    if not isinstance(layout, Tensor):
        return None
    if layout.shape == value.layout.shape and layout.stride() == value.layout.stride():
        return value
    turned = value.layout.transpose(-2, -1)
    if layout.shape == turned.shape and layout.stride() == turned.stride() and last[0] != 1 != last[1]:
        return value.flipped
    return reshaped(value, layout)


def _times_number(tensor: Any, other: Any, *_: Any, **kwargs: Any) -> Any:
    if not isinstance(tensor, Lazy):
        tensor, other = other, tensor
    if isinstance(other, Tensor) and other.numel() == 1 and other.dim() <= tensor.dim() and not isinstance(other, Lazy):
        other = other.reshape(())
    number = _number(other)
    if number is None or kwargs:
        return NotImplemented
    value = tensor.value
    return Lazy(value.times(number), tensor.dtype)


def _over_number(tensor: Any, other: Any, *_: Any, **kwargs: Any) -> Any:
    number = _number(other)
    if not isinstance(tensor, Lazy) or not number or kwargs:
        return NotImplemented
    return _times_number(tensor, 1 / number)


def _negative(tensor: Lazy) -> Any:
    return _times_number(tensor, -1.0)


def _plus(one: Any, two: Any, *, alpha: float = 1) -> Any:
    """Weight + real tensor or number of its shape; Gradient + Gradient."""
    if isinstance(one, Lazy) and isinstance(two, Lazy):
        if isinstance(one.value, Gradient) and isinstance(two.value, Gradient):
            summed = gradients.plus(one.value, two.value if alpha == 1 else two.value.times(alpha))
            return summed if summed is NotImplemented else Lazy(summed, one.dtype)
        return NotImplemented
    weight, other = (one, two) if isinstance(one, Lazy) else (two, one)
    if not isinstance(weight.value, Weight) or (alpha != 1 and weight is two):
        return NotImplemented
    part = weight.numel() < math.prod(weight.value.source.shape)  # rows of a table, that are added to activations
    if isinstance(other, Tensor) and not part and other.shape == weight.shape:
        more = other if weight is two else other * alpha
        before = weight.value.plus
        return Lazy(replace(weight.value, plus=more if before is None else before + more), weight.dtype)
    return NotImplemented


def _minus(one: Any, two: Any, *, alpha: float = 1) -> Any:
    if isinstance(one, Lazy):
        return _plus(one, two, alpha=-alpha)
    return _plus(_times_number(two, -alpha), one)


def _cat(tensors: Any, dim: int = 0) -> Any:
    weights = _matrices(tensors)
    return gradients.cat(tensors, dim) if weights is None else Lazy(concatenated(weights, dim % 2), tensors[0].dtype)


def _stack(tensors: Any, dim: int = 0) -> Any:
    weights = _matrices(tensors)
    return NotImplemented if dim or weights is None else Lazy(stack_of(weights), tensors[0].dtype)


def _matrices(tensors: Any) -> list[Weight] | None:
    """The weights that tensors stand for, where all of them are matrices without entries."""
    values = [tensor.value if isinstance(tensor, Lazy) else None for tensor in tensors]
    weights = [value for value in values if isinstance(value, Weight) and value.layout.dim() == 2]
    return weights if len(weights) == len(values) else None


def _number(value: Any) -> float | None:
    if isinstance(value, Lazy):
        return None
    if isinstance(value, Tensor):
        return float(value) if value.numel() == 1 and not value.dtype.is_complex and value.dim() == 0 else None
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


HANDLERS: dict[str, Callable[..., Any]] = {
    "mul": _times_number,
    "div": _over_number,
    "neg": _negative,
    "add": _plus,
    "sub": _minus,
    "mm": products.mm,
    "addmm": products.addmm,
    "bmm": products.bmm,
    "baddbmm": products.baddbmm,
    "mv": products.mv,
    "addmv": products.addmv,
    "_grouped_mm": products.grouped_mm,
    "convolution": products.convolution,
    "convolution_backward": products.convolution_backward,
    "embedding": rows.embedding,
    "index_select": rows.index_select,
    "index": rows.index,
    "select_backward": gradients.select_backward,
    "slice_backward": gradients.slice_backward,
    "cat": _cat,
    "stack": _stack,
    "sum": gradients.summed,
    "index_put": gradients.index_put,
}


def _on_entries(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation on real entries.

    Raises:
        RunError: it writes into one of them.
    """
    schema = func._schema
    given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
    for argument in schema.arguments:
        written = argument.alias_info is not None and argument.alias_info.is_write
        for tensor in _lazy(given.get(argument.name)) if written else ():
            name = tensor.value.source.name if isinstance(tensor.value, Weight) else "a part of a weight"
            raise RunError(
                f"the forward writes into '{name}' ({schema.name}), which has no entries under the weightless engine; "
                f"use --engine dense"
            )
    what = schema.name.removeprefix("aten::")
    lazy = list(_lazy([*args, *kwargs.values()]))
    gradients_only = [tensor for tensor in lazy if isinstance(tensor.value, Gradient)]
    if 0 < len(gradients_only) < len(lazy):  # a product may answer once they are real
        lazy = gradients_only
    real = {id(tensor): _real(tensor, what) for tensor in lazy}
    return func(*_with_real(args, real), **{name: _with_real(value, real) for name, value in kwargs.items()})


def _real(tensor: Lazy, why: str) -> Tensor:
    value = tensor.value
    entries = value.entries() if isinstance(value, Gradient) else rows.entries(value, why)
    return entries.to(tensor.dtype)


def _lazy(value: Any) -> Iterator[Lazy]:
    if isinstance(value, Lazy):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _lazy(item)


def _with_real(value: Any, real: dict[int, Tensor]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_with_real(item, real) for item in value)
    return real.get(id(value), value) if isinstance(value, Lazy) else value
