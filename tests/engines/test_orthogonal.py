"""Orthogonal matrices: their rows or columns, their distribution, their shapes; and without weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from initdiag.engines import Settings, dense, weightless
from initdiag.engines.draw import fill
from initdiag.errors import PlanError, RunError
from initdiag.schemes import Constant, Normal
from initdiag.schemes.distributions import Distribution, Orthogonal
from initdiag.weightless.budget import Budget
from tests.sampling import assert_near
from tests.small_models import subject

SETTINGS = Settings(device="cpu", threads=1, engine="weightless")


def drawn(law: Distribution, *shape: int, seed: int = 0, threads: int = 1) -> Tensor:
    tensor = torch.full(shape, torch.nan)
    fill([(tensor, law, "a.weight")], seed, threads)
    return tensor


def orthogonal(*shape: int, gain: float = 1.0, seed: int = 0) -> Tensor:
    return drawn(Orthogonal(gain, max(shape[-2:])), *shape, seed=seed)


def assert_orthonormal(matrix: Tensor, gain: float = 1.0) -> None:
    rows, columns = matrix.shape
    thin = matrix.double() if rows <= columns else matrix.double().T
    torch.testing.assert_close(thin @ thin.T, gain**2 * torch.eye(len(thin), dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(64, 64), (200, 30), (30, 200), (1, 9), (9, 1), (1, 1)])
@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_the_fewer_of_rows_and_columns_are_orthonormal(shape: tuple[int, int], gain: float) -> None:
    assert_orthonormal(orthogonal(*shape, gain=gain), gain)


def test_it_comes_from_the_normals_of_the_parameter() -> None:
    """Qᵀz is triangular with a positive diagonal: R."""
    for shape in ((40, 25), (25, 40)):
        q, z = orthogonal(*shape), drawn(Normal(1.0), *shape)
        r = q.T @ z if shape[0] >= shape[1] else q @ z.T
        assert float(r.tril(-1).abs().max()) < 1e-5
        assert float(r.diagonal().min()) > 0


def test_a_sign_is_as_often_negative() -> None:
    signs = torch.cat([orthogonal(1, 1, seed=seed) for seed in range(400)])
    assert bool((signs.abs() == 1).all())
    assert_near(float(signs.mean()), 0, 1 / math.sqrt(400), "sign")


@pytest.mark.parametrize("n", [2, 4])
def test_haar(n: int) -> None:
    """Every entry has mean 0, variance 1/n, fourth moment 3/(n(n + 2)); the trace has mean 0 and variance 1; half of
    the determinants are negative. Each within five standard errors. LAPACK's own signs fail: its diagonals lean."""
    q = orthogonal(5000, n, n).double()
    assert float((q @ q.transpose(1, 2) - torch.eye(n, dtype=torch.float64)).abs().max()) < 1e-5
    for i in range(n):
        for j in range(n):
            entry = q[:, i, j]
            for power, expected in ((1, 0.0), (2, 1 / n), (4, 3 / (n * (n + 2)))):
                values = entry.pow(power)
                assert_near(float(values.mean()), expected, float(values.std()) / math.sqrt(5000), f"{i}, {j}^{power}")
    trace = q.diagonal(dim1=1, dim2=2).sum(1)
    assert_near(float(trace.mean()), 0, 1 / math.sqrt(5000), "trace")
    assert_near(float(trace.square().mean()), 1, float(trace.square().std()) / math.sqrt(5000), "trace squared")
    assert_near(float(torch.linalg.det(q).sign().mean()), 0, 1 / math.sqrt(5000), "sign of the determinant")


def test_moments_are_those_of_the_distribution() -> None:
    law = Orthogonal(0.7, 400)
    x = drawn(law, 100, 400).double()
    # rows have length 0.7 exactly: 0.7² / 400 is the mean square of any of them
    torch.testing.assert_close(x.square().mean(1), torch.full((100,), 0.7**2 / 400).double(), rtol=1e-5, atol=0)
    assert law.std == pytest.approx(0.7 / 20)
    fourth = (x / law.std).pow(4)
    assert_near(float(fourth.mean()), 3 * 400 / 402, math.sqrt(96 / x.numel()), "kurtosis")


def test_experts_are_orthogonal_each_for_itself() -> None:
    x = orthogonal(3, 20, 12, gain=2.0)
    for expert in x:
        assert_orthonormal(expert, 2.0)
    assert float((x[0] - x[1]).abs().max()) > 0.1


def test_kernels_are_flattened_as_torch_does() -> None:
    assert_orthonormal(orthogonal(8, 3, 2, 2).flatten(1))
    assert_orthonormal(orthogonal(8, 20, 1).flatten(1))  # a convolution of width 1
    assert_orthonormal(orthogonal(8, 1, 1).flatten(1))


def test_a_vector_can_not_be_orthogonal() -> None:
    with pytest.raises(PlanError, match=r"'a.weight' of shape \(5,\) can't be orthogonal; expected two axes"):
        drawn(Orthogonal(1.0, 5), 5)


def test_threads_change_nothing() -> None:
    """Of LAPACK's threads the result would depend in its last digits."""
    default = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            tensors = [torch.empty(300, 200) for _ in range(3)]
            fill([(x, Orthogonal(1.0, 300), str(at)) for at, x in enumerate(tensors)], 0, threads)
            found.append(torch.stack(tensors))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(default)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


# --- without weights


def wide() -> dict[str, Any]:
    return {"d_model": 256, "d_ff": 1024, "n_layers": 1, "vocab_size": 1100, "tied": False}


def test_weightless_they_are_made_real_and_the_notes_say_so() -> None:
    of = subject("orthogonal", **wide())
    made = weightless.realize(of, 3, SETTINGS, tokens=8)
    large = ["blocks.0.mlp.input.weight", "blocks.0.mlp.out.weight", "head.weight"]
    notes = made.notes
    assert sorted(name for name, _ in notes.made_real) == sorted(large)
    assert {why for _, why in notes.made_real} == {"its entries are not independent (orthogonal)"}
    # beside them only the embedding has no entries, and that one is normal
    assert notes.parameters == 3 + 1 and notes.entries == 2 * 256 * 1024 + 2 * 1100 * 256
    assert notes.asymptotic == ()
    there = dict(made.weights.module.named_parameters())
    expected = dict(dense.realize(of, 3, Settings(device="cpu", threads=1)).module.named_parameters())
    for name in large:
        assert torch.equal(there[name], expected[name]), name
        assert_orthonormal(there[name].detach())
    again = weightless.realize(of, 3, SETTINGS, tokens=8)
    assert again.budget.made.keys() == set(large)


def test_where_there_is_no_room_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    of = subject("orthogonal", **wide())
    # 256 · 1024 entries: 1 MiB, and 3 MiB for their decomposition
    monkeypatch.setattr(weightless, "budget", lambda: Budget(2**21))
    with pytest.raises(RunError) as raised:
        weightless.realize(of, 0, SETTINGS, tokens=8)
    assert "'blocks.0.mlp.input.weight' has to be drawn, since its entries are not independent" in str(raised.value)
    assert "takes 0.0039 GiB; there is room for 0.002 GiB. Use another --scheme, or fewer layers" in str(raised.value)
    monkeypatch.setattr(weightless, "budget", lambda: Budget(2**30))
    made = weightless.realize(of, 0, SETTINGS, tokens=8)
    assert made.budget.left == 2**30 - 2 * 2**20 - 4 * 1100 * 256


def test_small_ones_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weightless, "budget", lambda: Budget(0))
    made = weightless.realize(subject("orthogonal"), 0, SETTINGS, tokens=8)
    assert made.notes.made_real == () and made.notes.parameters == 0
    for entry in made.weights.plan.entries:
        if not isinstance(entry.distribution, Normal | Constant):
            matrix = made.weights.module.get_parameter(entry.parameter.name)
            assert_orthonormal(matrix.detach())
