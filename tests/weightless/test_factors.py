"""Gradients that are kept as thin products have the norms and the entries of those of a real parameter."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from initdiag.weightless import gradients
from initdiag.weightless.factors import Gradient, Term, gradient
from initdiag.weightless.gradients import thin_products
from initdiag.weightless.lazy import Lazy

from .helpers import close, made, vectors

D = torch.float64
V, W = 40, 36
IDS = torch.tensor([[5, 1, 39, 0], [1, 0, 5, 5]])
Loss = Callable[..., Tensor]


def h(rows: int, width: int, seed: int) -> Tensor:
    return vectors(rows, width, seed)


def curved(x: Tensor) -> Tensor:
    """A number of which every entry has another derivative."""
    return (torch.tanh(x) * torch.linspace(0.5, 2, x.numel(), dtype=x.dtype).view(x.shape)).sum()


def language_model(table: Tensor, a: Tensor, head: Tensor | None = None) -> Tensor:
    x = F.embedding(IDS, table)
    x = x + F.linear(torch.tanh(x), a)
    return F.cross_entropy(F.linear(x, table if head is None else head).flatten(0, 1), IDS.flatten())


def attention(x: Tensor, qkv: Tensor, out: Tensor) -> Tensor:
    q, k, v = F.linear(x, qkv).chunk(3, -1)
    return curved(F.linear(F.scaled_dot_product_attention(q, k, v), out))


def by_parts(x: Tensor, qkv: Tensor, out: Tensor) -> Tensor:
    q, k, v = (F.linear(x, part) for part in qkv.chunk(3))
    return curved(F.linear(F.scaled_dot_product_attention(q, k, v), out))


# name: shapes of the parameters, the loss, the operations that need a gradient's entries (empty: none)
CASES: dict[str, tuple[tuple[tuple[int, ...], ...], Loss]] = {
    "tied head": (((V, W), (W, W)), lambda x, t, a: language_model(t, a) + x.sum()),
    "untied head": (((V, W), (W, W), (V, W)), lambda x, t, a, o: language_model(t, a, o) + x.sum()),
    "padding": (((V, W),), lambda x, t: curved(F.embedding(IDS, t, padding_idx=5)) + x.sum()),
    "packed": (((3 * W, W), (W, W)), attention),
    "packed, by parts": (((3 * W, W), (W, W)), by_parts),
    "a part unused": (((3 * W, W),), lambda x, w: curved(F.linear(x, w.chunk(3)[0])) + curved(x @ w[2 * W :])),
    "used twice": (((W, W),), lambda x, w: curved(F.linear(torch.tanh(F.linear(x, w)), w))),
    "used both ways": (((V, W),), lambda x, w: curved(torch.tanh(F.linear(x, w)) @ w)),
    "W @ x": (((V, W),), lambda x, w: curved(w @ x[0].T)),
    "W x": (((V, W),), lambda x, w: curved(w @ x[0, 0]) + curved(torch.mv(w, x[0, 1]))),
    "x @ W": (((W, V),), lambda x, w: curved(x @ w)),
    "W.t()": (((W, V),), lambda x, w: curved(F.linear(x, w.t()))),
    "addmm": (((W, V),), lambda x, w: curved(torch.addmm(x[0, 0, :1].expand(V), x[0], w, beta=0.5, alpha=0.5))),
    "scaled": (((V, W),), lambda x, w: curved(F.linear(x, -w * 0.3)) + curved(F.linear(x, w / 4))),
    "plus": (((V, W),), lambda x, w: curved(F.linear(x, w + h(V, W, 9).to(w.dtype)))),
    "minus": (((V, W),), lambda x, w: curved(F.linear(x, w - h(V, W, 9).to(w.dtype)))),
    "rows": (((V, W),), lambda x, w: curved(F.linear(x, w[3:20])) + curved(F.linear(x, w[10:]))),
    "columns": (((V, W),), lambda x, w: curved(F.linear(x[..., 3:20], w[:, 3:20])) + curved(F.linear(x, w))),
    "rows and the table": (((V, W),), lambda x, w: curved(F.linear(x, w[3:20])) + curved(F.embedding(IDS, w))),
    "columns of rows": (((V, W),), lambda x, w: curved(F.embedding(IDS, w[:, 2:9])) + curved(F.linear(x, w))),
    "part of a table": (((V, W),), lambda x, w: curved(F.embedding(IDS, w[: V - 0])) + curved(F.linear(x, w[:15]))),
    "indexed": (((V, W),), lambda x, w: curved(w[IDS]) + curved(F.linear(x, w))),
    "selected": (((V, W),), lambda x, w: curved(x + w[3]) + curved(w.index_select(0, IDS[0]))),
    "einsum": (((V, W),), lambda x, w: curved(torch.einsum("btd,fd->btf", x, w))),
    "einsum by heads": (((W, 40),), lambda x, w: curved(torch.einsum("btd,dhk->bhtk", x, w.view(W, 4, 10)))),
    "einsum into heads": (((V, W),), lambda x, w: curved(torch.einsum("btd,hkd->bhtk", x, w.view(4, 10, W)))),
    "heads unbound": (
        ((3 * W, W),),
        lambda x, w: torch.stack([curved(F.linear(x, p)) for p in w.view(3, W, W).unbind(0)]).sum(),
    ),
    "x expanded": (((V, W),), lambda x, w: curved(x @ w.t().unsqueeze(0).expand(2, -1, -1))),
    "experts": (((3, W, V),), lambda x, w: curved(torch.bmm(x.flatten(0, 1).expand(3, -1, -1), w))),
    "experts, turned": (((3, V, W),), lambda x, w: curved(torch.bmm(x[:1].expand(3, -1, -1), w.transpose(1, 2)))),
    "experts, one by one": (((3, V, W),), lambda x, w: curved(F.linear(x, w[0])) + curved(F.linear(x[:1], w[2]))),
    "experts, in part": (((3, V, W),), lambda x, w: curved(F.linear(x, w[0][:14])) + curved(torch.bmm(x, w[1:].mT))),
    "experts, unbound": (
        ((3, V, W),),
        lambda x, w: torch.stack([curved(F.linear(x, one)) for one in w.unbind(0)]).sum(),
    ),
    "data": (((V, W),), lambda x, w: curved(F.linear(x, w)) + curved(F.linear(x, w.detach()))),
    "low rank beside": (((V, W), (V, 2), (2, W)), lambda x, w, b, a: curved(F.linear(x, w + b @ a))),
    "learnt scale": (((V, W), (1, 1)), lambda x, w, g: curved(F.linear(x, w)) * 0.1 + curved(F.linear(x, w * g[0, 0]))),
    "weight decay": (((V, W),), lambda x, w: curved(F.linear(x, w)) + w.square().sum()),
    "cat": (((V, W), (V, W)), lambda x, v, w: curved(F.linear(x, torch.cat([v, w])))),
}


def gradients_of(loss: Tensor, of: list[Tensor]) -> list[Tensor]:
    return list(torch.autograd.grad(loss, of))


@pytest.fixture
def small_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of parts are kept as factors from 2²⁰ entries on; here, of any size."""
    monkeypatch.setattr(gradients, "BIG", 0)
    monkeypatch.setattr(gradients, "THINNER", gradients.THIN)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_real_parameters(name: str, dtype: torch.dtype) -> None:
    agree(name, dtype)


@pytest.mark.usefixtures("small_too")
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_parts_are_those_of_real_parameters(name: str) -> None:
    agree(name, torch.float64)


def agree(name: str, dtype: torch.dtype) -> None:
    shapes, code = CASES[name]
    parameters = [made(*shape, name=f"w{at}", dtype=dtype) for at, shape in enumerate(shapes)]
    x = h(6, W, 1).view(2, 3, W).to(dtype).requires_grad_()
    small = [math.prod(of.parameter.shape) < 100 for of in parameters]
    pairs = zip(parameters, small, strict=True)
    of_both = [of.entries().requires_grad_() if one else of.parameter for of, one in pairs]
    loss = code(x, *of_both)
    with thin_products(of_both):
        found = gradients_of(loss, [x, *of_both])
    real = [of.entries().detach().requires_grad_() for of in parameters]
    expected = gradients_of(code(x, *real), [x, *real])
    wide = [of.entries().detach().double().requires_grad_() for of in parameters]
    x_wide = x.detach().double().requires_grad_()
    norms = [float(g.norm()) for g in gradients_of(code(x_wide, *wide), [x_wide, *wide])]
    for what, gradient_found, other, norm in zip(("x", *"0123"[: len(shapes)]), found, expected, norms, strict=True):
        tolerance = 1e-6 if dtype == torch.float64 else 1e-4
        assert norm_of(gradient_found) == pytest.approx(norm, rel=1e-6 if dtype == torch.float64 else 1e-5), what
        entries = gradient_found.value.entries() if isinstance(gradient_found, Lazy) else gradient_found
        close(entries, other, tolerance, what)


def norm_of(gradient: Tensor) -> float:
    if isinstance(gradient, Lazy):
        assert isinstance(gradient.value, Gradient)
        return gradient.value.norm()
    return float(gradient.double().norm())


# Where a gradient of the size of the parameter exists for a moment: a case that leaves this list is an improvement.
NOT_THIN = {
    "columns of rows",
    "W x",
    "low rank beside",
    "cat",
    "heads unbound",
    "experts, unbound",
    "a part unused",
    "selected",
    "indexed",
    "weight decay",
    "learnt scale",
}


@pytest.mark.usefixtures("small_too")
@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_THIN])
def test_gradients_stay_thin(name: str) -> None:
    """No m×n tensor is made by the backward, and the parameters stay without entries."""
    shapes, code = CASES[name]
    parameters = [made(*shape, name=f"w{at}", room=0) for at, shape in enumerate(shapes)]
    of: list[Any] = [
        one.entries().requires_grad_() if one.parameter.numel() < 100 else one.parameter for one in parameters
    ]
    with thin_products(of):
        found = gradients_of(code(h(6, W, 1).view(2, 3, W).requires_grad_(), *of), of)
    assert all(isinstance(g, Lazy) for g, one in zip(found, of, strict=True) if isinstance(one, Lazy))


def test_a_convolution_of_width_one() -> None:
    of = made(V, W, ones=1)
    x = h(2, W * 3, 1).view(2, W, 3).requires_grad_()
    loss = curved(F.conv1d(x, of.parameter))
    with thin_products([of.parameter]):
        found = gradients_of(loss, [x, of.parameter])
    real = of.entries().detach().requires_grad_()
    expected = gradients_of(curved(F.conv1d(x, real)), [x, real])
    assert norm_of(found[1]) == pytest.approx(float(expected[1].norm()), rel=1e-6)
    close(found[0], expected[0], 1e-6)


def test_grouped_products() -> None:
    of = made(3, 32, 48, dtype=torch.float32)
    x = vectors(6, 32, 1, torch.float32).requires_grad_()
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    with thin_products([of.parameter]):
        found = gradients_of(curved(torch._grouped_mm(x, of.parameter, offs=ends)), [x, of.parameter])
    real = of.entries().detach().requires_grad_()
    expected = gradients_of(curved(torch.cat([x[:2] @ real[0], x[2:] @ real[2]])), [x, real])
    assert isinstance(found[1], Lazy)
    assert norm_of(found[1]) == pytest.approx(float(expected[1].norm()), rel=1e-5)
    close(found[0], expected[0], 1e-5)
    close(found[1].value.entries(), expected[1], 1e-5)  # type: ignore[union-attr]


def test_a_product_of_activations_that_looks_like_a_gradient() -> None:
    """Three low-rank activations have the shape of W (20, 36): what uses the product gets its entries, W none."""
    of = made(20, W, room=0)
    a, b = h(20, 4, 1).requires_grad_(), h(4, W, 2).requires_grad_()
    loss = curved(F.linear(torch.tanh(a @ b), of.parameter))
    with thin_products([of.parameter]):
        found = gradients_of(loss, [a, b, of.parameter])
    real = of.entries().detach().requires_grad_()
    expected = gradients_of(curved(F.linear(torch.tanh(a @ b), real)), [a, b, real])
    for one, two in zip(found, expected, strict=True):
        close(one.value.entries() if isinstance(one, Lazy) else one, two, 1e-6)  # type: ignore[union-attr]


def test_a_gradient_that_meets_a_weight() -> None:
    """(m, k)·(k, n) looks like a gradient of W (m, n), and goes through another weight on its way down."""
    one, two = made(30, W, name="one", room=0), made(W, 50, name="two", room=0)
    a, c = h(30, 50, 1).requires_grad_(), h(W, 3, 2)
    loss = curved((a @ two.parameter.T) @ c) + curved(one.parameter @ c)
    with thin_products([one.parameter, two.parameter]):
        found = gradients_of(loss, [a])
    w = two.entries().detach()
    expected = gradients_of(curved((a @ w.T) @ c), [a])
    close(found[0], expected[0], 1e-6)


# --- Gradient by itself -----------------------------------------------------------------------------------------------


@st.composite
def terms(draw: st.DrawFn) -> tuple[tuple[int, int, int], list[Term]]:
    count, m, n = draw(st.integers(1, 3)), draw(st.integers(1, 12)), draw(st.integers(1, 12))
    found = []
    for _ in range(draw(st.integers(0, 5))):
        k, seed = draw(st.integers(1, 4)), draw(st.integers(0, 999))
        row, column = draw(st.integers(0, m - 1)), draw(st.integers(0, n - 1))
        rows, columns = draw(st.integers(1, m - row)), draw(st.integers(1, n - column))
        right = vectors(k, columns, seed)
        matrix = draw(st.integers(0, count - 1))
        if draw(st.booleans()):
            ids = torch.randint(rows, (k,), generator=torch.Generator().manual_seed(seed))
            found.append(Term(ids, right, matrix, row, column, rows))
        else:
            found.append(Term(vectors(k, rows, seed + 1000), right, matrix, row, column))
    return (count, m, n), found


def written_out(shape: tuple[int, int, int], of: list[Term]) -> Tensor:
    whole = torch.zeros(shape, dtype=D)
    for term in of:
        for at in range(len(term.right)):
            for column in range(term.right.shape[1]):
                if term.ids:
                    whole[term.matrix, term.row + int(term.left[at]), term.column + column] += term.right[at, column]
                    continue
                for row in range(term.left.shape[1]):
                    whole[term.matrix, term.row + row, term.column + column] += (
                        term.left[at, row] * term.right[at, column]
                    )
    return whole


@settings(max_examples=60, deadline=None, derandomize=True)
@given(terms(), st.floats(-3, 3))
def test_sums_of_terms(drawn: tuple[tuple[int, int, int], list[Term]], factor: float) -> None:
    shape, of = drawn
    whole = written_out(shape, of)
    found = gradient(shape, tuple(of))
    close(found.entries().to(D), whole, 1e-12)
    assert found.norm() == pytest.approx(float(whole.norm()), rel=1e-9, abs=1e-7)
    close(found.times(factor).entries().to(D), whole * factor, 1e-12)
    turned = Gradient(shape, found.layout.transpose(1, 2), found.terms).upright()
    assert turned is not None and turned.layout.is_contiguous()
    close(turned.entries().to(D), whole.transpose(1, 2), 1e-12)
    assert turned.norm() == pytest.approx(float(whole.norm()), rel=1e-9, abs=1e-7)


@pytest.mark.parametrize("factor", [1e-30, 1e-18, 1e18, 1e30])
def test_norms_of_tiny_and_huge_gradients(factor: float) -> None:
    """Squares and products that float32 doesn't hold."""
    left, right = vectors(3, 20, 0, torch.float32), vectors(3, 30, 1, torch.float32)
    norm = float((left.double().T @ right.double()).norm())
    found = gradient((20, 30), (Term(left * factor, right),))
    assert found.norm() == pytest.approx(norm * factor, rel=1e-5)
    ids = gradient((20, 30), (Term(torch.tensor([3, 3, 5]), right * factor, height=20),))
    expected = torch.stack([right[0] + right[1], right[2]]).double().norm()
    assert ids.norm() == pytest.approx(float(expected) * factor, rel=1e-5)


def test_terms_that_cancel() -> None:
    left, right = vectors(3, 20, 0), vectors(3, 30, 1)
    assert gradient((20, 30), (Term(left, right), Term(-left, right))).norm() < 1e-6
    assert gradient((20, 30), ()).norm() == 0.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite(bad: float) -> None:
    right = vectors(3, 30, 1)
    right[1, 2] = bad
    assert not math.isfinite(gradient((20, 30), (Term(vectors(3, 20, 0), right),)).norm())
