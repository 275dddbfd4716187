"""Draws: the same numbers whatever is around them, and the ones that the plan says."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from initdiag.engines.draw import BLOCK, draw
from initdiag.model import parameters, sizes
from initdiag.schemes import SCHEMES, Constant, InitPlan, Normal, Parameter, PlannedParameter, Role, Uniform, make_plan
from initdiag.schemes.distributions import Distribution
from tests.sampling import assert_follows, assert_mean, assert_near, assert_std, normal_cdf, uniform_cdf
from tests.small_models import WIRINGS, architecture


def one(distribution: Distribution, *shape: int, name: str = "a.weight") -> InitPlan:
    parameter = Parameter(name, shape, Role.MLP_IN, shape[-1])
    return InitPlan("mine", {}, (PlannedParameter(parameter, distribution, distribution.std),))


def plan_of(scheme: str, **fields: object) -> InitPlan:
    shape = architecture(**fields)
    return make_plan(SCHEMES[scheme], parameters(shape), sizes(shape))


def empty(plan: InitPlan, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {e.parameter.name: torch.full(e.parameter.shape, torch.nan, dtype=dtype) for e in plan.entries}


def drawn(
    plan: InitPlan, seed: int = 0, threads: int | None = 2, dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    tensors = empty(plan, dtype)
    draw(tensors, plan, seed, threads)
    return tensors


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name, tensor in a.items():
        assert torch.equal(tensor, b[name]), f"{name} differs"


# --- what a draw depends on


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_number_of_threads_changes_nothing(scheme: str) -> None:
    plan = plan_of(scheme, vocab_size=9000)  # an embedding of more than one block
    assert plan["token_embedding.weight"].parameter.numel > BLOCK
    once = drawn(plan, threads=1)
    assert not any(tensor.isnan().any() for tensor in once.values())
    for threads in (1, 2, 5):
        assert_same(drawn(plan, threads=threads), once)


def test_what_is_drawn_before_changes_nothing() -> None:
    plan = plan_of("scaled", tied=False)
    everything = drawn(plan)
    assert_same(drawn(replace(plan, entries=plan.entries[::-1])), everything)
    for entry in plan.entries:
        alone = drawn(replace(plan, entries=(entry,)))
        assert torch.equal(alone[entry.parameter.name], everything[entry.parameter.name])
    deeper = drawn(plan_of("gpt2", tied=False, n_layers=5))  # residual projections aside, the same distributions
    for name, tensor in drawn(plan_of("gpt2", tied=False)).items():
        assert torch.equal(deeper[name], tensor), name


def test_every_parameter_and_every_seed_has_its_own_numbers() -> None:
    names = ["a.weight", "b.weight", "blocks.1.mlp.out.weight", "blocks.11.mlp.out.weight"]
    draws = [drawn(one(Normal(1.0), 100, 100, name=name), seed)[name] for seed in (0, 1, 10, 2**62) for name in names]
    for i, a in enumerate(draws):
        assert_std(a, 1.0)
        for b in draws[:i]:
            # the mean product of independent N(0, 1): standard error 1/√n
            assert_near(float((a * b).mean()), 0, 1 / 100, "correlation of two draws")


def test_a_tensor_is_not_its_block_repeated() -> None:
    tensor = drawn(one(Normal(1.0), 3 * BLOCK))["a.weight"]
    for a, b in pairwise(tensor.split(BLOCK)):
        assert_near(float((a * b).mean()), 0, 1 / math.sqrt(BLOCK), "correlation of two blocks")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_other_dtypes_get_the_same_numbers_rounded(scheme: str, dtype: torch.dtype) -> None:
    plan = plan_of(scheme)
    wide = drawn(plan)
    assert_same(drawn(plan, dtype=dtype), {name: tensor.to(dtype) for name, tensor in wide.items()})


# --- what the numbers are


@pytest.mark.parametrize("std", [1.0, 0.02, 3e-5])
def test_normals(std: float) -> None:
    x = drawn(one(Normal(std), BLOCK + 12_345))["a.weight"]
    assert_follows(x, normal_cdf(std))
    assert_mean(x, 0, std)
    assert_std(x, std, 3.0)
    fourth = float((x.double() / std).pow(4).mean())
    assert_near(fourth, 3.0, math.sqrt(96 / x.numel()), "kurtosis")  # Var[z⁴] = 105 − 9


@pytest.mark.parametrize("bound", [1.0, 0.036, 1e-4])
def test_uniforms(bound: float) -> None:
    x = drawn(one(Uniform(bound), BLOCK + 12_345))["a.weight"]
    assert_follows(x, uniform_cdf(bound))
    assert_mean(x, 0, bound / math.sqrt(3))
    assert_std(x, bound / math.sqrt(3), 1.8)
    assert float(x.abs().max()) <= float(torch.tensor(bound))


def test_small_tensors_too() -> None:
    """Below 16 entries PyTorch draws normals another way."""
    draws = [drawn(one(Normal(2.0), 3), seed)["a.weight"] for seed in range(1000)]
    assert_follows(torch.cat(draws), normal_cdf(2.0))


def test_constants_are_exact() -> None:
    assert bool((drawn(one(Constant(0.1), 7, 5))["a.weight"] == torch.tensor(0.1)).all())


def test_neighbours_are_independent() -> None:
    x = drawn(one(Normal(1.0), 512, 512))["a.weight"]
    for lag in (1, 2, 8, 16, 512):
        flat = x.flatten()
        products = flat[lag:] * flat[:-lag]
        assert_near(float(products.mean()), 0, 1 / math.sqrt(len(products)), f"autocorrelation at lag {lag}")


# --- what schemes share


@pytest.mark.parametrize("wiring", WIRINGS)
def test_scaled_is_gpt2_with_residual_projections_shrunk(wiring: str) -> None:
    fields = {**WIRINGS[wiring], "n_layers": 3}
    gpt2, scaled = drawn(plan_of("gpt2", **fields)), drawn(plan_of("scaled", **fields))
    assert gpt2.keys() == scaled.keys()
    for name in gpt2:
        if name.endswith(("attention.out.weight", "mlp.out.weight")):
            ratio = scaled[name].double() / gpt2[name].double() * math.sqrt(6)
            assert float((ratio - 1).abs().max()) < 4 * 2**-24, name  # each is rounded to float32 twice
        else:
            assert torch.equal(scaled[name], gpt2[name]), name


def test_default_has_the_same_z_behind_it() -> None:
    """Uniform is bound · erf(z / √2) of the normals that gpt2 draws as std · z."""
    fields = {"tied": False, "vocab_size": 9000}
    gpt2, default, plan = (
        drawn(plan_of("gpt2", **fields)),
        drawn(plan_of("default", **fields)),
        plan_of("default", **fields),
    )
    matrices = [e for e in plan.entries if isinstance(e.distribution, Uniform) and len(e.parameter.shape) == 2]
    assert len(matrices) == 3 * 6 + 1
    for entry in matrices:
        name, bound = entry.parameter.name, entry.distribution.bound
        z = gpt2[name].double() / 0.02
        uniform = default[name].double() / bound
        torch.testing.assert_close(uniform, torch.erf(z / math.sqrt(2)), rtol=0, atol=1e-6)
        inside = z.abs() < 3  # beyond it a float32 near 1 says little about z
        back = math.sqrt(2) * torch.erfinv(uniform)
        torch.testing.assert_close(back[inside], z[inside], rtol=0, atol=1e-4)
    # where both are normal the numbers are proportional outright
    torch.testing.assert_close(default["token_embedding.weight"] * 0.02, gpt2["token_embedding.weight"])


# --- drawing over what was drawn before


@pytest.mark.parametrize(("before", "after"), [("gpt2", "scaled"), ("scaled", "gpt2"), ("default", "gpt2")])
def test_drawn_leaves_alone_what_both_plans_share(before: str, after: str) -> None:
    old, new = plan_of(before), plan_of(after)
    tensors = {name: torch.full_like(tensor, 7.0) for name, tensor in empty(new).items()}
    draw(tensors, new, 0, 2, drawn=old)
    fresh = drawn(new)
    shared = {e.parameter.name for e in new.entries if e.distribution == old[e.parameter.name].distribution}
    assert 0 < len(shared) < len(new.entries)
    for name, tensor in tensors.items():
        expected = torch.full_like(tensor, 7.0) if name in shared else fresh[name]
        assert torch.equal(tensor, expected), name
