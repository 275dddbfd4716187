"""The scheme `default` against PyTorch itself: the constants in its source, and modules that it initialised."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from initdiag.engines.draw import draw
from initdiag.schemes import SCHEMES, Distribution, Parameter, PlannedParameter, Role, Uniform, make_plan
from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS
from tests.sampling import assert_mean, assert_near, assert_same_distribution

WIDTHS = [1, 3, 64, 768]


def planned(role: Role, shape: tuple[int, ...], fan_in: int) -> PlannedParameter:
    return make_plan(SCHEMES["default"], [Parameter("p", shape, role, fan_in)], {})["p"]


def ours(role: Role, shape: tuple[int, ...], fan_in: int, seed: int = 0) -> Tensor:
    tensor = torch.empty(shape)
    draw({"p": tensor}, make_plan(SCHEMES["default"], [Parameter("p", shape, role, fan_in)], {}), seed)
    return tensor


@pytest.fixture(autouse=True)
def pytorchs_own_seed() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(20_240_607)
        yield


# --- the constants


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the constructors of torch.nn ask of torch.nn.init, as (function, arguments)."""
    seen: list[tuple[str, dict[str, Any]]] = []

    def recorded(name: str, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any, **kwargs: Any) -> Tensor:
            bound = inspect.signature(function).bind(*args, **kwargs)
            bound.apply_defaults()
            seen.append((name, dict(bound.arguments)))
            return function(*args, **kwargs)

        return call

    for name in ("kaiming_uniform_", "uniform_", "normal_", "ones_", "zeros_"):
        monkeypatch.setattr(torch.nn.init, name, recorded(name, getattr(torch.nn.init, name)))
    return seen


@pytest.mark.parametrize("fan_in", WIDTHS)
@pytest.mark.parametrize("role", LINEAR_WEIGHTS)
def test_linear_weight_is_kaiming_uniform_as_nn_linear_asks_for_it(
    role: Role, fan_in: int, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    nn.Linear(fan_in, 5, bias=False)
    ((name, asked),) = calls
    assert (name, asked["mode"]) == ("kaiming_uniform_", "fan_in")
    gain = torch.nn.init.calculate_gain(asked["nonlinearity"], asked["a"])
    bound = math.sqrt(3) * gain / math.sqrt(fan_in)  # torch.nn.init.kaiming_uniform_: its last lines
    found = planned(role, (5, fan_in), fan_in).distribution
    assert isinstance(found, Uniform)
    assert found.bound == pytest.approx(bound, rel=1e-14)


@pytest.mark.parametrize("fan_in", WIDTHS)
def test_linear_bias_is_uniform_as_nn_linear_asks_for_it(fan_in: int, calls: list[tuple[str, dict[str, Any]]]) -> None:
    nn.Linear(fan_in, 5)
    asked = dict(calls)["uniform_"]
    found = planned(Role.BIAS, (5,), fan_in).distribution
    assert isinstance(found, Uniform)
    assert [-found.bound, found.bound] == pytest.approx([asked["a"], asked["b"]], rel=1e-14)


@pytest.mark.parametrize("role", EMBEDDINGS)
def test_embedding_is_the_normal_that_nn_embedding_asks_for(
    role: Role, calls: list[tuple[str, dict[str, Any]]]
) -> None:
    nn.Embedding(5, 3)
    ((name, asked),) = calls
    assert (name, asked["mean"], asked["std"]) == ("normal_", 0.0, 1.0)  # nn.Embedding names no std: the defaults
    assert str(planned(role, (5, 3), 3).distribution) == "N(1)"
    assert planned(role, (5, 3), 3).distribution.std == asked["std"]


@pytest.mark.parametrize("shape", [(4,), (768,)])
def test_norms_are_those_of_nn_layer_norm_and_nn_rms_norm(shape: tuple[int, ...]) -> None:
    layer_norm, rms_norm = nn.LayerNorm(shape), nn.RMSNorm(shape)
    assert torch.equal(ours(Role.NORM_SCALE, shape, 1), layer_norm.weight)
    assert torch.equal(ours(Role.NORM_SCALE, shape, 1), rms_norm.weight)
    assert torch.equal(ours(Role.NORM_BIAS, shape, 1), layer_norm.bias)


# --- drawn tensors beside PyTorch's own


# the fourth moment of x / scale: E[x⁴] and Var[x⁴] of U(−1, 1) are 1/5 and 1/9 − 1/25, of N(0, 1) 3 and 105 − 9
FOURTH = {"uniform": (1 / 5, 1 / 9 - 1 / 25), "normal": (3.0, 96.0)}
SQUARE = {"uniform": (1 / 3, 1 / 5 - 1 / 9), "normal": (1.0, 2.0)}


def assert_alike(mine: Tensor, theirs: Tensor, distribution: Distribution) -> None:
    """Compare distribution, mean, square and fourth moment of two samples of the same size."""
    kind = "uniform" if isinstance(distribution, Uniform) else "normal"
    scale = distribution.bound if isinstance(distribution, Uniform) else distribution.std
    a, b = mine.detach().double() / scale, theirs.detach().double() / scale
    assert a.shape == b.shape
    assert_mean(a, 0, 1 if kind == "normal" else 1 / math.sqrt(3))
    for power, (_, spread) in ((2, SQUARE[kind]), (4, FOURTH[kind])):
        error = math.sqrt(2 * spread / a.numel())  # of the difference of two means
        assert_near(float((a**power).mean()), float((b**power).mean()), error, f"moment {power} beside PyTorch's")
        assert_near(float((a**power).mean()), {2: SQUARE, 4: FOURTH}[power][kind][0], error, f"moment {power}")
    assert_same_distribution(a, b)


def assert_fills(x: Tensor, bound: float) -> None:
    """Nothing lies beyond the bound, and the largest lies near it: P(max < (1 − ε)·bound) = (1 − ε)ⁿ = 1e-6."""
    largest, gap = float(x.detach().abs().max()), -math.log(1e-6) / x.numel()
    assert largest <= float(torch.tensor(bound)), f"{largest} lies beyond {bound}"
    assert largest >= bound * (1 - gap), f"the largest of {x.numel():,} is {largest}, expected about {bound}"


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 64), (768, 256), (256, 768), (3000, 7), (7, 3000), (1, 5000)])
def test_linear_beside_nn_linear(inputs: int, outputs: int) -> None:
    linear = nn.Linear(inputs, outputs)
    bound = 1 / math.sqrt(inputs)
    for name, role, theirs in (("weight", Role.MLP_IN, linear.weight), ("bias", Role.BIAS, linear.bias)):
        mine = ours(role, tuple(theirs.shape), inputs)
        assert not torch.equal(mine, theirs), name
        assert_fills(mine, bound)
        assert_fills(theirs, bound)
        assert_alike(mine, theirs, planned(role, tuple(theirs.shape), inputs).distribution)


@pytest.mark.parametrize(("rows", "width"), [(1000, 256), (17, 999)])
def test_embedding_beside_nn_embedding(rows: int, width: int) -> None:
    theirs = nn.Embedding(rows, width).weight
    mine = ours(Role.TOKEN_EMBEDDING, (rows, width), width)
    assert_alike(mine, theirs, planned(Role.TOKEN_EMBEDDING, (rows, width), width).distribution)
