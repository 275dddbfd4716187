"""Branches and the stream, against hooks written by hand on the same module."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from initdiag.measure import Branch
from initdiag.measure.observe import measure_parameters, observe, scaling_ratio
from initdiag.subjects import Subject
from tests.sampling import assert_near
from tests.small_models import WIRINGS, drawn, subject, tokens


def spread(x: Tensor) -> float:
    """Population variance over everything, in float64."""
    x = x.detach().double()
    return float(((x - x.mean()) ** 2).mean())


def hooked(of: Subject, module: nn.Module) -> tuple[float, list[tuple[float, float]]]:
    """Return the embedding's variance and (branch, stream after it) variances, from forward hooks alone."""
    given: dict[str, float] = {}
    made: dict[str, float] = {}
    handles = []
    for name, part in module.named_modules():

        def note(m: nn.Module, args: tuple[Tensor, ...], output: Tensor, name: str = name) -> None:
            given[name], made[name] = spread(args[0].float()), spread(output)

        handles.append(part.register_forward_hook(note))
    with torch.no_grad():
        module(torch.tensor(tokens(of).inputs))
    for handle in handles:
        handle.remove()
    found = []
    for layer in range(of.architecture.n_layers):
        block = f"blocks.{layer}"
        # pre: the MLP's norm reads the stream after attention; post: each branch's own norm reads the sum
        after_attention = given[
            f"{block}.attention_norm" if of.architecture.placement == "post" else f"{block}.mlp_norm"
        ]
        after_mlp = given[f"{block}.mlp_norm"] if of.architecture.placement == "post" else made[block]
        found += [(made[f"{block}.attention.out"], after_attention), (made[f"{block}.mlp.out"], after_mlp)]
    return given["blocks.0"], found


@pytest.mark.parametrize("scheme", ["default", "scaled"])
@pytest.mark.parametrize("wiring", WIRINGS)
@torch.no_grad()
def test_beside_hooks(wiring: str, scheme: str) -> None:
    of = subject(scheme, **WIRINGS[wiring])
    module = drawn(of)
    embedding, expected = hooked(of, module)
    residual = observe(of, module, tokens(of)).residual
    assert residual.embedding_variance == pytest.approx(embedding, rel=1e-5)
    assert [branch.branch_variance for branch in residual.branches] == pytest.approx([b for b, _ in expected], rel=1e-5)
    assert [branch.stream_variance for branch in residual.branches] == pytest.approx([s for _, s in expected], rel=1e-5)
    assert residual.branch_variance_sum == pytest.approx(sum(b for b, _ in expected), rel=1e-5)
    for branch, (mine, after) in zip(residual.branches, expected, strict=True):
        assert branch.ratio == pytest.approx(mine / after, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@torch.no_grad()
def test_beside_hooks_in_other_dtypes(dtype: str) -> None:
    of = subject("default")
    module = drawn(of, dtype=dtype)
    embedding, expected = hooked(of, module)
    residual = observe(of, module, tokens(of)).residual
    assert residual.embedding_variance == pytest.approx(embedding, rel=1e-5)
    assert [branch.branch_variance for branch in residual.branches] == pytest.approx([b for b, _ in expected], rel=1e-5)


@pytest.mark.parametrize("length", [1, 24])
@pytest.mark.parametrize("wiring", WIRINGS)
@torch.no_grad()
def test_number_order_names_kinds_and_layers(wiring: str, length: int) -> None:
    of = subject(**WIRINGS[wiring])
    branches = observe(of, drawn(of), tokens(of, length=length)).residual.branches
    found = [(b.index, b.name, b.kind, b.layer, b.projection) for b in branches]
    expected = []
    for layer in range(3):
        for kind in ("attention", "mlp"):
            name = f"blocks.{layer}.{kind}.out"
            expected.append((len(expected) + 1, name, kind, layer, f"{name}.weight"))
    assert found == expected


# --- the scaling ratio

N = 4  # layers


def ratio_of(of: Subject, module: nn.Module) -> float:
    with torch.no_grad():
        return observe(of, module, tokens(of)).residual.scaling_ratio


# a projection's measured std has a relative error of 1/√(2·entries), its square of √(2/entries); the ratio is a
# weighted mean of such squares, so the error of the smallest projection (32 × 32) bounds its error
RATIO_ERROR = math.sqrt(2 / 32**2)


@pytest.mark.parametrize("wiring", WIRINGS)
@pytest.mark.parametrize(("scheme", "promise"), [("scaled", 1.0), ("gpt2", 2.0 * N), ("default", 2.0 * N)])
def test_scaling_ratio_tells_the_scaling(scheme: str, promise: float, wiring: str) -> None:
    of = subject(scheme, **{**WIRINGS[wiring], "n_layers": N})
    assert_near(ratio_of(of, drawn(of)), promise, promise * RATIO_ERROR, "scaling ratio")


@pytest.mark.parametrize("wiring", ["gpt2", "llama"])
def test_scaling_twice(wiring: str) -> None:
    of = subject("scaled", **{**WIRINGS[wiring], "n_layers": N})
    module = drawn(of)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.out.weight")):
                parameter.div_(math.sqrt(2 * N))
    assert_near(ratio_of(of, module), 1 / (2 * N), RATIO_ERROR / (2 * N), "scaling ratio")


def test_branches_of_unequal_size_count_by_their_size() -> None:
    """By hand: branches 2 and 6, drawn at half and a third of their unscaled std, would have been 8 and 54."""
    of = subject("scaled", n_layers=1)
    branches = tuple(
        Branch(i + 1, "", 0, "", f"blocks.0.{part}.out.weight", size, 1.0)
        for i, (part, size) in enumerate((("attention", 2.0), ("mlp", 6.0)))
    )
    parameters = tuple(
        replace(p, std={"blocks.0.attention.out.weight": 0.01, "blocks.0.mlp.out.weight": 0.02 / 3}.get(p.name, p.std))
        for p in measure_parameters(drawn(of))
    )
    assert scaling_ratio(branches, parameters, of.plan) == pytest.approx((2 + 6) / ((8 + 54) / 2))


def test_branches_that_are_exactly_zero_have_no_ratio() -> None:
    of = subject("scaled", n_layers=2, biases=False)
    module = drawn(of)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.out.weight")):
                parameter.zero_()
    with torch.no_grad():
        residual = observe(of, module, tokens(of)).residual
    assert [branch.branch_variance for branch in residual.branches] == [0.0] * 4
    assert [branch.ratio for branch in residual.branches] == [0.0] * 4
    assert math.isnan(residual.scaling_ratio)
