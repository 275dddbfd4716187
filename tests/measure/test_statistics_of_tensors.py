"""Moments: two passes, wide, and honest about entries that are not finite."""

from __future__ import annotations

import math

import pytest
import torch

from initdiag.measure.observe import measure_parameters
from initdiag.measure.statistics import BLOCK, moments, variance, widened
from tests.small_models import drawn, normals, subject


@pytest.mark.parametrize("mean", [0.0, 0.1, 1.0, -300.0])
@pytest.mark.parametrize("std", [1.0, 0.03, 1e-3])
@pytest.mark.parametrize("count", [1, 7, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_beside_float64(count: int, mean: float, std: float) -> None:
    x = mean + std * normals(count)
    exact = x.double()
    found_mean, found_variance, not_finite = moments(x)
    assert not_finite == 0
    # a float32 sum of n terms in pairs errs by some log2(n) · 2^-24 of the sum of their sizes
    error = 24 * 2**-24 * max(abs(mean), std)
    assert found_mean == pytest.approx(float(exact.mean()), abs=error)
    # the mean is subtracted in float32, which adds its error squared at worst
    assert found_variance == pytest.approx(float(exact.var(correction=0)), rel=1e-4, abs=error**2)


def test_two_passes_do_not_cancel() -> None:
    """1 + 1e-4·z: the mean of squares less the square of the mean has no digit right in float32."""
    x = 1 + 1e-4 * normals(100_000)
    assert moments(x)[1] == pytest.approx(float(x.double().var(correction=0)), rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1,), (768,), (1000, 1000), (BLOCK + 1,)])
def test_a_constant_of_one_has_exactly_no_spread(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    assert moments(torch.ones(shape, dtype=dtype)) == (1.0, 0.0, 0)
    assert moments(torch.zeros(shape, dtype=dtype)) == (0.0, 0.0, 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_tensors_are_summed_wide(dtype: torch.dtype) -> None:
    x = (2 + normals(300_000)).to(dtype)  # a bfloat16 sum would stop growing at 512
    mean, spread, _ = moments(x)
    assert mean == pytest.approx(float(x.double().mean()), rel=1e-5)
    assert spread == pytest.approx(float(x.double().var(correction=0)), rel=1e-5)


def test_float64_stays_float64() -> None:
    x = 1 + 1e-10 * normals(10_000, dtype=torch.float64)
    assert moments(x)[1] == pytest.approx(
        1e-20 * float(normals(10_000, dtype=torch.float64).var(correction=0)), rel=1e-4
    )
    assert widened(x).dtype is torch.float64
    assert widened(torch.ones(1, dtype=torch.bfloat16)).dtype is torch.float32


def test_entries_that_are_not_finite_are_counted() -> None:
    x = normals(BLOCK + 100)
    x[0], x[5], x[BLOCK + 1] = math.nan, math.inf, -math.inf
    _, spread, not_finite = moments(x)
    assert not_finite == 3
    assert not math.isfinite(spread)


def test_no_entries_have_no_moments() -> None:
    mean, spread, not_finite = moments(torch.empty(0, 3))
    assert math.isnan(mean)
    assert math.isnan(spread)
    assert not_finite == 0


def test_large_but_finite_is_finite() -> None:
    mean, spread, not_finite = moments(torch.tensor([-1e30, 1e30]))
    assert (mean, not_finite) == (0.0, 0)
    assert spread == pytest.approx(1e60)  # beyond float32, not beyond the float64 that takes over


def test_any_layout() -> None:
    x = normals(30, 40)
    assert variance(x.t()[::2]) == pytest.approx(float(x.t()[::2].double().var(correction=0)), rel=1e-5)


def test_parameters_are_measured_in_order_and_a_tied_one_once() -> None:
    module = drawn(subject("default", tied=True))
    with torch.no_grad():
        module.blocks[1].mlp.out.weight[0, :2] = torch.nan
    found = measure_parameters(module)
    assert [parameter.name for parameter in found] == [name for name, _ in module.named_parameters()]
    for parameter in found:
        exact = module.get_parameter(parameter.name).detach().double()
        if parameter.name == "blocks.1.mlp.out.weight":
            assert parameter.not_finite == 2
            assert math.isnan(parameter.std)
            continue
        assert parameter.not_finite == 0
        assert parameter.mean == pytest.approx(float(exact.mean()), abs=1e-6)
        assert parameter.std == pytest.approx(float(exact.std(correction=0)), rel=1e-5)
