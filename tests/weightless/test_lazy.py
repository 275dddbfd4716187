"""Torch code on a parameter without entries gives what it gives on its entries, which are found out afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initdiag.errors import RunError
from initdiag.weightless.lazy import is_lazy, lazy_parameter, source_of

from .helpers import Made, close, made, vectors

D = torch.float64
X = vectors(3, 30, 1)
Y = vectors(3, 40, 2)
X3 = vectors(6, 30, 3).view(2, 3, 30)
Y3 = vectors(6, 40, 4).view(2, 3, 40)
DELTA = vectors(40, 30, 5)
BIAS = vectors(1, 40, 6)[0]
IDS = torch.tensor([[5, 1, 39], [1, 0, 5]])

# what torch code does to W (40, 30); none of these needs entries
MATRIX: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda w: F.linear(X3, w),
    "linear with bias": lambda w: F.linear(X3, w, BIAS),
    "linear of one vector": lambda w: F.linear(X[0], w, BIAS),
    "linear of none": lambda w: F.linear(X[:0], w, BIAS),
    "x @ W.T": lambda w: X3 @ w.T,
    "x @ W": lambda w: Y3 @ w,
    "W @ x": lambda w: w @ X.T,
    "W @ x, viewed": lambda w: (w @ X.T).view(-1),
    "W.T @ x": lambda w: w.T @ Y.T,
    "W @ batch": lambda w: w @ X3.transpose(1, 2),
    "batch of batches": lambda w: vectors(8, 30, 7).view(2, 2, 2, 30) @ w.mT,
    "x expanded": lambda w: X3 @ w.t().unsqueeze(0).expand(2, -1, -1),
    "mm": lambda w: torch.mm(Y, w),
    "mv": lambda w: torch.mv(w, X[0]),
    "W.T mv": lambda w: w.t() @ Y[0],
    "v @ W": lambda w: Y[0] @ w,
    "addmm": lambda w: torch.addmm(X[0], Y, w, beta=0.5, alpha=2),
    "addmv": lambda w: torch.addmv(BIAS, w, X[0], beta=2, alpha=0.5),
    "tensordot": lambda w: torch.tensordot(X3, w, dims=([2], [1])),
    "inner": lambda w: torch.inner(X3, w),
    "multi_dot": lambda w: torch.linalg.multi_dot([Y, w, X.T]),
    "einsum": lambda w: torch.einsum("btd,fd->btf", X3, w),
    "einsum, turned": lambda w: torch.einsum("btf,fd->btd", Y3, w),
    "einsum, weight first": lambda w: torch.einsum("fd,btd->btf", w, X3),
    "einsum, to the front": lambda w: torch.einsum("fd,btd->fbt", w, X3),
    "einsum, into heads": lambda w: torch.einsum("btd,hkd->bhtk", X3, w.view(4, 10, 30)),
    "einsum, out of heads": lambda w: torch.einsum("bthk,hkd->btd", Y3.view(2, 3, 4, 10), w.view(4, 10, 30)),
    "einsum, columns as heads": lambda w: torch.einsum("btd,dhk->bthk", Y3, w.view(40, 5, 6)),
    "einsum by heads": lambda w: torch.einsum(
        "bhtk,hkd->bhtd", Y3.view(2, 3, 4, 10).transpose(1, 2), w.view(4, 10, 30)
    ),
    "embedding": lambda w: F.embedding(IDS, w),
    "embedding, padding": lambda w: F.embedding(IDS, w, padding_idx=0),
    "embedding of none": lambda w: F.embedding(IDS[:, :0], w),
    "rows": lambda w: w[IDS],
    "rows from the end": lambda w: w[-IDS],
    "rows by a list": lambda w: w[[3, 3, 1]],
    "rows of some columns": lambda w: w[:, 2:20:3][IDS],
    "rows by a mask": lambda w: w[torch.arange(40) % 11 == 3],
    "index_select": lambda w: w.index_select(0, IDS[0]),
    "one row": lambda w: X * w[3],
    "the last row": lambda w: X + w[-1],
    "a few rows": lambda w: F.relu(w[2:5] * 3),
    "one-hot": lambda w: F.one_hot(IDS, 40).to(D) @ w,
    "part of rows": lambda w: F.linear(X, w[5:20]),
    "every third row": lambda w: F.linear(X, w[1::3]),
    "every third row, viewed": lambda w: F.linear(X, w[1::3]).view(-1),
    "part of columns": lambda w: F.linear(X[:, 1:14], w[:, 1:14]),
    "every other column": lambda w: F.linear(X[:, ::2], w[:, ::2]),
    "part of columns, turned": lambda w: Y @ w[:, 1:14],
    "a corner": lambda w: F.linear(X[:, 4:9], w[3:20, 4:9]),
    "chunk": lambda w: F.linear(X, w.chunk(3)[1]),
    "split": lambda w: torch.cat([F.linear(X, part) for part in w.split([20, 12, 8])], -1),
    "split columns": lambda w: F.linear(X[:, 10:20], w.split(10, 1)[1]),
    "unbind": lambda w: F.linear(X, w.view(4, 10, 30).unbind(0)[2]),
    "heads, one by one": lambda w: torch.stack([F.linear(X, part) for part in w.view(4, 10, 30)]),
    "packed, overlapping": lambda w: F.linear(X, w[:25]).sum() + F.linear(X, w[15:]).sum() + F.linear(X, w).sum(),
    "times a number": lambda w: F.linear(X, w * 0.5) + F.linear(X, 2 * w) + F.linear(X, w / 4) + F.linear(X, -w),
    "times a tensor of one": lambda w: F.linear(X, w * torch.tensor(1.5, dtype=D) * torch.tensor([0.5], dtype=D)),
    "rows times a number": lambda w: F.embedding(IDS, w * 30**0.5),
    "plus": lambda w: F.linear(X, w + DELTA) + F.linear(X, DELTA + w) + X @ (w + DELTA).T,
    "minus": lambda w: F.linear(X, w - DELTA) + F.linear(X, torch.sub(w, DELTA, alpha=2)),
    "from": lambda w: F.linear(X, DELTA - w),
    "plus, in part": lambda w: F.linear(X, (2 * (w + DELTA) + DELTA)[3:9]),
    "plus, of rows": lambda w: (w + DELTA)[IDS],
    "another dtype": lambda w: F.linear(X.float(), w.float()).double().round(decimals=3),
    "viewed": lambda w: F.linear(X, w.view(4, 10, 30).reshape(40, 30).unsqueeze(0).squeeze(0)),
    "turned and back": lambda w: F.linear(X, w.t().contiguous().t().clone()),
    "turned in memory": lambda w: F.linear(Y, w.t().contiguous().view(30, 40)),
    "data": lambda w: F.linear(X, w.data) + F.linear(X, w.detach()),
    "dropout in eval": lambda w: F.linear(X, F.dropout(w, 0.1, False)),
    "like it": lambda w: torch.zeros_like(w) + torch.ones_like(w) + w.new_zeros(30),
    "heads the other way round": lambda w: F.linear(X, w.view(4, 10, 30).transpose(0, 1).reshape(40, 30)),
    "cat": lambda w: F.linear(X, torch.cat([w, w[:5]])),
}
TOLERANCE = {"another dtype": 2e-3}

# experts W (4, 20, 24)
E3 = vectors(12, 20, 8).view(4, 3, 20)
F3 = vectors(12, 24, 9).view(4, 3, 24)
EXPERTS: dict[str, Callable[[Tensor], Tensor]] = {
    "bmm": lambda w: torch.bmm(E3, w),
    "bmm, turned": lambda w: torch.bmm(F3, w.transpose(1, 2)),
    "bmm, weight first": lambda w: torch.bmm(w, F3.transpose(1, 2)),
    "bmm, weight first, viewed": lambda w: torch.bmm(w, F3.transpose(1, 2)).view(-1),
    "matmul": lambda w: E3 @ w,
    "baddbmm": lambda w: torch.baddbmm(F3[:, :1], E3, w, beta=0.5, alpha=2),
    "one": lambda w: F.linear(F3[0], w[2]),
    "one, turned": lambda w: F.linear(E3[0], w[-1].t()),
    "one, in part": lambda w: torch.stack(F.linear(F3[0], w[1]).chunk(2, -1)) + F.linear(F3[0], w[1][:10]),
    "one by one": lambda w: torch.stack([F.linear(F3[0], one) for one in w]),
    "unbind": lambda w: F.linear(F3[0], w.unbind(0)[3]),
    "some": lambda w: torch.bmm(E3[:2], w[1:3]),
    "einsum": lambda w: torch.einsum("ecd,edf->ecf", E3, w),
    "einsum, turned": lambda w: torch.einsum("ecf,edf->ecd", F3, w),
    "grouped": lambda w: torch._grouped_mm(
        vectors(6, 20, 1, torch.float32), w.float(), offs=torch.tensor([2, 2, 5, 6], dtype=torch.int32)
    ).double(),
    "scaled": lambda w: torch.bmm(E3, 2 * w) + torch.bmm(E3, w / 3),
    "plus": lambda w: torch.bmm(E3, w + torch.ones(4, 20, 24, dtype=D)),
}
TOLERANCE["grouped"] = 1e-5


def agree(of: Made, code: Callable[[Any], Tensor], tolerance: float) -> None:
    """Run code twice on a parameter that has no room for entries, then on its entries: all three are equal."""
    with torch.no_grad():
        first, second = code(of.parameter), code(of.parameter)
        assert not is_lazy(first)
        real = code(of.entries())
    close(first, real, tolerance)
    close(second, real, tolerance)
    assert first.dtype == real.dtype


@pytest.mark.parametrize("name", MATRIX)
def test_a_matrix(name: str) -> None:
    of = made(40, 30, room=0)
    agree(of, MATRIX[name], TOLERANCE.get(name, 1e-6))


@pytest.mark.parametrize("name", EXPERTS)
def test_experts(name: str) -> None:
    agree(made(4, 20, 24, room=0), EXPERTS[name], TOLERANCE.get(name, 1e-6))


# a product with the whole of a parameter whose matrices lie along another axis than torch's last two
ACROSS: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor]]] = {
    "projection (d, heads, k)": ((20, 4, 6), lambda w: torch.einsum("btd,dhk->bthk", E3, w)),
    "projection (heads, d, k)": ((4, 20, 6), lambda w: torch.einsum("btd,hdk->bthk", E3, w)),
    "all experts": ((4, 20, 24), lambda w: torch.einsum("btd,edf->btef", E3, w)),
    "all experts, turned": ((4, 24, 20), lambda w: torch.einsum("btd,efd->btef", E3, w)),
    "heads back (heads, k, d)": ((4, 6, 20), lambda w: torch.einsum("bthk,hkd->btd", F3.view(4, 3, 4, 6), w)),
    "experts, batched": ((4, 20, 24), lambda w: E3.view(1, 4, 3, 20).expand(2, 4, 3, 20) @ w),
    "experts, one token": ((4, 20, 24), lambda w: E3.unsqueeze(1) @ w),
    "chosen experts": ((4, 20, 24), lambda w: torch.bmm(E3[:2], w[torch.tensor([3, 1])])),
    "experts' rows": ((4, 20, 24), lambda w: w[:, 3] * 2),
    "experts' rows, plus": ((4, 20, 24), lambda w: F3[0] @ (w + torch.ones(4, 20, 24, dtype=D))[:, 3].T),
}


@pytest.mark.parametrize("name", ACROSS)
def test_views_across_matrices_are_right_whatever_they_cost(name: str) -> None:
    shape, code = ACROSS[name]
    of = made(*shape)
    with torch.no_grad():
        found = code(of.parameter)
        again = code(of.parameter)
        real = code(of.entries())
    close(found, real, 1e-6)
    close(again, real, 1e-6)


ENTRIES: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda w: w.sum(),
    "sum by rows": lambda w: w.sum(0),
    "norm": lambda w: w.norm(),
    "largest": lambda w: w.abs().max(),
    "normalize": lambda w: F.linear(X, F.normalize(w)),
    "matrix_norm": lambda w: torch.linalg.matrix_norm(w, 2),
    "masked": lambda w: F.linear(X, w * (DELTA > 0)),
    "gain": lambda w: F.linear(X, w * BIAS.unsqueeze(1)),
    "squares": lambda w: w**2,
    "where": lambda w: torch.where(DELTA > 0, w, 0.0),
    "plus a number": lambda w: F.linear(X, w - 0.5),
    "two": lambda w: w + 2 * w,
    "W Wᵀ": lambda w: w @ w.T,
    "stack": lambda w: torch.stack([w, w]).sum(0),
    "columns": lambda w: w[:, [1, 5]],
    "flat": lambda w: F.relu(w.reshape(-1)[::7]),
    "round": lambda w: w.round(),
    "standardized": lambda w: F.linear(X, (w - w.mean(1, keepdim=True)) / w.std(1, keepdim=True)),
    "convolution": lambda w: F.conv1d(vectors(6, 9, 1).view(2, 3, 9), w.view(40, 3, 10)[:, :, :3]),
}


@pytest.mark.parametrize("name", ENTRIES)
def test_what_needs_entries_gets_them(name: str) -> None:
    of = made(40, 30)
    with torch.no_grad():
        before, rows = F.linear(X, of.parameter), F.embedding(IDS, of.parameter)
        found = ENTRIES[name](of.parameter)
        w = of.entries()
        close(found, ENTRIES[name](w), 1e-6)
        close(before, F.linear(X, w), 1e-6)
        close(rows, F.embedding(IDS, w), 1e-9)
        close(F.linear(X3, of.parameter), F.linear(X3, w), 1e-9)
    assert list(of.budget.made) == ["w"], "the report must say so"


def test_no_room_for_entries() -> None:
    of = made(400, 300, room=0)
    with torch.no_grad(), pytest.raises(RunError, match=r"'w'"):
        of.parameter.abs()
    with torch.no_grad():  # products and rows need none
        F.linear(X.repeat(1, 10), of.parameter)
        of.parameter[3] + of.parameter[2:4]
    assert not of.budget.made


@pytest.mark.parametrize(
    "write",
    [
        lambda w: w.zero_(),
        lambda w: w.mul_(2),
        lambda w: w[3].fill_(0),
        lambda w: w.copy_(DELTA),
        lambda w: w.__setitem__(3, 0.0),
        torch.nn.init.normal_,
        lambda w: torch.mul(DELTA, 2, out=w),
        lambda w: F.embedding(IDS, w, max_norm=1.0),
    ],
)
def test_writes_are_refused(write: Callable[[Tensor], Any]) -> None:
    of = made(40, 30)
    with torch.no_grad(), pytest.raises(RunError, match=r"writes into 'w'.*--engine dense"):
        write(of.parameter)


@pytest.mark.parametrize("ids", [[40], [-1], [3, 100]])
def test_ids_outside_the_table(ids: list[int]) -> None:
    with pytest.raises(IndexError, match="40 rows"):
        F.embedding(torch.tensor(ids), made(40, 30).parameter)


@pytest.mark.parametrize("dims", [1, 2])
def test_convolutions_of_width_one(dims: int) -> None:
    of = made(40, 30, ones=dims)
    x = vectors(2, 30 * 4, 0).view(2, 30, *([4] if dims == 1 else [2, 2]))
    convolution = F.conv1d if dims == 1 else F.conv2d
    with torch.no_grad():
        found = convolution(x, of.parameter, BIAS)
        close(found, convolution(x, of.entries(), BIAS), 1e-6)
        found.view(-1)  # contiguous, as torch's own


def test_a_parameter_looks_like_one() -> None:
    of = made(40, 30)
    assert isinstance(of.parameter, nn.Parameter) and of.parameter.requires_grad and of.parameter.is_leaf
    assert of.parameter.shape == (40, 30) and of.parameter.is_contiguous() and of.parameter.device.type == "cpu"
    assert source_of(of.parameter) is of.source and source_of(of.parameter[3:].t()) is of.source
    assert not lazy_parameter(of.source, (40, 30), D, requires_grad=False).requires_grad
    assert "Lazy" in repr(of.parameter)


def test_inference_mode() -> None:
    of = made(40, 30)
    with torch.inference_mode():
        x = X.clone()
        first = F.linear(x, of.parameter, BIAS) + F.linear(x, of.parameter)
        x.copy_(Y[:, :30])  # inference tensors count no writes
        second = F.linear(x, of.parameter)
    assert not of.budget.made
    w = of.entries()
    close(first, 2 * F.linear(X, w) + BIAS, 1e-6)
    close(second, F.linear(Y[:, :30], w), 1e-6)


# --- modules ----------------------------------------------------------------------------------------------------------


def lazily(module: nn.Module, room: int = 2**40) -> tuple[nn.Module, dict[str, Made]]:
    """Give a module parameters without entries, but for its vectors."""
    found = {}
    for name, parameter in list(module.named_parameters()):
        if parameter.dim() > 1:
            found[name] = made(*parameter.shape, name=name, room=room)
            owner, _, last = name.rpartition(".")
            module.get_submodule(owner)._parameters[last] = found[name].parameter
    return module, found


def densely(module: nn.Module, found: dict[str, Made]) -> None:
    for name, of in found.items():
        owner, _, last = name.rpartition(".")
        module.get_submodule(owner)._parameters[last] = nn.Parameter(of.entries())


@pytest.mark.parametrize("batch_first", [False, True])
def test_multihead_attention(batch_first: bool) -> None:
    module, found = lazily(nn.MultiheadAttention(64, 4, batch_first=batch_first).double())
    x = vectors(10, 64, 0).view(2, 5, 64)
    answers = []
    for _ in range(2):
        self_attention, _w = module(x, x, x, need_weights=False)
        cross, weights = module(x, x[:, :3] if batch_first else x[:3], x[:, :3] if batch_first else x[:3])
        answers += [self_attention, cross, weights]
    assert not any(of.budget.made for of in found.values())
    densely(module, found)
    for at in (0, 3):
        close(answers[at], module(x, x, x, need_weights=False)[0], 1e-6)
        cross, weights = module(x, x[:, :3] if batch_first else x[:3], x[:, :3] if batch_first else x[:3])
        close(answers[at + 1], cross, 1e-6)
        close(answers[at + 2], weights, 1e-6)


@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layer(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, norm_first=norm_first, batch_first=True, dropout=0.0).double()
    module, found = lazily(layer)
    x = vectors(10, 64, 0).view(2, 5, 64)
    mask = nn.Transformer.generate_square_subsequent_mask(5, dtype=D)
    answer = module(x, mask, is_causal=True)
    assert not any(of.budget.made for of in found.values())
    densely(module, found)
    close(answer, module(x, mask, is_causal=True), 1e-6)


def test_bilinear() -> None:
    module, found = lazily(nn.Bilinear(30, 7, 11).double())
    answer = module(X, X[:, :7])
    densely(module, found)
    close(answer, module(X, X[:, :7]), 1e-6)


def test_several_weights_at_once() -> None:
    """The fused product of projections that are parameters of their own."""
    q, k = made(40, 30, name="q"), made(10, 30, name="k")
    with torch.no_grad():
        alone = F.linear(X, k.parameter)
        fused = F.linear(X3, torch.cat([q.parameter, k.parameter]))
        w = torch.cat([q.entries(), k.entries()])
    close(fused, F.linear(X3, w), 1e-6)
    close(alone, F.linear(X, w[40:]), 1e-6)
