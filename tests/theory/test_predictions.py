"""Branch variances, logit std and promised scaling, against what a forward measures."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from initdiag.engines import Settings, dense
from initdiag.measure import Measurements
from initdiag.measure.observe import observe
from initdiag.subjects import Subject
from initdiag.theory import expect
from initdiag.theory.expect import logit_std, mlp_branch_variances, promised_scaling
from initdiag.theory.gaussian import ACTIVATIONS
from tests.sampling import SIGMAS, assert_near
from tests.small_models import WIRINGS, subject, tokens

GPT2: dict[str, Any] = {
    "vocab_size": 50257,
    "context": 1024,
    "d_model": 768,
    "n_layers": 12,
    "n_heads": 12,
    "activation": "gelu_tanh",
}


def measured(of: Subject, seed: int) -> Measurements:
    return dense.run(of, tokens(of, 2, seed=seed), seed, Settings(device="cpu"), observe)[0]


# --- by hand


def test_mlp_branches_of_gpt2_small() -> None:
    scaled, gpt2 = (mlp_branch_variances(subject(scheme, **GPT2)) for scheme in ("scaled", "gpt2"))
    assert list(scaled) == [f"blocks.{layer}.mlp.out.weight" for layer in range(12)]
    # d_ff · σ_out² · E[gelu(u)²] = 3072 · 0.02²/24 · 0.10648 at std(u) = 0.02·√768 = 0.5543
    assert list(scaled.values()) == pytest.approx([0.005452] * 12, rel=1e-3)
    assert list(gpt2.values()) == pytest.approx([0.13085] * 12, rel=1e-3)


def test_gated_mlp_branches() -> None:
    # TinyLlama 1.1B at 0.02: 5632 · 0.02² · E[silu(u)²] · 2048 · 0.02², std(u) = 0.905: 0.5198 (facts/schemes.md, B)
    of = subject(
        **{**WIRINGS["llama"], "d_model": 2048, "d_ff": 5632, "n_heads": 32, "n_kv_heads": 4, "vocab_size": 99}
    )
    assert list(mlp_branch_variances(of).values()) == pytest.approx([0.5198] * 3, rel=1e-3)


def test_biases_of_default_are_part_of_the_branch() -> None:
    # fan_in 32: u ~ 32/(3·32) + 1/(3·32) = 33/96 of variance; relu halves it; out: 128/(3·128)·33/192 + 1/(3·128)
    found = mlp_branch_variances(subject("default", activation="relu"))
    assert list(found.values()) == pytest.approx([33 / 192 / 3 + 1 / 384] * 3, rel=1e-9)


def test_logit_std_by_hand() -> None:
    assert logit_std(subject("scaled", **GPT2)) == pytest.approx(0.5543, abs=5e-5)
    assert logit_std(subject("gpt2", std=0.1)) == pytest.approx(0.1 * math.sqrt(32))
    assert logit_std(subject("default")) == pytest.approx(math.sqrt(32))  # N(1), tied
    assert logit_std(subject("default", tied=False)) == pytest.approx(1 / math.sqrt(3))  # U(1/√d): 0.577
    assert logit_std(subject("default", tied=False, placement="post")) == pytest.approx(1 / math.sqrt(3))
    assert logit_std(subject("gpt2", final_norm=False)) is None  # no norm makes the state unit


@pytest.mark.parametrize(
    ("scheme", "given", "promise"),
    [
        ("scaled", {}, 1.0),
        ("gpt2", {}, 6.0),
        ("default", {}, 6.0),
        ("scaled", {"residual_std": 0.02}, 6.0),
        ("scaled", {"residual_std": 0.02 / 6}, 1 / 6),
        ("scaled", {"std": 0.1}, 1.0),
    ],
)
def test_promised_scaling(scheme: str, given: dict[str, float], promise: float) -> None:
    assert promised_scaling(subject(scheme, **given).plan) == pytest.approx(promise, rel=1e-12)


def test_expectations_hold_together() -> None:
    of = subject("scaled")
    batch = tokens(of)
    found = measured(of, 0)
    expected = expect(of, batch, found)
    assert expected.scaling_ratio == pytest.approx(1.0)
    eps, final = of.architecture.eps, found.residual.branches[-1].stream_variance
    assert expected.logit_std == pytest.approx(logit_std(of) * math.sqrt(final / (final + eps)))
    assert set(expected.branch_variances) == set(mlp_branch_variances(of))
    assert expected.allowance > 0


# --- beside measurements


MEDIUM = {"vocab_size": 4000, "context": 64, "d_model": 256, "n_layers": 4, "n_heads": 8, "eps": 1e-9}


def kurtosis_after(activation: str, std: float) -> float:
    """E[φ(u)⁴] / E[φ(u)²]², from draws: it only sets a tolerance."""
    u = std * torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    phi = torch.tensor([ACTIVATIONS[activation](float(value)) for value in u[:20_000]], dtype=torch.float64)
    return float(phi.pow(4).mean() / phi.pow(2).mean() ** 2)


@pytest.mark.parametrize("scheme", ["gpt2", "scaled", "default"])
@pytest.mark.parametrize(
    "fields",
    [
        {"activation": "gelu_tanh"},
        {"activation": "relu", "position": "none"},
        {"gated": True, "activation": "silu", "norm": "rmsnorm", "biases": False, "position": "rotary", "tied": False},
        {"placement": "post", "activation": "gelu"},
    ],
    ids=["gpt2", "relu", "llama", "post"],
)
def test_mlp_branches_beside_measurements(fields: dict[str, Any], scheme: str) -> None:
    """Mean over layers and seeds of measured / predicted.

    Given its inputs, one output of a layer is a Gaussian of variance σ²·Σφ²; the branch averages d_model of them
    and d_ff hidden units. If all tokens were alike that would be all: relative variance 2/d_model + (κ − 1)/d_ff,
    the most it can be; for a gated one κ is that of the product, 3κ.
    """
    of = subject(scheme, **{**MEDIUM, **fields})
    predicted = mlp_branch_variances(of)
    ratios = []
    for seed in range(3):
        for branch in measured(of, seed).residual.branches:
            if branch.kind == "mlp":
                ratios.append(branch.branch_variance / predicted[branch.projection or ""])
    shape = of.architecture
    u = {"default": 1 / math.sqrt(3)}.get(scheme, 0.02 * 16)
    kurtosis = kurtosis_after(shape.activation, u) * (3 if shape.gated else 1)
    one = math.sqrt(2 / shape.d_model + (kurtosis - 1) / shape.d_ff)
    assert len(ratios) == 12
    assert_near(math.fsum(ratios) / 12, 1.0, one / math.sqrt(12), "measured / predicted")
    assert max(abs(ratio - 1) for ratio in ratios) < SIGMAS * one


@pytest.mark.parametrize("fields", [{}, {"tied": False}, {"placement": "post"}, WIRINGS["llama"]])
@pytest.mark.parametrize("scheme", ["gpt2", "default"])
def test_logit_std_beside_measurements(scheme: str, fields: dict[str, Any]) -> None:
    """The state's norm is exact, so only V = 4000 entries tell: √((κ − 1)/4V) with κ = 3, if all tokens are alike."""
    of = subject(scheme, **{**fields, **MEDIUM, "n_kv_heads": 8, "d_ff": 400})
    expected = logit_std(of)
    assert expected is not None
    found = measured(of, 0)
    stds = [at.std for at in found.positions]  # without the input token, which a tied head makes an outlier
    assert_near(math.fsum(stds) / len(stds), expected, expected * math.sqrt(2 / (4 * 4000)), "logit std")


@pytest.mark.parametrize("scheme", ["gpt2", "scaled", "default"])
def test_measured_scaling_is_the_promised_one(scheme: str) -> None:
    of = subject(scheme, **MEDIUM)
    ratio, promise = measured(of, 0).residual.scaling_ratio, promised_scaling(of.plan)
    assert_near(ratio, promise, promise * math.sqrt(2 / 256**2), "scaling ratio")
