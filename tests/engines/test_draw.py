"""Draws: the same numbers whatever is around them, and the ones that the plan says."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from initdiag import compare
from initdiag.engines import Settings, dense
from initdiag.engines import draw as draw_module
from initdiag.engines.draw import BLOCK, draw
from initdiag.model import parameters, sizes
from initdiag.schemes import SCHEMES, Constant, InitPlan, Normal, Parameter, PlannedParameter, Role, Uniform, make_plan
from initdiag.schemes.distributions import Distribution, Orthogonal, Truncated, truncated
from initdiag.weightless.normals import HALF, bent_, generator_for
from tests.sampling import (
    assert_follows,
    assert_mean,
    assert_near,
    assert_same_distribution,
    assert_std,
    normal_cdf,
    uniform_cdf,
)
from tests.small_models import SMALL, WIRINGS, architecture, subject

SOME = ("default", "gpt2", "scaled", "bert", "olmo-mitchell", "orthogonal")  # together: every kind of distribution


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


def truncated_cdf(sigma: float, cut: float) -> Callable[[Tensor], Tensor]:
    """½ (1 + erf(x/√2σ) / erf(cut/√2)), within the cut."""
    return lambda x: 0.5 * (1 + torch.erf((x / sigma).clamp(-cut, cut) / math.sqrt(2)) / math.erf(cut / math.sqrt(2)))


# --- what a draw depends on


@pytest.mark.parametrize("scheme", SOME)
def test_the_number_of_threads_changes_nothing(scheme: str) -> None:
    plan = plan_of(scheme, vocab_size=9000)  # an embedding of more than one block
    assert plan["token_embedding.weight"].parameter.numel > BLOCK
    once = drawn(plan, threads=1)
    assert not any(tensor.isnan().any() for tensor in once.values())
    for threads in (1, 2, 5):
        assert_same(drawn(plan, threads=threads), once)


def test_every_kind_of_distribution_is_among_them() -> None:
    kinds = {type(entry.distribution) for scheme in SOME for entry in plan_of(scheme).entries}
    assert kinds == {Normal, Uniform, Truncated, Orthogonal, Constant}


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
@pytest.mark.parametrize("scheme", SOME)
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


@pytest.mark.parametrize("cut", [0.1, 0.5, 1.0, 2.0, 3.0, 4.9])
@pytest.mark.parametrize("sigma", [1.0, 0.02])
def test_cut_normals(cut: float, sigma: float) -> None:
    law = Truncated(sigma, cut)
    x = drawn(one(law, BLOCK + 12_345))["a.weight"]
    assert_follows(x, truncated_cdf(sigma, cut))
    assert_mean(x, 0, law.std)
    assert_std(x, law.std, law.kurtosis)
    powers = (x.double() / law.std).pow(4)
    assert_near(float(powers.mean()), law.kurtosis, float(powers.std()) / math.sqrt(x.numel()), "kurtosis")
    # the edge is reached: of n draws the outermost is within 20 times its expected distance, but for e^-20
    density = math.exp(-cut * cut / 2) / math.sqrt(2 * math.pi) / math.erf(cut / math.sqrt(2))
    if cut <= 3:
        assert float(x.abs().max()) / sigma > cut - 20 / (2 * density * x.numel())


@pytest.mark.parametrize("cut", [0.3, 2.0, 3.0])
def test_cut_normals_beside_other_samplers(cut: float) -> None:
    """Two-sample Kolmogorov-Smirnov at 1e-6 each: inversion in float64, and torch.nn.init's rejection."""
    x = drawn(one(Truncated(0.02, cut), 200_000))["a.weight"]
    generator = torch.Generator().manual_seed(1)
    below = 0.5 * math.erfc(cut / math.sqrt(2))
    probability = below + (1 - 2 * below) * torch.rand(200_000, dtype=torch.float64, generator=generator)
    assert_same_distribution(x, 0.02 * torch.special.ndtri(probability), "inversion")
    other = nn.init.trunc_normal_(torch.empty(200_000), 0.0, 0.02, -0.02 * cut, 0.02 * cut, generator=generator)
    assert_same_distribution(x, other, "torch.nn.init.trunc_normal_")


@pytest.mark.parametrize("law", [Truncated(0.02, 2.0), truncated(0.02, 2.0), truncated(0.3, 3.0), Uniform(0.036)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_nothing_lies_beyond_the_bound_as_a_number_of_its_dtype(law: Uniform | Truncated, dtype: torch.dtype) -> None:
    x = drawn(one(law, 1000, 1000), dtype=dtype)["a.weight"]
    bound = law.bound if isinstance(law, Uniform) else law.cut * law.sigma
    limit = torch.tensor(bound, dtype=torch.float32).to(dtype)  # drawn in float32, and rounded
    assert bool((x.abs() <= limit).all())
    # three 16-bit numbers next to the bound hold 1e-3 or more of a million: it is reached
    if dtype in (torch.bfloat16, torch.float16):
        assert bool((x == limit).any())
    else:
        assert 0 < int((x.abs() > 0.999 * bound).sum()) < 0.002 * x.numel()


@pytest.mark.parametrize("cut", [0.1, 0.7, 2.0, 3.0, 4.9])
@pytest.mark.parametrize("sigma", [1.0, 0.02, 0.0123])
def test_the_outermost_number_too(cut: float, sigma: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that is drawn once in 2^25 times: rounding doesn't take it over the bound."""
    monkeypatch.setattr(draw_module, "_uniform_", lambda x, bound, *_: x.fill_(bound))
    found = float(drawn(one(Truncated(sigma, cut), 64))["a.weight"].max())
    assert (1 - 3e-6) * cut * sigma < found <= float(torch.tensor(cut * sigma)) or (cut == 4.9 and found > 4.8 * sigma)


@pytest.mark.parametrize("law", [Normal(1.0), Uniform(1.0), Truncated(1.0, 2.0), Truncated(1.0, 5.0)], ids=str)
@pytest.mark.parametrize("count", [1, 3, 17, BLOCK - 1, BLOCK + 1])
def test_any_number_of_entries(law: Distribution, count: int) -> None:
    x = drawn(one(law, count))["a.weight"]
    assert not bool(x.isnan().any()) and x.unique().numel() > 0.99 * count - 1
    assert torch.equal(drawn(one(law, count), dtype=torch.float64)["a.weight"].float(), x)


def test_tensors_that_are_not_contiguous() -> None:
    for law in (Normal(1.0), Uniform(1.0), Truncated(1.0, 2.0), Orthogonal(1.0, 40)):
        there = torch.full((40, 30), torch.nan).T
        draw({"a.weight": there}, one(law, 30, 40), 0, 1)
        assert torch.equal(there, drawn(one(law, 30, 40))["a.weight"])


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
    plan = plan_of("gpt2", **fields)
    gpt2, scaled = drawn(plan), drawn(plan_of("scaled", **fields))
    residual = {e.parameter.name for e in plan.with_role(Role.ATTENTION_OUT, Role.MLP_OUT)}
    assert len(residual) >= 2 * 3
    assert gpt2.keys() == scaled.keys()
    for name in gpt2:
        if name in residual:
            ratio = scaled[name].double() / gpt2[name].double() * math.sqrt(6)
            assert float((ratio - 1).abs().max()) < 4 * 2**-24, name  # each is rounded to float32 twice
        else:
            assert torch.equal(scaled[name], gpt2[name]), name


@pytest.mark.parametrize("cut", [0.5, 2.0, 3.0])
def test_uniforms_and_cut_normals_have_the_same_u_behind_them(cut: float) -> None:
    """Uniform is bound·u, and a cut normal √2·σ·erf⁻¹(erf(cut/√2)·u)."""
    shape = (3, BLOCK // 2 + 7)
    u = drawn(one(Uniform(1.0), *shape))["a.weight"].double()
    cut_normal = drawn(one(Truncated(0.1, cut), *shape))["a.weight"].double()
    expected = 0.1 * math.sqrt(2) * torch.erfinv(math.erf(cut / math.sqrt(2)) * u)
    torch.testing.assert_close(cut_normal, expected.clamp(-0.1 * cut, 0.1 * cut), rtol=0, atol=3e-6)
    torch.testing.assert_close(drawn(one(Uniform(0.25), *shape))["a.weight"].double(), u / 4, rtol=0, atol=0)


def test_normals_are_proportional() -> None:
    fields = {"tied": False, "vocab_size": 9000}
    gpt2, default = drawn(plan_of("gpt2", **fields)), drawn(plan_of("default", **fields))
    torch.testing.assert_close(default["token_embedding.weight"] * 0.02, gpt2["token_embedding.weight"])


@pytest.mark.parametrize("cut", [2.0, 3.0, 4.0])
def test_rejection_leaves_what_lies_within(cut: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where so many lie outside that it is not used."""
    monkeypatch.setattr(draw_module, "NEAR", 0.0)
    plan, shape = one(Truncated(0.5, cut), 2, BLOCK + 12_345), (2, BLOCK + 12_345)
    found, z = drawn(plan)["a.weight"] / 0.5, drawn(one(Normal(1.0), *shape))["a.weight"]
    within = z.abs() <= cut
    assert torch.equal(found[within], z[within])
    others = int((~within).sum())
    probability = math.erfc(cut / math.sqrt(2))
    assert_near(others, z.numel() * probability, math.sqrt(z.numel() * probability), "redrawn")
    assert others >= 10
    assert bool((found[~within].abs() <= cut).all()) and not bool((found == 0).any())
    assert found[~within].unique().numel() > 0.998 * others  # of 2^24 numbers; 25,000 collide 20 times
    if cut < 4:
        assert_follows(found, truncated_cdf(1.0, cut))
        assert_follows(found[~within], truncated_cdf(1.0, cut), "what was redrawn")


@pytest.mark.parametrize("cut", [5.0, 9.0, 100.0])
def test_cut_far_out_they_are_the_normals(cut: float) -> None:
    """0.02 cut at ±2, 100 sigmas, is a normal: nothing lies at the cut."""
    found = drawn(one(Truncated(0.02, cut), 1000, 1000))["a.weight"]
    z = drawn(one(Normal(0.02), 1000, 1000))["a.weight"]
    different = found != z
    assert int(different.sum()) == int((z.abs() > float(torch.tensor(0.02 * cut))).sum())
    assert float(found.abs().max()) < 0.02 * 6  # of 1e6, P = 2e-3; normal_ itself ends at 5.8


def test_a_far_cut_that_something_lies_beyond() -> None:
    seed = next(s for s in range(40) if float(drawn(one(Normal(1.0), 1000, 1000), s)["a.weight"].abs().max()) > 5)
    z, found = drawn(one(Normal(1.0), 1000, 1000), seed), drawn(one(Truncated(1.0, 5.0), 1000, 1000), seed)
    beyond = z["a.weight"].abs() > 5
    assert torch.equal(found["a.weight"][~beyond], z["a.weight"][~beyond])
    assert bool((found["a.weight"][beyond].abs() < 5).all())


# --- rows that the weightless engine looks up: a function of each normal


@pytest.mark.parametrize("cut", [0.5, 2.0, 3.0, 4.9])
def test_bent_normals(cut: float) -> None:
    z = drawn(one(Normal(HALF), 300_000))["a.weight"]
    assert_follows(bent_(z.clone(), Truncated(0.1, cut)), truncated_cdf(0.1, cut))
    assert_follows(bent_(z, Uniform(0.1)), uniform_cdf(0.1))


def test_bent_far_out() -> None:
    """What is cut at 100 sigmas is a normal: it has no atoms at the cut."""
    z = drawn(one(Normal(HALF), 300_000))["a.weight"]
    torch.testing.assert_close(bent_(z.clone(), Truncated(0.02, 100.0)), z * 0.02 / HALF, rtol=1e-6, atol=0)
    # z > 5 only: −Φ⁻¹(v Φ(−5)), v uniform
    v = torch.rand(50_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tail = -torch.special.ndtri(v * 0.5 * math.erfc(5 / math.sqrt(2)))
    assert float(tail.min()) >= 5
    assert_follows(bent_(tail * HALF, Truncated(0.1, 5.0)), truncated_cdf(0.1, 5.0))


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


# --- nothing is drawn twice


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a generator was made of a parameter's name."""
    counted: Counter[str] = Counter()

    def counting(seed: int, name: str) -> torch.Generator:
        counted[name] += 1
        return generator_for(seed, name)

    monkeypatch.setattr(draw_module, "generator_for", counting)
    return counted


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_is_drawn_once(tied: bool, asked: Counter[str]) -> None:
    of = subject("default", tied=tied)
    dense.realize(of, 0, Settings(device="cpu", threads=2))
    random = {e.parameter.name for e in of.plan.entries if not isinstance(e.distribution, Constant)}
    assert asked == dict.fromkeys(random, 1)
    assert ("head.weight" in random) is not tied and "token_embedding.weight" in random


def test_a_comparison_draws_what_differs(asked: Counter[str]) -> None:
    compare({"model": SMALL, "tokens": {"batch": 1, "length": 8}}, schemes="gpt2,scaled", settings=Settings(threads=1))
    plan = plan_of("gpt2")
    residual = {e.parameter.name for e in plan.with_role(Role.ATTENTION_OUT, Role.MLP_OUT)}
    random = {e.parameter.name for e in plan.entries if not isinstance(e.distribution, Constant)}
    assert len(residual) == 2 * 3
    assert asked == {name: 2 if name in residual else 1 for name in random}
