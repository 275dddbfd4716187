"""Operations on gradients that are kept as thin products, and where such gradients come from in a backward."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from initdiag.weightless.factors import Gradient, Term, gradient
from initdiag.weightless.lazy import Lazy, source_of

THIN = 2  # a product of fewer than 1/THIN as many terms as it has rows and columns is kept as its factors


class ThinProducts(TorchDispatchMode):
    """While a backward runs: keeps products that have the shape of a weight without entries as their factors.

    shapes: (m, n) of all such weights. A product that only happens to look like one is made real when it is used.
    """

    def __init__(self, shapes: Collection[tuple[int, int]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shapes = {*shapes, *((n, m) for m, n in shapes)}
        self._rows = {m for m, _ in shapes}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping the method below for torch.compile: that alone imports torch._dynamo, 1.2 s."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.rpartition("::")[2]
        kept: Any = KEPT.get(name)
        found = kept(self._shapes, *args, **(kwargs or {})) if kept else NotImplemented
        return func(*args, **(kwargs or {})) if found is NotImplemented else found


def thin_products(parameters: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """Return the context for a backward that reaches some parameters: this mode, or nothing where all have entries."""
    shapes = set()
    for source in map(source_of, parameters):
        if source is not None:
            shapes |= {(source.m, source.n)}
    return ThinProducts(shapes) if shapes else nullcontext()


def _mm(shapes: Collection[tuple[int, int]], a: Tensor, b: Tensor, **_: Any) -> Any:
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    if (m, n) not in shapes or THIN * k > min(m, n) or isinstance(a, Lazy) or isinstance(b, Lazy):
        return NotImplemented
    return _gradient((m, n), (Term(a.detach().t(), b.detach()),), a.dtype)


def _bmm(shapes: Collection[tuple[int, int]], a: Tensor, b: Tensor, **_: Any) -> Any:
    batch, m, k = a.shape
    n = b.shape[2]
    if (m, n) not in shapes or THIN * k > min(m, n) or isinstance(a, Lazy) or isinstance(b, Lazy):
        return NotImplemented
    terms = (Term(a[at].detach().t(), b[at].detach(), at) for at in range(batch))
    return _gradient((batch, m, n), tuple(terms), a.dtype)


def _grouped(shapes: Collection[tuple[int, int]], a: Tensor, b: Tensor, offs: Any = None, *_: Any, **__: Any) -> Any:
    """(m, S) times (S, n) by groups: (E, m, n)."""
    if a.dim() != 2 or b.dim() != 2 or offs is None or isinstance(a, Lazy) or isinstance(b, Lazy):
        return NotImplemented
    m, n = a.shape[0], b.shape[1]
    if (m, n) not in shapes:
        return NotImplemented
    terms, start = [], 0
    for expert, stop in enumerate(offs.tolist()):
        if stop > start:
            terms.append(Term(a[:, start:stop].detach().t(), b[start:stop].detach(), expert))
        start = max(start, stop)
    return _gradient((len(offs), m, n), tuple(terms), a.dtype)


def _embedding(
    shapes: Collection[tuple[int, int]], upper: Tensor, ids: Tensor, rows: int, padding: int, by_frequency: bool
) -> Any:
    width = upper.shape[-1]
    if (rows, width) not in shapes or by_frequency or isinstance(upper, Lazy):
        return NotImplemented
    flat, at = upper.detach().reshape(-1, width), ids.reshape(-1)
    seen = at != padding
    return _gradient((rows, width), (Term(at[seen], flat[seen], height=rows),), upper.dtype)


KEPT = {"mm": _mm, "bmm": _bmm, "_grouped_mm": _grouped, "embedding_dense_backward": _embedding}


def _gradient(shape: tuple[int, ...], terms: tuple[Term, ...], dtype: torch.dtype) -> Lazy:
    return Lazy(gradient(shape, terms), dtype)


def view(func: Any, value: Gradient, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A view of all of it; a part of it isn't kept as factors."""
    try:
        layout = func(value.layout, *args, **kwargs)
    except RuntimeError:  # not viewable: of a transpose that claims to be contiguous
        upright = value.upright()
        layout = None if upright is None else func(upright.layout, *args, **kwargs)
        value = value if upright is None else upright
    whole = isinstance(layout, Tensor) and layout.numel() == value.layout.numel()
    return replace(value, layout=layout) if whole else NotImplemented


def plus(one: Gradient, two: Gradient) -> Any:
    """The sum of two gradients of one shape."""
    first, second = one.upright(), two.upright()
    if first is None or second is None or first.layout.shape != second.layout.shape or first.shape != second.shape:
        return NotImplemented
    return replace(first, terms=first.terms + second.terms)


def select_backward(part: Any, sizes: Any, dim: int, index: int) -> Any:
    """The gradient of w[index]: one matrix of a stack."""
    upright = _upright(part)
    if upright is None or len(sizes) != 3 or dim % 3 != 0:
        return NotImplemented
    terms = tuple(replace(term, matrix=index % sizes[0]) for term in upright.terms)
    return _gradient(tuple(sizes), terms, part.dtype)


def slice_backward(part: Any, sizes: Any, dim: int, start: int, end: int, step: int) -> Any:
    """The gradient of w[start:end] or w[:, start:end]."""
    del end
    upright = _upright(part)
    if upright is None or step != 1 or len(sizes) > 3:
        return NotImplemented
    dims, size = len(sizes), sizes[dim]
    start = min(start + size if start < 0 else start, size)
    if dim % dims == dims - 2:
        terms = tuple(replace(_dense(term), row=term.row + start) for term in upright.terms)
    elif dim % dims == dims - 1:
        terms = tuple(replace(term, column=term.column + start) for term in upright.terms)
    else:
        terms = tuple(replace(term, matrix=term.matrix + start) for term in upright.terms)
    return _gradient(tuple(sizes), terms, part.dtype)


def cat(tensors: Any, dim: int = 0) -> Any:
    """The gradient of a weight that was split: its parts, side by side."""
    parts = [_upright(tensor) if tensor.dim() == 2 else None for tensor in tensors]
    terms: list[Term] = []
    at = 0
    for part in parts:
        if part is None:
            return NotImplemented
        for term in map(_dense, part.terms):
            moved = replace(term, row=term.row + at) if dim % 2 == 0 else replace(term, column=term.column + at)
            terms.append(moved)
        at += part.layout.shape[dim]
    shape = list(tensors[0].shape)
    shape[dim] = at
    return _gradient(tuple(shape), tuple(terms), tensors[0].dtype)


def summed(stack: Any, dim: Any = None, keepdim: bool = False, **kwargs: Any) -> Any:
    """The sum over the leading axes of a stack: the gradient of a weight that was expanded."""
    upright = _upright(stack)
    if upright is None or dim is None or kwargs:
        return NotImplemented
    dims = stack.dim()
    leading = set(range(dims - 2))
    if {axis % dims for axis in dim} != leading or not leading:
        return NotImplemented
    shape = ((1,) * (dims - 2) if keepdim else ()) + tuple(stack.shape[-2:])
    return _gradient(shape, tuple(replace(term, matrix=0) for term in upright.terms), stack.dtype)


def _upright(tensor: Any) -> Gradient | None:
    return tensor.value.upright() if isinstance(tensor, Lazy) and isinstance(tensor.value, Gradient) else None


def _dense(term: Term) -> Term:
    """A term whose rows may be moved."""
    return term.flipped.flipped if term.ids else term
