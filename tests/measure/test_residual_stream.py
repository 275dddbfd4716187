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
from tests.small_models import WIRINGS, drawn, shaken, subject, tokens


def spread(x: Tensor) -> float:
    """Population variance over everything, in float64."""
    x = x.detach().double()
    return float(((x - x.mean()) ** 2).mean())


MULTIPLIED = {"minicpm": 1.4 / math.sqrt(3)}  # what multiplies branches of 3 layers; the rest multiply by 1
KEPT = {"deepnorm": 6**0.25}  # what multiplies the stream before a branch of 3 layers is added


def hooked(of: Subject, module: nn.Module, wiring: str = "gpt2") -> tuple[float, list[tuple[float, float]]]:
    """Return the variance before the first branch and (branch, stream after it) variances, from forward hooks alone."""
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
    placement, times, found = of.architecture.placement, MULTIPLIED.get(wiring, 1.0) ** 2, []
    for layer in range(of.architecture.n_layers):
        block = f"blocks.{layer}"
        if placement == "post":  # each branch's own norm reads the sum
            after = given[f"{block}.attention_norm"], given[f"{block}.mlp_norm"]
        elif placement in ("parallel", "parallel_shared"):  # both branches are added at once
            after = made[block], made[block]
        else:  # the MLP's norm, or what stands in its place, reads the stream after attention
            after = given[f"{block}.mlp_norm"], made[block]
        for kind, stream in zip(("attention", "mlp"), after, strict=True):
            # the module of the gain is the last of a branch, behind a norm of its output; it may do nothing
            found.append((made[f"{block}.{kind}_gain"] * times, stream))
    return given["blocks.0"] * KEPT.get(wiring, 1.0) ** 2, found


EXPERTS = {"mixtral": 0, "deepseek": 1, "gpt-oss": 0}  # the first layer that has them


def told(branches: tuple[Branch, ...]) -> list[tuple[object, ...]]:
    return [(b.index, b.name, b.kind, b.layer, b.projection, b.normed, b.joined) for b in branches]


def expected_of(wiring: str) -> list[tuple[object, ...]]:
    expected: list[tuple[object, ...]] = []
    normed = wiring in ("gemma 2", "gemma 3", "olmo 2")
    joined = 2 if wiring in ("gpt-neox", "gpt-j") else 1
    for layer in range(3):
        for part in ("attention", "mlp"):
            kind = "moe" if part == "mlp" and layer >= EXPERTS.get(wiring, 3) else part
            name = f"blocks.{layer}.{part}.out"
            expected.append((len(expected) + 1, name, kind, layer, f"{name}.weight", normed, joined))
    return expected


@pytest.mark.parametrize(
    ("wiring", "scheme"), [*((wiring, "default") for wiring in WIRINGS), ("gpt2", "scaled"), ("post", "scaled")]
)
@torch.no_grad()
def test_beside_hooks(wiring: str, scheme: str) -> None:
    of = subject(scheme, **WIRINGS[wiring])
    module = drawn(of)
    if scheme == "default":
        shaken(module)  # gains of 1 would hide what they multiply
    before, expected = hooked(of, module, wiring)
    residual = observe(of, module, tokens(of)).residual
    assert told(residual.branches) == expected_of(wiring)
    assert residual.embedding_variance == pytest.approx(before, rel=1e-5)
    assert [branch.branch_variance for branch in residual.branches] == pytest.approx([b for b, _ in expected], rel=1e-5)
    assert [branch.stream_variance for branch in residual.branches] == pytest.approx([s for _, s in expected], rel=1e-5)
    assert residual.branch_variance_sum == pytest.approx(sum(b for b, _ in expected), rel=1e-5)
    for branch, (mine, after) in zip(residual.branches, expected, strict=True):
        assert branch.ratio == pytest.approx(mine / after, rel=1e-5)
        assert branch.residue < 1e-5  # what was read off is what was added


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@torch.no_grad()
def test_beside_hooks_in_other_dtypes(dtype: str) -> None:
    of = subject("default")
    module = drawn(of, dtype=dtype)
    embedding, expected = hooked(of, module)
    residual = observe(of, module, tokens(of)).residual
    assert residual.embedding_variance == pytest.approx(embedding, rel=1e-5)
    assert [branch.branch_variance for branch in residual.branches] == pytest.approx([b for b, _ in expected], rel=1e-5)


# what these differ in has nothing to do with how many tokens there are: ties, biases, activations, widths, gains
ALIKE = (
    *("gpt2 untied, gelu_tanh", "no biases", "post, sinusoidal, relu", "post, final norm, rmsnorm", "gemma", "opt"),
    *("gated with biases", "wide heads, sinusoidal", "olmo", "layerscale", "deepnorm"),
)


@pytest.mark.parametrize("wiring", [wiring for wiring in WIRINGS if wiring not in ALIKE])
@torch.no_grad()
def test_number_order_names_and_kinds_of_a_single_token(wiring: str) -> None:
    of = subject(**WIRINGS[wiring])
    assert told(observe(of, drawn(of), tokens(of, length=1)).residual.branches) == expected_of(wiring)


# --- the scaling ratio

N = 3  # layers


def ratio_of(of: Subject, module: nn.Module) -> float:
    with torch.no_grad():
        return observe(of, module, tokens(of)).residual.scaling_ratio


# a projection's measured std has a relative error of 1/√(2·entries), its square of √(2/entries); the ratio is a
# weighted mean of such squares, so the error of the smallest projection (32 × 32) bounds its error
RATIO_ERROR = math.sqrt(2 / 32**2)
NARROW_ERROR = {"deepseek": math.sqrt(2 / (32 * 20))}  # 4 heads of 5 values each

# wirings that differ in what ends a branch, or in what it is added to; others differ before its last product
ENDS = (
    "gpt2",
    "post",
    "post, final norm, rmsnorm",
    "wide heads, sinusoidal",
    "llama",
    "gpt-neox",
    "gpt-j",
    "gemma 2",
    "olmo 2",
    "minicpm",
    "deepnorm",
    "sub-ln",
    "rezero",
    "layerscale",
    "mixtral",
    "deepseek",
)
NORMED_AFTER = ("gemma 2", "olmo 2")


def promised(scheme: str, wiring: str) -> float:
    """1/√(2N) promises 1, no scaling 2N; a norm after the branch undoes the scheme's, a factor of the forward adds."""
    if wiring in NORMED_AFTER:
        return 2.0 * N
    promise = 1.0 if scheme == "scaled" else 2.0 * N
    return promise * 1.4**2 / N if wiring == "minicpm" else promise


@pytest.mark.parametrize(
    ("scheme", "wiring"),
    [
        *(("scaled", wiring) for wiring in ENDS),  # which finds an end that is missed
        *(("gpt2", wiring) for wiring in ("gpt2", "post", *NORMED_AFTER, "minicpm", "sub-ln", "mixtral", "deepseek")),
        *(("default", wiring) for wiring in ("gpt2", "llama", "deepseek")),
    ],
)
def test_scaling_ratio_tells_the_scaling(scheme: str, wiring: str) -> None:
    of, promise = subject(scheme, **{**WIRINGS[wiring], "n_layers": N}), promised(scheme, wiring)
    error = NARROW_ERROR.get(wiring, RATIO_ERROR)
    assert_near(ratio_of(of, drawn(of)), promise, promise * error, "scaling ratio")


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
    assert scaling_ratio(branches, {one.name: one.std for one in parameters}, of.plan) == pytest.approx(
        (2 + 6) / ((8 + 54) / 2)
    )


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
