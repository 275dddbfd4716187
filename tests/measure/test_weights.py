"""What a parameter holds: kurtosis, maximum, stable rank and digest beside float64, singular values and bytes."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from initdiag.measure.one_thread import one_thread
from initdiag.measure.statistics import BLOCK, moments
from initdiag.measure.weights import digest, measure_buffers, measure_parameters, stable_rank, tails
from tests.small_models import normals


def kurtosis(x: Tensor) -> float:
    wide = x.detach().double().flatten()
    wide = wide - wide.mean()
    return float((wide**4).mean() / (wide**2).mean() ** 2)


def measured_tails(x: Tensor) -> tuple[float, float, float]:
    mean, spread, _ = moments(x)
    return tails(x, mean, spread**0.5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mean", [0.0, 0.02, -3.0])
@pytest.mark.parametrize("count", [2, 40, BLOCK + 1, 3 * BLOCK + 5])
def test_kurtosis_and_maximum_beside_float64(count: int, mean: float, dtype: torch.dtype) -> None:
    x = (mean + 0.02 * normals(count)).to(dtype)
    found, low, high = measured_tails(x)
    # mean and std are float32's, a mean of 150 stds loses two of its seven digits
    assert found == pytest.approx(kurtosis(x), rel=1e-3 if mean == -3.0 else 1e-5)
    assert (low, high) == (float(x.min()), float(x.max()))


@pytest.mark.parametrize("std", [1e-12, 1e-7, 1e4, 1e12])
def test_fourth_powers_neither_vanish_nor_overflow(std: float) -> None:
    x = std * normals(10_000)
    assert measured_tails(x)[0] == pytest.approx(kurtosis(x), rel=1e-5)


def test_kurtosis_of_known_distributions() -> None:
    assert measured_tails(torch.linspace(-1, 1, 100_001))[0] == pytest.approx(1.8, rel=1e-4)
    assert measured_tails(torch.tensor([-2.0, 2.0] * 50))[0] == pytest.approx(1.0)
    assert math.isnan(measured_tails(torch.ones(64))[0])


def test_ends_beside_nan_and_inf() -> None:
    assert measured_tails(torch.tensor([1.0, -math.inf]))[1:] == (-math.inf, 1.0)
    assert all(map(math.isnan, measured_tails(torch.tensor([1.0, math.nan, 2.0]))))
    assert all(map(math.isnan, measured_tails(torch.empty(0))))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("value", [0.3, 0.02, -1e-5])
def test_a_constant_has_exactly_no_spread_whatever_its_value(value: float, dtype: torch.dtype) -> None:
    module = nn.Linear(300, 500, bias=False, dtype=dtype)
    nn.init.constant_(module.weight, value)
    (found,) = measure_parameters(module)
    assert (found.mean, found.std) == (module.weight[0, 0].item(), 0.0)
    assert math.isnan(found.kurtosis)
    assert found.max_abs == abs(found.mean)


@pytest.mark.parametrize("shape", [(8, 8), (64, 200), (200, 64), (256, 256)])
def test_stable_rank_is_that_of_the_singular_values(shape: tuple[int, int]) -> None:
    matrix = normals(*shape) @ torch.diag(torch.logspace(0, -1, shape[1]))
    values = torch.linalg.svdvals(matrix.double())
    exact = float((values**2).sum() / values[0] ** 2) / min(shape)
    assert stable_rank(matrix) == pytest.approx(exact, rel=0.02)  # power iteration comes from below


def test_stable_rank_of_matrices_with_a_known_one() -> None:
    assert stable_rank(torch.full((512, 300), 0.02)) == pytest.approx(1 / 150)  # 171 × 150 of it are read
    assert stable_rank(torch.outer(normals(32), normals(48, seed=1))) == pytest.approx(1 / 32, rel=1e-4)
    assert stable_rank(1e-30 * torch.eye(64)) == pytest.approx(1.0)
    assert stable_rank(torch.nn.init.orthogonal_(torch.empty(128, 128))) == pytest.approx(1.0, rel=1e-3)
    alternating = torch.outer(torch.tensor([1.0, -1.0] * 16), normals(32))  # a start of ones would be orthogonal to it
    assert stable_rank(alternating) == pytest.approx(1 / 32, rel=1e-4)


@pytest.mark.parametrize("shape", [(1000, 1000), (3000, 700), (2, 5, 400, 300)])
def test_stable_rank_of_independent_entries_is_a_quarter_or_more(shape: tuple[int, ...]) -> None:
    found = stable_rank(normals(*shape).bfloat16())
    assert found is not None
    assert 0.2 < found <= 1.0


@pytest.mark.parametrize(
    "tensor",
    [torch.ones(100), torch.ones(7, 100), torch.zeros(9, 9), torch.full((9, 9), math.inf), torch.ones(0, 9, 9)],
)
def test_no_stable_rank(tensor: Tensor) -> None:
    assert stable_rank(tensor) is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_digest_is_of_the_content(dtype: torch.dtype) -> None:
    x = (10 * normals(50, 60)).to(dtype)
    assert digest(x) == digest(x.clone()) == digest(x.t().contiguous().t())
    assert len(digest(x)) == 32
    other = x.clone()
    other[17, 31] = not other[17, 31] if dtype is torch.bool else other[17, 31] + 1
    assert digest(other) != digest(x)
    assert digest(x.reshape(60, 50)) != digest(x)
    assert digest(torch.empty(0, dtype=dtype)) != digest(x)


def test_dtypes_of_the_same_bytes_differ() -> None:
    assert digest(torch.zeros(4)) != digest(torch.zeros(4, dtype=torch.int32))


def test_a_digest_of_a_large_tensor_reads_a_part_of_every_region() -> None:
    x = normals(1000, 1000)
    for rows in x.clone().split(100):
        other = x.clone()
        other[int((x == rows[0]).all(1).nonzero()) :][:100] *= 2
        assert digest(other) != digest(x)


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.Parameter(normals(3, 16, 20).bfloat16())
        self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)
        self.tied = self.experts
        self.register_buffer("ids", torch.arange(10))
        self.register_buffer("mask", torch.ones(4, 4).tril().bool())
        self.register_buffer("rotation", torch.polar(torch.ones(10), torch.arange(10.0)))
        self.register_buffer("small", normals(20, 20).to(torch.float8_e4m3fn))
        self.register_buffer("count", torch.tensor(3))
        self.register_buffer("nothing", torch.empty(0, 4), persistent=False)
        self.register_buffer("hidden", torch.full((9, 9), -math.inf).triu(1))


def test_every_field_of_a_parameter() -> None:
    experts, frozen = measure_parameters(Odd())
    assert (experts.name, experts.shape, experts.dtype) == ("experts", (3, 16, 20), "bfloat16")
    assert experts.trainable and not experts.buffer and not frozen.trainable
    assert experts.kurtosis == pytest.approx(kurtosis(Odd().experts), rel=1e-5)
    assert experts.stable_rank == pytest.approx(stable_rank(Odd().experts[0]))
    assert (frozen.mean, frozen.std, frozen.max_abs, frozen.stable_rank) == (1.0, 0.0, 1.0, None)


def test_buffers_of_any_dtype() -> None:
    found = {buffer.name: buffer for buffer in measure_buffers(Odd())}
    assert list(found) == ["ids", "mask", "rotation", "small", "count", "nothing", "hidden"]
    assert all(buffer.buffer and not buffer.trainable for buffer in found.values())
    assert (found["ids"].mean, found["ids"].max_abs, found["ids"].dtype) == (4.5, 9.0, "int64")
    assert found["mask"].mean == pytest.approx(10 / 16)
    assert (found["rotation"].max_abs, found["rotation"].shape) == (1.0, (10,))
    assert found["small"].dtype == "float8_e4m3fn"
    assert found["small"].std == pytest.approx(1.0, rel=0.2)
    assert (found["count"].mean, found["count"].shape) == (3.0, ())
    assert found["hidden"].not_finite == 36
    assert found["nothing"].numel == 0


def test_what_it_costs() -> None:
    """GPT-2 small, 124 million entries, is to take less than 0.8 s beyond the moments: 6.5 ns an entry.

    Moments are measured in the same run, at 1.6 ns an entry on the machine where this was written.
    """
    module = nn.Linear(2000, 4000, bias=False)

    def seconds(what: object) -> float:
        assert callable(what)
        best = math.inf
        for _ in range(3):
            start = time.process_time()
            what()
            best = min(best, time.process_time() - start)
        return best

    assert seconds(lambda: measure_parameters(module)) < 6 * seconds(lambda: moments(module.weight))


def test_small_products_run_in_one_thread_whose_number_is_put_back() -> None:
    """Threads of a busy machine wait for each other: twenty times longer than the work takes."""
    before, seen = torch.get_num_threads(), []

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((str(func), torch.get_num_threads()))
            return func(*args, **(kwargs or {}))

    try:
        torch.set_num_threads(2)
        with Watched():
            stable_rank(torch.randn(64, 32))
        assert {threads for name, threads in seen if "mm" in name} == {1}
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError), one_thread():
            raise ZeroDivisionError
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
