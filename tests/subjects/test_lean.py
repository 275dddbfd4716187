"""Modules built without their large parameters: the laws against closed forms, all else against an ordinary build."""

from __future__ import annotations

import copy
import math
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from initdiag.errors import RunError
from initdiag.schemes import Constant, Normal, Truncated, Uniform
from initdiag.subjects.lean import Lean, build_lean
from initdiag.subjects.recorder import build_watched
from initdiag.weightless.law import Law, Piece, uniform_law

LARGE = 64
ROWS, COLUMNS = 12, 10


class Holder(nn.Module):
    """One large parameter, made by a function, and a small one."""

    def __init__(self, make: Callable[[], Tensor], then: Callable[[Any], object] = id) -> None:
        super().__init__()
        self.weight = nn.Parameter(make())
        self.bias = nn.Parameter(torch.zeros(COLUMNS))
        with torch.no_grad():
            then(self)


def empty() -> Tensor:
    return torch.empty(ROWS, COLUMNS)


def lean(make: Callable[[], Tensor], then: Callable[[Any], object] = id) -> Lean:
    return build_lean(lambda: Holder(make, then), LARGE)


def laws_are(found: Law, expected: Law) -> bool:
    """Equal up to the rounding of a scale."""

    def numbers(piece: Piece) -> list[float]:
        return [piece.start, piece.stop, piece.mean, *vars(piece.distribution).values()]

    return len(found.pieces) == len(expected.pieces) and all(
        type(one.distribution) is type(other.distribution) and numbers(one) == pytest.approx(numbers(other), rel=1e-6)
        for one, other in zip(found.pieces, expected.pieces, strict=True)
    )


def pieces(*parts: tuple[int, int, Any]) -> Law:
    return Law(tuple(Piece(*part) for part in parts))


def packed(module: Any) -> None:
    module.weight[:4].normal_(0, 0.1)
    module.weight[4:].normal_(0, 0.3)


def padded(module: Any) -> None:
    nn.init.normal_(module.weight, std=0.02)
    module.weight[3].zero_()


def rejected(module: Any) -> None:
    nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)


def halves_truncated(module: Any) -> None:
    nn.init.trunc_normal_(module.weight[:6], std=0.02, a=-0.04, b=0.04)
    nn.init.trunc_normal_(module.weight[6:], std=0.2)


PADDED = pieces((0, 3, Normal(0.02)), (3, 4, Constant(0.0)), (4, 12, Normal(0.02)))
WHOLE: list[tuple[Callable[[], Tensor], Callable[[Any], object], Law]] = [
    # factories, and what is made of them
    (lambda: torch.randn(ROWS, COLUMNS), id, uniform_law(Normal(1.0), ROWS)),
    (lambda: 0.02 * torch.randn(ROWS, COLUMNS), id, uniform_law(Normal(0.02), ROWS)),
    (lambda: torch.tensor(0.5) * torch.randn(ROWS, COLUMNS), id, uniform_law(Normal(0.5), ROWS)),
    (lambda: torch.randn_like(empty()) / 4, id, uniform_law(Normal(0.25), ROWS)),
    (lambda: torch.normal(0.0, 0.3, (ROWS, COLUMNS)), id, uniform_law(Normal(0.3), ROWS)),
    (lambda: torch.normal(torch.zeros(ROWS, COLUMNS), 0.3).normal_(), id, uniform_law(Normal(1.0), ROWS)),
    (lambda: torch.rand(ROWS, COLUMNS), id, uniform_law(Uniform(0.5), ROWS, 0.5)),
    (lambda: 1 - 2 * torch.rand(ROWS, COLUMNS), id, uniform_law(Uniform(1.0), ROWS)),
    (lambda: torch.Tensor(ROWS, COLUMNS).normal_(0, 2), id, uniform_law(Normal(2.0), ROWS)),
    (lambda: torch.zeros(ROWS, COLUMNS), id, uniform_law(Constant(0.0), ROWS)),
    (lambda: torch.full((ROWS, COLUMNS), 0.5), id, uniform_law(Constant(0.5), ROWS)),
    (lambda: torch.ones(COLUMNS, ROWS).t(), lambda m: m.weight.normal_(), uniform_law(Normal(1.0), ROWS)),
    (lambda: torch.randn(2, 6, 10).to(torch.bfloat16), id, uniform_law(Normal(1.0), ROWS)),
    (lambda: torch.randn(LARGE), id, uniform_law(Normal(1.0), 1)),
    # nn.init
    (empty, lambda m: nn.init.normal_(m.weight, 1.0, 0.5), uniform_law(Normal(0.5), ROWS, 1.0)),
    (empty, lambda m: nn.init.uniform_(m.weight), uniform_law(Uniform(0.5), ROWS, 0.5)),
    (empty, lambda m: nn.init.constant_(m.weight, 3.0), uniform_law(Constant(3.0), ROWS)),
    (empty, lambda m: nn.init.zeros_(m.weight), uniform_law(Constant(0.0), ROWS)),
    (empty, lambda m: nn.init.ones_(m.weight), uniform_law(Constant(1.0), ROWS)),
    (empty, lambda m: nn.init.xavier_normal_(m.weight), uniform_law(Normal(math.sqrt(2 / 22)), ROWS)),
    (empty, lambda m: nn.init.kaiming_uniform_(m.weight, a=1), uniform_law(Uniform(math.sqrt(3 / 10)), ROWS)),
    (empty, rejected, uniform_law(Truncated(0.02, 2.0), ROWS)),
    (empty, lambda m: (rejected(m), m.weight.mul_(0.5)), uniform_law(Truncated(0.01, 2.0), ROWS)),
    # methods, by whatever way
    (empty, lambda m: m.weight.data.normal_(0, 0.02), uniform_law(Normal(0.02), ROWS)),
    (empty, lambda m: m.weight.normal_().mul_(torch.tensor(0.25)), uniform_law(Normal(0.25), ROWS)),
    (empty, lambda m: m.weight.uniform_(-1, 1).div_(4).add_(1.0), uniform_law(Uniform(0.25), ROWS, 1.0)),
    (empty, lambda m: m.weight.copy_(torch.randn(ROWS, COLUMNS) * 0.3), uniform_law(Normal(0.3), ROWS)),
    (empty, lambda m: setattr(m.weight, "data", torch.randn(9, 9)), uniform_law(Normal(1.0), 9)),
    (empty, lambda m: (packed(m), nn.init.normal_(m.weight)), uniform_law(Normal(1.0), ROWS)),
]
PARTS: list[tuple[Callable[[], Tensor], Callable[[Any], object], Law]] = [
    (empty, padded, PADDED),
    (empty, lambda m: (padded(m), m.weight.mul_(2)),
     pieces((0, 3, Normal(0.04)), (3, 4, Constant(0)), (4, 12, Normal(0.04)))),
    (empty, lambda m: m.weight.copy_(padded_copy()), PADDED),
    (empty, lambda m: (nn.init.normal_(m.weight, std=0.02), m.weight.data.__setitem__(3, 0)), PADDED),
    (empty, lambda m: (nn.init.normal_(m.weight, std=0.02), zero_rows(m.weight, [11, 3])),
     pieces((0, 3, Normal(0.02)), (3, 4, Constant(0.0)), (4, 11, Normal(0.02)), (11, 12, Constant(0.0)))),
    (empty, lambda m: (nn.init.normal_(m.weight, std=0.02), m.weight.index_fill_(0, torch.tensor([3]), 0.0)), PADDED),
    (empty, lambda m: (nn.init.normal_(m.weight, std=0.02), mask_rows(m.weight, 3)), PADDED),
    (empty, packed, pieces((0, 4, Normal(0.1)), (4, 12, Normal(0.3)))),
    (empty, lambda m: (packed(m), m.weight[2:8].mul_(2)),
     pieces((0, 2, Normal(0.1)), (2, 4, Normal(0.2)), (4, 8, Normal(0.6)), (8, 12, Normal(0.3)))),
    (empty, lambda m: (nn.init.zeros_(m.weight), m.weight[:4].fill_(1.0)),
     pieces((0, 4, Constant(1.0)), (4, 12, Constant(0.0)))),
    (empty, lambda m: m.weight[:6].copy_(torch.randn(6, 10)) is m.weight[6:].uniform_(-1, 1),
     pieces((0, 6, Normal(1.0)), (6, 12, Uniform(1.0)))),
    (empty, halves_truncated, pieces((0, 6, Truncated(0.02, 2.0)), (6, 12, Normal(0.2)))),
    (lambda: torch.empty(3, 4, 10), lambda m: [m.weight[e].normal_(0, e + 1.0) for e in range(3)],
     pieces((0, 4, Normal(1.0)), (4, 8, Normal(2.0)), (8, 12, Normal(3.0)))),
    (lambda: torch.empty(3, 4, 10), lambda m: [nn.init.kaiming_uniform_(w, a=math.sqrt(5)) for w in m.weight],
     uniform_law(Uniform(1 / math.sqrt(10)), 12)),
    (lambda: torch.empty(3, 4, 10), lambda m: [rejected(type("E", (), {"weight": w})) for w in m.weight],
     uniform_law(Truncated(0.02, 2.0), 12)),
]  # fmt: skip


def padded_copy() -> Tensor:
    return Holder(empty, padded).weight.clone()


def zero_rows(weight: Tensor, rows: list[int]) -> None:
    weight[torch.tensor(rows)] = 0


def mask_rows(weight: Tensor, row: int) -> None:
    weight[torch.arange(len(weight)) == row] = 0.0


@pytest.mark.parametrize(("make", "then", "law"), WHOLE + PARTS)
def test_laws(make: Callable[[], Tensor], then: Callable[[Any], object], law: Law) -> None:
    found = lean(make, then)
    assert found.unrecorded == ()
    assert list(found.laws) == ["weight"]
    assert laws_are(found.laws["weight"], law), found.laws["weight"]
    assert found.module.weight.is_meta and not found.module.bias.is_meta
    assert found.built.unwritten == ()


def test_a_law_covers_every_row_once() -> None:
    for make, then, _ in PARTS:
        law = lean(make, then).laws["weight"]
        assert [piece.start for piece in law.pieces] == [0, *(piece.stop for piece in law.pieces[:-1])]
        assert law.pieces[-1].stop == ROWS


@pytest.mark.parametrize(
    ("make", "then", "why"),
    [
        (empty, id, "nothing wrote"),
        (empty, lambda m: m.weight[:6].normal_(), "nothing wrote"),
        (lambda: empty() * 0.02, id, "nothing wrote"),
        (empty, lambda m: nn.init.orthogonal_(m.weight), "nn.init.orthogonal_"),
        (empty, lambda m: nn.init.orthogonal_(m.weight[:6]) is m.weight[6:].zero_(), "nn.init.orthogonal_"),
        (empty, lambda m: nn.init.sparse_(m.weight, 0.1), "nn.init.sparse_"),
        (empty, lambda m: nn.init.eye_(m.weight), "eye"),
        (empty, lambda m: nn.init.trunc_normal_(m.weight, a=-1, b=2), "evenly"),
        (empty, lambda m: m.weight.exponential_(), "exponential"),
        (empty, lambda m: m.weight.normal_().clamp_(-1, 1), "clamp"),
        (empty, lambda m: m.weight.normal_()[:, :3].zero_(), "columns"),
        (empty, lambda m: m.weight.normal_().flatten()[:15].zero_(), "whole rows"),
        (empty, lambda m: m.weight.normal_().t()[2].zero_(), "columns"),
        (empty, lambda m: m.weight.copy_(torch.from_numpy(np.ones((ROWS, COLUMNS)))), "outside torch"),
        (empty, lambda m: m.weight.normal_().mul_(torch.rand(COLUMNS)), "mul"),
        (empty, lambda m: m.weight.normal_().fill_(math.inf), "own"),
        (empty, lambda m: setattr(m.weight, "data", torch.linalg.qr(torch.randn(ROWS, COLUMNS))[0]), "qr"),
    ],
)
def test_unrecorded(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Tensor], then: Callable[[Any], object], why: str
) -> None:
    monkeypatch.setattr("initdiag.subjects.lean.LAWLESS", 0)
    found = lean(make, then)
    assert [name for name, _ in found.unrecorded] == ["weight"] and why in found.unrecorded[0][1], found.unrecorded
    assert found.laws == {} and found.module.weight.is_meta
    assert found.built.unwritten == (("weight",) if why == "nothing wrote" else ())


# --- buffers, small parameters, values


class Tables(nn.Module):
    """Buffers as models make them, of both sizes, and constants that depend on no draw."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        with torch.no_grad():
            nn.init.normal_(self.linear.weight, std=0.02)
        device = self.linear.weight.device
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))
        self.register_buffer("filled", torch.empty(16, 16).fill_(float("-inf")).triu_(1))
        positions = torch.arange(32, device=device)[:, None]
        rate = torch.exp(torch.arange(0, 16, 2) * (-math.log(10_000.0) / 16))
        table = torch.zeros(32, 16, device=device)
        table[:, 0::2] = torch.sin(positions * rate)
        table[:, 1::2] = torch.cos(positions * rate)
        self.register_buffer("table", table)
        self.frozen = nn.Parameter(table.clone(), requires_grad=False)
        self.register_buffer("inv_freq", 1.0 / 10_000 ** (torch.arange(0, 16, 2, device=device) / 16))
        self.register_buffer("cos", torch.outer(torch.arange(32), self.inv_freq).cos())
        self.register_buffer("bias", self.linear.weight.new_zeros(3))
        self.register_buffer("wide", torch.zeros_like(self.linear.weight) + 1)
        self.register_buffer("bools", torch.ones(16, 16, dtype=torch.bool).tril())
        self.register_buffer("whole", torch.full((16, 16), 2))
        if self.linear.weight.is_meta:
            raise AssertionError("the user's code is not to see what has no memory")


def test_buffers_are_those_of_an_ordinary_build() -> None:
    plain, found = Tables(), build_lean(Tables, LARGE)
    assert found.laws == {"linear.weight": uniform_law(Normal(0.02), 16)} and found.unrecorded == ()
    for (name, one), (_, other) in zip(plain.named_buffers(), found.module.named_buffers(), strict=True):
        assert one.dtype == other.dtype and torch.equal(one, other), name
    assert torch.equal(plain.frozen, found.module.frozen)
    assert found.built.distributions["linear.weight"] == Normal(0.02)


def test_a_drawn_buffer_is_drawn() -> None:
    def build() -> nn.Module:
        module = nn.Linear(16, 16)
        module.register_buffer("features", torch.randn(40, 40) * 0.5)
        return module

    found = build_lean(build, LARGE)
    assert list(found.laws) == ["weight"]
    n = found.module.features.numel()  # 5 standard errors: one false alarm in 1.7 million seeds, and the seed is fixed
    assert float(found.module.features.std()) == pytest.approx(0.5, rel=5 / math.sqrt(2 * n))


def test_what_is_small_is_drawn_as_ever() -> None:
    def build() -> nn.Module:
        module = nn.Sequential(nn.Linear(40, 40), nn.Linear(20, 20), nn.LayerNorm(40))
        nn.init.normal_(module[1].weight, std=0.3)
        return module

    torch.manual_seed(1)
    found = build_lean(build, large=401)
    assert list(found.laws) == ["0.weight"]
    assert float(found.module[1].weight.detach().std()) == pytest.approx(
        0.3, rel=5 / math.sqrt(2 * 400)
    )  # one in 1.7 million
    assert torch.equal(found.module[2].weight, torch.ones(40))
    assert float(found.module[0].bias.detach().abs().max()) <= 1 / math.sqrt(40)
    assert found.built.distributions == build_watched(build).distributions


def test_a_small_parameter_computed_from_a_large_one() -> None:
    """Weight norm's g is the norm of every row: both are real then, and agree."""

    def build() -> nn.Module:
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(10, 12)), nn.Linear(16, 16))

    found = build_lean(build, LARGE)
    part = found.module[0].parametrizations.weight
    assert torch.allclose(part.original0[:, 0], part.original1.norm(dim=1))
    assert list(found.laws) == ["1.weight"] and found.unrecorded == ()


def test_values_that_init_code_reads() -> None:
    def normalized(module: Any) -> None:
        module.weight.normal_()
        module.weight.div_(module.weight.std().item())
        module.bias.copy_(module.weight[0])

    found = lean(empty, normalized)
    assert not found.module.weight.is_meta  # kept: the bias is its first row
    assert torch.equal(found.module.bias, found.module.weight[0])
    assert float(found.module.weight.detach().std()) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    "read",
    [
        lambda w: w.sum().item(),
        lambda w: bool((w > 0).any()),
        lambda w: w.detach().numpy(),
        lambda w: w.tolist(),
        lambda w: w.nonzero(),
        lambda w: w[w > 0],
        lambda w: torch.zeros(10).copy_(w[0]),
        lambda w: torch.equal(w, w),
    ],
)
def test_values_of_too_large_a_tensor_are_refused(
    read: Callable[[Tensor], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("initdiag.subjects.lean.ROOM", 100)
    with pytest.raises(RunError, match=r"reads entries of a large parameter \(.*test_lean.py:\d+\).*--engine dense"):
        lean(lambda: torch.randn(ROWS, COLUMNS), lambda m: read(m.weight))


# --- modules


def test_modules_that_change_their_parameters() -> None:
    def build() -> nn.Module:
        first = nn.TransformerEncoderLayer(16, 2, 32)
        module = nn.ModuleList([first, copy.deepcopy(first)])
        nn.init.normal_(module[1].linear1.weight, std=0.02)
        return module.to(torch.bfloat16).to("cpu")

    found = build_lean(build, LARGE)
    copies = [f"1.{name}" for name in ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear2.weight")]
    assert found.unrecorded == tuple((name, f"the same draw as 0{name[1:]}") for name in copies)
    assert laws_are(found.laws["0.self_attn.in_proj_weight"], uniform_law(Uniform(math.sqrt(6 / 64)), 48))
    assert laws_are(found.laws["0.linear1.weight"], uniform_law(Uniform(0.25), 32))
    assert laws_are(found.laws["0.linear2.weight"], uniform_law(Uniform(1 / math.sqrt(32)), 16))
    assert found.laws["1.linear1.weight"] == uniform_law(Normal(0.02), 32)
    assert {parameter.dtype for parameter in found.module.parameters()} == {torch.bfloat16}


def test_a_build_by_way_of_the_meta_device() -> None:
    def build() -> nn.Module:
        with torch.device("meta"):
            module = nn.Linear(10, 12)
        module.to_empty(device="cpu")
        nn.init.normal_(module.weight, std=0.5)
        nn.init.zeros_(module.bias)
        return module

    found = build_lean(build, LARGE)
    assert found.laws == {"weight": uniform_law(Normal(0.5), 12)}
    assert torch.equal(found.module.bias, torch.zeros(12))


@pytest.mark.parametrize("by_data", [False, True])
def test_tied_parameters_stay_tied(by_data: bool) -> None:
    def build() -> nn.Module:
        module = nn.ModuleDict({"table": nn.Embedding(20, 10, padding_idx=1), "head": nn.Linear(10, 20, bias=False)})
        if by_data:
            module["head"].weight.data = module["table"].weight.data
        else:
            module["head"].weight = module["table"].weight
        return module

    found = build_lean(build, LARGE)
    assert found.module["head"].weight is found.module["table"].weight
    padded = pieces((0, 1, Normal(1.0)), (1, 2, Constant(0.0)), (2, 20, Normal(1.0)))
    assert found.laws == {"table.weight": padded} and found.unrecorded == ()


def test_two_views_of_one_memory() -> None:
    def build() -> nn.Module:
        module, memory = nn.Module(), torch.randn(20, 10)
        module.first, module.second = nn.Parameter(memory[:10]), nn.Parameter(memory[10:])
        return module

    found = build_lean(build, LARGE)
    assert list(found.laws) == ["first"]
    assert found.unrecorded == (("second", "another view of the memory of first"),)


def test_a_view_of_memory_written_in_parts() -> None:
    def build() -> nn.Module:
        module, memory = nn.Module(), torch.empty(20, 10)
        memory[:10].normal_()
        memory[10:].uniform_(-1, 1)
        module.weight = nn.Parameter(memory[5:17])
        return module

    assert build_lean(build, LARGE).laws == {"weight": pieces((0, 5, Normal(1.0)), (5, 12, Uniform(1.0)))}


def test_a_large_parameter_that_was_made_real() -> None:
    """What is computed from small tensors is real until it has a law: then it has no memory, in both its owners."""

    def build() -> nn.Module:
        module = nn.ModuleList([nn.Module(), nn.Module()])
        module[0].weight = module[1].weight = nn.Parameter(torch.tensor(0.5).expand(ROWS, COLUMNS).clone())
        module[0].table = nn.Parameter(torch.eye(10))
        return module

    found = build_lean(build, LARGE)
    assert found.laws == {"0.weight": uniform_law(Constant(0.5), ROWS)} and found.unrecorded == ()
    assert found.module[0].weight is found.module[1].weight and found.module[0].weight.is_meta
    assert torch.equal(found.module[0].table, torch.eye(10))  # no law, but there


def test_writes_to_real_and_to_absent_tensors_at_once() -> None:
    def build() -> nn.Module:
        module = nn.Linear(10, 12)
        nn.init.ones_(module.bias)
        with torch.no_grad():
            torch._foreach_mul_([module.weight, module.bias], 0.5)
        return module

    found = build_lean(build, LARGE)
    assert torch.equal(found.module.bias, torch.full((12,), 0.5))


def copied_experts(module: Any) -> None:
    base = torch.randn(4, 10)
    for expert in module.weight:
        expert.copy_(base)


@pytest.mark.parametrize(
    ("make", "then"),
    [
        (lambda: torch.empty(3, 4, 10), copied_experts),
        (lambda: torch.randn(4, 20).expand(3, 4, 20).clone(), id),
        (lambda: torch.randn(4, 20)[None].expand(3, 4, 20).contiguous() * 0.5, id),
    ],
)
def test_one_draw_several_times_is_no_law(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], Tensor], then: Callable[[Any], object]
) -> None:
    monkeypatch.setattr("initdiag.subjects.lean.LAWLESS", 0)
    assert lean(make, then).unrecorded == (("weight", "the same draw several times"),)


def test_parts_of_one_draw_are_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("initdiag.subjects.lean.LAWLESS", 0)

    def build() -> nn.Module:
        packed, module = torch.randn(30, 10), nn.Module()
        module.query, module.key = (nn.Parameter(part.clone() * 0.5) for part in packed[:20].chunk(2))
        module.again = nn.Parameter(module.key.detach() / 4)
        nn.init.zeros_(module.again[3])
        return module

    with torch.no_grad():
        found = build_lean(build, LARGE)
    assert found.laws == {"query": uniform_law(Normal(0.5), 10), "key": uniform_law(Normal(0.5), 10)}
    assert found.unrecorded == (("again", "the same draw as key"),)


def test_two_copied_draws_are_two() -> None:
    def build() -> nn.Module:
        first, second = torch.randn(10, 10), torch.randn(10, 10)
        module = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(8, 8), nn.Linear(7, 9))
        with torch.no_grad():
            module[0].weight.copy_(first)
            module[1].weight.copy_(second)
        return module

    found = build_lean(build, LARGE)
    assert list(found.laws) == ["0.weight", "1.weight", "2.weight"] and found.unrecorded == ()  # 64 entries are large
    assert found.module[2].weight.is_meta and not found.module[3].weight.is_meta


def test_a_loop_over_many_rows() -> None:
    def build() -> nn.Module:
        module = Holder(lambda: torch.empty(3000, 4))
        with torch.no_grad():
            for row in module.weight:
                row.normal_(0, 0.5)
            module.weight[torch.arange(1, 3000)] = 0
        return module

    assert build_lean(build, LARGE).laws["weight"] == pieces((0, 1, Normal(0.5)), (1, 3000, Constant(0.0)))


def test_what_was_made_before_keeps_its_values() -> None:
    before = nn.Linear(10, 12)
    values = before.weight.detach().clone()
    found = build_lean(lambda: nn.Sequential(before, nn.Linear(10, 12)), LARGE)
    assert list(found.laws) == ["1.weight"]
    assert found.module[0].weight is before.weight and torch.equal(before.weight, values)


# --- nothing is left behind


@pytest.mark.parametrize("raises", [False, True])
def test_global_state_is_as_it_was(raises: bool) -> None:
    def build() -> nn.Module:
        torch.set_default_dtype(torch.float64)
        random.random(), np.random.rand(), torch.rand(3)
        module = Tables()
        if raises:
            raise ZeroDivisionError
        return module

    def state() -> list[Any]:
        return [
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),
            torch.get_default_dtype(),
            torch.get_default_device(),
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
            torch._C._len_torch_dispatch_stack(),
            torch._C._len_torch_function_stack(),
            torch.is_grad_enabled(),
        ]

    before = state()
    if raises:
        with pytest.raises(ZeroDivisionError):
            build_lean(build, LARGE)
    else:
        build_lean(build, LARGE)
    assert state() == before


def test_every_build_begins_at_the_same_random_state() -> None:
    """A module that is built twice, for the sake of a buffer, is the one of its seed."""

    def build() -> nn.Module:
        module = Tables()
        module.draw = nn.Parameter(torch.randn(5))
        module.chosen = random.random() + np.random.rand()
        return module

    def build_small() -> nn.Module:
        torch.randn(0)
        return build()

    found = []
    for _ in range(2):
        torch.manual_seed(4), random.seed(4), np.random.seed(4)
        module = build_lean(build_small, LARGE).module
        found.append((module.draw.tolist(), module.chosen))
    assert found[0] == found[1]
    random.seed(4), np.random.seed(4)
    assert found[0][1] == random.random() + np.random.rand()


def test_torch_dynamo_is_not_imported() -> None:
    code = """
import sys, torch
from torch import nn
from initdiag.subjects.lean import build_lean
def build():
    module = nn.Linear(20, 20)
    nn.init.trunc_normal_(module.weight, std=0.02).data.mul_(0.5)
    module.other = nn.Parameter(-0.02 * torch.randn(20, 20) / 2 + 1)
    module.other.data[3].zero_()
    return module.to(torch.bfloat16)
assert list(build_lean(build, 64).laws) == ["weight", "other"]
print([name for name in ("torch._dynamo", "torch._inductor") if name in sys.modules])
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# --- Hugging Face

WIDTHS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES: dict[str, dict[str, Any]] = {
    "LlamaConfig": {**WIDTHS, "intermediate_size": 64, "num_key_value_heads": 1},
    "GPT2Config": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0},
    "MixtralConfig": {**WIDTHS, "intermediate_size": 64, "num_key_value_heads": 1, "num_local_experts": 2},
    "DeepseekV3Config": {
        **WIDTHS,
        **{"intermediate_size": 64, "moe_intermediate_size": 16, "n_routed_experts": 8, "n_group": 2, "topk_group": 1},
        **{"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8},
        **{"num_key_value_heads": 2, "first_k_dense_replace": 1, "num_experts_per_tok": 2},
    },
    "OPTConfig": {**WIDTHS, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 16},
    "GPTNeoConfig": {
        **{"hidden_size": 32, "num_layers": 2, "num_heads": 2, "attention_types": [[["global", "local"], 1]]},
        **{"max_position_embeddings": 16, "window_size": 8, "bos_token_id": 0, "eos_token_id": 0},
    },
}


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return pytest.importorskip("transformers")


@pytest.mark.parametrize("name", SIZES)
def test_hugging_face_classes(name: str, transformers: Any) -> None:
    config = getattr(transformers, name)(vocab_size=100, **SIZES[name])
    cls = getattr(transformers, {"GPT2Config": "GPT2LMHeadModel"}.get(name, name.replace("Config", "ForCausalLM")))

    def build() -> nn.Module:
        return cls._from_config(copy.deepcopy(config), dtype=torch.float32)

    torch.manual_seed(3)
    plain, found = build_watched(build), build_lean(build, LARGE)
    assert found.unrecorded == () and found.built.unwritten == plain.unwritten
    assert found.built.distributions == plain.distributions and found.built.untouched == plain.untouched
    assert [name for name, _ in found.module.named_parameters()] == [n for n, _ in plain.module.named_parameters()]
    buffers = dict(found.module.named_buffers())
    assert all(torch.equal(tensor, buffers[name]) for name, tensor in plain.module.named_buffers())
    parameters = dict(found.module.named_parameters())
    for path, real in plain.module.named_parameters():
        assert parameters[path].is_meta == (real.numel() >= LARGE), path
        if real.numel() < LARGE:
            continue
        law, rows = found.laws[path], real.detach().reshape(-1, real.shape[-1])
        assert law.pieces[-1].stop == len(rows)
        for piece in law.pieces:
            entries = rows[piece.start : piece.stop]
            assert float(entries.mean()) == pytest.approx(piece.centre, abs=5 * piece.std / math.sqrt(entries.numel()))
            # 5 standard errors of a normal's std: about 150 comparisons, so one false alarm in 10 000 seeds; one here
            error = 5 / math.sqrt(2 * entries.numel())
            assert float(entries.std(correction=0)) == pytest.approx(piece.std, rel=error), path


def test_a_padding_row_of_hugging_face(transformers: Any) -> None:
    config = transformers.OPTConfig(vocab_size=100, pad_token_id=1, **SIZES["OPTConfig"])
    found = build_lean(lambda: transformers.OPTForCausalLM._from_config(config), LARGE)
    padded = pieces((0, 1, Normal(0.02)), (1, 2, Constant(0.0)), (2, 100, Normal(0.02)))
    assert found.laws["model.decoder.embed_tokens.weight"] == padded


def test_layers_of_405_billion(transformers: Any) -> None:
    """Three layers at full width: 54 GB, were they made. Laws and counts are those of the whole model's layers."""
    config = transformers.LlamaConfig(
        **{"hidden_size": 16384, "num_hidden_layers": 3, "num_attention_heads": 128, "num_key_value_heads": 8},
        **{"intermediate_size": 53248, "vocab_size": 128256},
    )
    found = build_lean(lambda: transformers.LlamaForCausalLM._from_config(config, dtype=torch.float32))
    assert len(found.laws) == 3 * 7 + 2 and {law.pieces[0].distribution for law in found.laws.values()} == {
        Normal(0.02)
    }
    assert all(parameter.is_meta == (parameter.dim() == 2) for parameter in found.module.parameters())
    assert not any(buffer.is_meta for buffer in found.module.buffers())
