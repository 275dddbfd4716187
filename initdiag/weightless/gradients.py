"""Operations on gradients that are kept as thin products, and where such gradients come from in a backward."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from initdiag.dispatch import DispatchMode
from initdiag.weightless.factors import Gradient, Term, gradient
from initdiag.weightless.lazy import Lazy, source_of

THIN = 2  # a product of fewer than 1/THIN as many terms as it has rows and columns is kept as its factors
BIG = 2**20  # entries of a product that is kept without having a weight's shape: that of a part, or of several
THINNER = 8  # and how much thinner it must be, since others than gradients may look so
Shapes = Collection[tuple[int, ...]]


class ThinProducts(DispatchMode):
    """While a backward runs: keeps products that have the shape of a weight without entries as their factors.

    shapes: of all such weights. A product that only happens to look like one is made real when it is used.
    """

    def __init__(self, shapes: Collection[tuple[int, ...]]) -> None:
        super().__init__()
        matrices = {shape[-2:] for shape in shapes}
        self._shapes = {*shapes, *matrices, *((n, m) for m, n in matrices)}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.rpartition("::")[2]
        kept: Any = KEPT.get(name)
        found = kept(self._shapes, *args, **(kwargs or {})) if kept else NotImplemented
        return func(*args, **(kwargs or {})) if found is NotImplemented else found


def thin_products(parameters: Iterable[Tensor]) -> AbstractContextManager[Any]:
    """Return the context for a backward that reaches some parameters: this mode, or nothing where all have entries."""
    sources = [source for source in map(source_of, parameters) if source is not None]
    return ThinProducts({source.shape for source in sources}) if sources else nullcontext()


def _mm(shapes: Shapes, a: Tensor, b: Tensor, **_: Any) -> Any:
    m, n, k = a.shape[0], b.shape[1], a.shape[1]
    if not _thin(shapes, m, n, k) or isinstance(a, Lazy) or isinstance(b, Lazy):
        return NotImplemented
    return _gradient((m, n), (Term(a.detach().t(), b.detach()),), a.dtype)


def _bmm(shapes: Shapes, a: Tensor, b: Tensor, **_: Any) -> Any:
    batch, m, k = a.shape
    n = b.shape[2]
    if not _thin(shapes, m, n, k) or isinstance(a, Lazy) or isinstance(b, Lazy):
        return NotImplemented
    terms = (Term(a[at].detach().t(), b[at].detach(), at) for at in range(batch))
    return _gradient((batch, m, n), tuple(terms), a.dtype)


def _grouped(shapes: Shapes, a: Tensor, b: Tensor, offs: Any = None, *_: Any, **__: Any) -> Any:
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


def _embedding(shapes: Shapes, upper: Tensor, ids: Tensor, rows: int, padding: int, by_frequency: bool) -> Any:
    width = upper.shape[-1]
    if (rows, width) not in shapes or by_frequency or isinstance(upper, Lazy):
        return NotImplemented
    flat, at = upper.detach().reshape(-1, width), ids.reshape(-1)
    seen = at != padding
    return _gradient((rows, width), (Term(at[seen], flat[seen], height=rows),), upper.dtype)


def _thin(shapes: Shapes, m: int, n: int, k: int) -> bool:
    if (m, n) in shapes:
        return THIN * k <= min(m, n)
    return m * n >= BIG and THINNER * k <= min(m, n)


def _zeros(shapes: Shapes, _: Tensor, size: Any, **kwargs: Any) -> Any:
    """What the gradient of rows or experts that were picked by their numbers is added to."""
    if tuple(size) not in shapes or len(size) not in (2, 3) or math.prod(size) < BIG:
        return NotImplemented
    return _gradient(tuple(size), (), kwargs.get("dtype") or torch.float32)


KEPT = {"new_zeros": _zeros, "mm": _mm, "bmm": _bmm, "_grouped_mm": _grouped, "embedding_dense_backward": _embedding}


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
    """The sum over leading axes of a stack: the gradient of a weight that was expanded."""
    upright = _upright(stack)
    if upright is None or dim is None or kwargs:
        return NotImplemented
    leading, gone = tuple(stack.shape[:-2]), {axis % stack.dim() for axis in dim}
    if not gone <= set(range(len(leading))) or not gone:
        return NotImplemented
    left = [1 if axis in gone else size for axis, size in enumerate(leading)]
    numbers = torch.arange(math.prod(left)).view(left).expand(leading).flatten().tolist()
    shape = left if keepdim else [size for axis, size in enumerate(leading) if axis not in gone]
    terms = tuple(replace(term, matrix=numbers[term.matrix]) for term in upright.terms)
    return _gradient((*shape, *stack.shape[-2:]), terms, stack.dtype)


def index_put(whole: Any, places: Any, part: Any, accumulate: bool = False) -> Any:
    """Add the gradient of w[ids] to that of w: rows of a table, or matrices of a stack."""
    base, ids = _upright(whole), places[0]
    if base is None or not accumulate or len(places) != 1 or ids is None or ids.dim() != 1 or ids.dtype == torch.bool:
        return NotImplemented
    ids = torch.where(ids < 0, ids + len(whole), ids)
    if whole.dim() == 3:
        added = _upright(part)
        if added is None or added.shape[1:] != base.shape[1:]:
            return NotImplemented
        numbers = ids.tolist()
        terms = tuple(replace(term, matrix=numbers[term.matrix]) for term in added.terms)
    elif isinstance(part, Lazy) or part.dim() != 2:
        return NotImplemented
    else:
        terms = (Term(ids, part.detach(), height=len(whole)),)
    return Lazy(replace(base, terms=base.terms + terms), whole.dtype)


def _upright(tensor: Any) -> Gradient | None:
    return tensor.value.upright() if isinstance(tensor, Lazy) and isinstance(tensor.value, Gradient) else None


def _dense(term: Term) -> Term:
    """A term whose rows may be moved."""
    return term.flipped.flipped if term.ids else term
