"""Products of real tensors with weights that have no entries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from initdiag.errors import RunError
from initdiag.weightless.factors import Gradient, Term, gradient
from initdiag.weightless.joined import Joined
from initdiag.weightless.lazy import Lazy
from initdiag.weightless.located import located
from initdiag.weightless.rows import gathered
from initdiag.weightless.weight import Weight


def times(x: Tensor, weight: Weight) -> Tensor:
    """Return x (k, p) times a 2-D weight (p, q): (k, q), in the dtype of its source."""
    source, layout, plus = weight.source, weight.layout, weight.plus
    wide = x.to(source.normals.dtype)
    place = located(layout, source.m, source.n)
    if place is None and source.seen_as(layout):  # of several axes, which torch.einsum takes as one
        place = located(layout, source.m, source.n)
    if place is None:
        whole_view = gathered(weight, "a product with a view across its rows") * weight.scale
        return wide @ (whole_view if plus is None else whole_view + plus)
    rows = range(place.rows.start, place.rows.stop)
    whole = slice(place.columns.start, place.columns.stop, place.columns.step)
    if place.transposed:
        if len(place.columns) < source.n:
            padded = wide.new_zeros(len(wide), source.n)
            padded[:, whole] = wide
            answer = source.right(padded, rows, place.matrix)
        else:
            answer = source.right(wide, rows, place.matrix)
        answer = answer[:, :: place.rows.step]
    else:
        if place.rows.step > 1:
            padded = wide.new_zeros(len(wide), len(rows))
            padded[:, :: place.rows.step] = wide
            wide = padded
        answer = source.left(wide, rows, place.matrix)[:, whole]
    if weight.scale != 1:
        answer = answer * weight.scale
    return answer if plus is None else answer + x.to(plus.dtype) @ plus


def _product(x: Tensor, w: Lazy, index: int | None = None) -> Tensor:
    """x (k, p) @ w (p, q), or @ w[index]."""
    value = w.value
    if isinstance(value, Joined):
        return _with_parts(x, value, index).to(x.dtype)
    assert isinstance(value, Weight)
    one = value if index is None else value.viewed(torch.select, 0, index)
    return times(x, one).to(x.dtype).contiguous()


def _with_parts(x: Tensor, value: Joined, index: int | None) -> Tensor:
    if value.axis < 0:
        assert index is not None
        return times(x, value.parts[index])
    pieces = [x] * len(value.parts)
    if value.axis == 0:
        pieces = list(x.split([part.layout.shape[0] for part in value.parts], dim=1))
    answers = [times(piece, part) for piece, part in zip(pieces, value.parts, strict=True)]
    return torch.cat(answers, dim=1) if value.axis == 1 else torch.stack(answers).sum(0)


def _flipped(w: Lazy) -> Lazy:
    turned: Lazy = w.transpose(-2, -1)  # type: ignore[assignment]
    return turned


def _weight(tensor: Any) -> bool:
    return isinstance(tensor, Lazy) and isinstance(tensor.value, Weight | Joined)


def _one_weight(a: Any, b: Any) -> bool:
    return _weight(a) != _weight(b) and isinstance(a, Lazy) != isinstance(b, Lazy)


def _one_dtype(a: Tensor, b: Tensor) -> None:
    if a.dtype != b.dtype:
        raise RunError(f"the forward multiplies {a.dtype} with {b.dtype}, which torch refuses; cast one to the other")


def mm(a: Tensor, b: Tensor, **kwargs: Any) -> Any:
    if kwargs:
        return NotImplemented
    if isinstance(a, Lazy) and isinstance(a.value, Gradient) and not isinstance(b, Lazy):
        return _after_gradient(a.value, b)
    if isinstance(b, Lazy) and isinstance(b.value, Gradient) and not isinstance(a, Lazy):
        found = mm(b.t(), a.t())
        return found if found is NotImplemented else found.t().contiguous()
    if not _one_weight(a, b):
        return NotImplemented
    _one_dtype(a, b)
    if isinstance(b, Lazy):
        return _product(a, b)
    assert isinstance(a, Lazy)
    return _product(b.t(), _flipped(a)).t().contiguous()


def _after_gradient(gradient: Gradient, b: Tensor) -> Any:
    """∂L/∂W (m, n) times b (n, q), as in the gradient of a low-rank addition W + BA: (m, q)."""
    upright = gradient.upright()
    if upright is None or upright.shape[0] != 1:
        return NotImplemented
    answer = b.new_zeros(upright.shape[1], b.shape[1])
    for term in upright.terms:
        thin = term.right @ b[term.column : term.column + term.right.shape[1]]
        rows = answer[term.row : term.row + term.rows]
        if term.ids:
            rows.index_add_(0, term.left, thin)
        else:
            rows += term.left.T @ thin
    return answer


def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, **kwargs: Any) -> Any:
    product = NotImplemented if isinstance(bias, Lazy) or kwargs else mm(a, b)
    return product if product is NotImplemented else _sum(bias, product, beta, alpha)


def bmm(a: Tensor, b: Tensor, **kwargs: Any) -> Any:
    if not _one_weight(a, b) or kwargs:
        return NotImplemented
    if isinstance(a, Lazy):
        return bmm(b.transpose(1, 2), _flipped(a)).transpose(1, 2).contiguous()
    assert isinstance(b, Lazy)
    _one_dtype(a, b)
    if len(a) == 1 and b.dim() == 3 and isinstance(b.value, Joined) and b.value.axis >= 0:
        return _product(a[0], b).unsqueeze(0)
    if b.stride(0) == 0 or len(a) == 1:  # one matrix for all: one question
        return _product(a.reshape(-1, a.shape[2]), b, 0).view(a.shape[0], a.shape[1], -1)
    return torch.stack([_product(x, b, at) for at, x in enumerate(a)])


def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1, **kwargs: Any) -> Any:
    product = NotImplemented if isinstance(bias, Lazy) or kwargs else bmm(a, b)
    return product if product is NotImplemented else _sum(bias, product, beta, alpha)


def mv(a: Tensor, b: Tensor) -> Any:
    if not isinstance(a, Lazy) or isinstance(b, Lazy) or not _weight(a):
        return NotImplemented
    return _product(b.unsqueeze(0), _flipped(a))[0]


def addmv(bias: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    product = NotImplemented if isinstance(bias, Lazy) else mv(a, b)
    return product if product is NotImplemented else _sum(bias, product, beta, alpha)


def _sum(bias: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    product = product if alpha == 1 else product * alpha
    return product if beta == 0 else product + (bias if beta == 1 else bias * beta)


def grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: Any = None
) -> Any:
    """Rows of a (S, p), sorted by expert, times b (E, p, q): those up to offs[e] with matrix e."""
    if not _one_weight(a, b) or isinstance(a, Lazy) or offs is None or a.dim() != 2 or b.dim() != 3:
        return NotImplemented
    assert isinstance(b, Lazy)
    answer, start = a.new_zeros(len(a), b.shape[2]), 0
    for expert, stop in enumerate(offs.tolist()):
        if stop > start:
            answer[start:stop] = _product(a[start:stop], b, expert)
        start = max(start, stop)
    answer = answer if bias is None else answer + bias
    return answer if out_dtype is None else answer.to(out_dtype)


def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *settings: Any) -> Any:
    """A convolution of width 1 is a linear layer over channels; wider ones need entries."""
    if not (_one_weight(x, weight) and isinstance(weight, Lazy) and _pointwise(weight, settings)):
        return NotImplemented
    flat: Any = weight.flatten(1)
    moved = x.movedim(1, -1)
    answer = _product(moved.reshape(-1, moved.shape[-1]), _flipped(flat))
    answer = answer if bias is None else answer + bias
    return answer.view(*moved.shape[:-1], -1).movedim(-1, 1).contiguous()


def _pointwise(weight: Tensor, settings: tuple[Any, ...]) -> bool:
    """Whether a convolution reads one position at a time: settings are those of aten::convolution."""
    stride, padding, _, transposed, _, groups = settings[:6]
    narrow = all(size == 1 for size in weight.shape[2:]) and all(one == 1 for one in stride) and not any(padding)
    return narrow and not transposed and groups == 1


def convolution_backward(upper: Tensor, x: Tensor, weight: Tensor, _: Any, *settings: Any) -> Any:
    """The gradients of input, weight and bias of a convolution of width 1."""
    if not (_one_weight(upper, weight) and isinstance(weight, Lazy) and _pointwise(weight, settings)):
        return NotImplemented
    wanted = settings[-1]
    flat: Any = weight.flatten(1)
    moved = upper.movedim(1, -1)
    rows = moved.reshape(-1, moved.shape[-1])
    below = _product(rows, flat).view(*moved.shape[:-1], -1).movedim(-1, 1).contiguous() if wanted[0] else None
    own = Lazy(gradient(tuple(weight.shape[:2]), (Term(rows, x.movedim(1, -1).reshape(len(rows), -1)),)), upper.dtype)
    shaped = own.view(weight.shape) if wanted[1] else None
    return below, shaped, rows.sum(0) if wanted[2] else None
