"""Branch variances, logit std and promised scaling, against what a forward measures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from initdiag.engines import Settings, dense
from initdiag.measure import Measurements
from initdiag.measure.observe import observe
from initdiag.model.feedforward import hidden
from initdiag.schemes import Constant, Normal
from initdiag.subjects import Subject
from initdiag.theory import UnpredictableError, expect, predict
from initdiag.theory.activations import ACTIVATIONS
from initdiag.theory.expect import promised_scaling
from tests.sampling import SIGMAS, assert_near
from tests.small_models import WIRINGS, subject, tokens

GPT2: dict[str, Any] = {
    "vocab_size": 50257,
    "context": 64,
    "d_model": 768,
    "n_layers": 12,
    "n_heads": 12,
    "activation": "gelu_tanh",
    "eps": 1e-12,
}


def predicted(of: Subject) -> Measurements:
    return predict(of, tokens(of, 2, seed=0)).values


def mlp_branch_variances(of: Subject) -> dict[str, float]:
    found = predicted(of).residual.branches
    return {at.projection or "": at.branch_variance for at in found if at.kind == "mlp"}


def logit_std(of: Subject) -> float:
    stds = [at.std for at in predicted(of).positions]
    return math.fsum(stds) / len(stds)


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
    assert list(found.values()) == pytest.approx([33 / 192 / 3 + 1 / 384] * 3, rel=1e-4)  # eps


def test_logit_std_by_hand() -> None:
    assert logit_std(subject("scaled", **GPT2)) == pytest.approx(0.5543, abs=5e-5)
    assert logit_std(subject("gpt2", std=0.1)) == pytest.approx(0.1 * math.sqrt(32), rel=1e-3)  # eps
    assert logit_std(subject("default")) == pytest.approx(math.sqrt(32), rel=1e-4)  # N(1), tied
    assert logit_std(subject("default", tied=False)) == pytest.approx(1 / math.sqrt(3), rel=1e-4)  # U(1/√d): 0.577
    assert logit_std(subject("default", tied=False, placement="post")) == pytest.approx(1 / math.sqrt(3), rel=1e-4)
    bare = subject("gpt2", final_norm=False, tied=False)  # no norm makes the state unit
    stream = predicted(bare).residual.branches[-1].stream_variance
    assert logit_std(bare) == pytest.approx(0.02 * math.sqrt(32 * stream), rel=0.05)  # each position has its own


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
    assert expected.prediction is not None
    values = expected.prediction.values
    assert expected.logit_std == values.logits.std
    assert list(expected.branches) == [at.index for at in found.residual.branches]
    assert [at.name for at in expected.branches.values()] == [at.name for at in found.residual.branches]
    assert [at.projection for at in expected.branches.values()] == [at.projection for at in found.residual.branches]
    assert [at.name for at in values.attention] == [at.name for at in found.attention]
    assert expected.allowance > 0


# --- beside measurements


MEDIUM = {"vocab_size": 400, "context": 64, "d_model": 128, "n_layers": 2, "n_heads": 8, "eps": 1e-9}


def kurtosis_after(activation: str, std: float) -> float:
    """E[φ(u)⁴] / E[φ(u)²]², from draws: it only sets a tolerance."""
    u = std * torch.randn(200_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    phi = torch.from_numpy(ACTIVATIONS[activation](u.numpy()))
    return float(phi.pow(4).mean() / phi.pow(2).mean() ** 2)


@pytest.mark.parametrize("scheme", ["gpt2", "default"])
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
    u = {"default": 1 / math.sqrt(3)}.get(scheme, 0.02 * math.sqrt(128))
    kurtosis = kurtosis_after(shape.activation, u) * (3 if shape.gated else 1)
    one = math.sqrt(2 / shape.d_model + (kurtosis - 1) / shape.d_ff)
    assert len(ratios) == 6
    assert_near(math.fsum(ratios) / 6, 1.0, one / math.sqrt(6), "measured / predicted")
    assert max(abs(ratio - 1) for ratio in ratios) < SIGMAS * one


@pytest.mark.parametrize("fields", [{}, {"tied": False}, {"placement": "post"}, WIRINGS["llama"]])
@pytest.mark.parametrize("scheme", ["gpt2", "default"])
def test_logit_std_beside_measurements(scheme: str, fields: dict[str, Any]) -> None:
    """The state's norm is exact, so only V = 4000 entries tell: √((κ − 1)/4V) with κ = 3, if all tokens are alike."""
    of = subject(scheme, **{**fields, **MEDIUM, "vocab_size": 4000, "n_kv_heads": 8, "d_ff": 400})
    expected = logit_std(of)
    assert expected is not None
    found = measured(of, 0)
    stds = [at.std for at in found.positions]  # without the input token, which a tied head makes an outlier
    assert_near(math.fsum(stds) / len(stds), expected, expected * math.sqrt(2 / (4 * 4000)), "logit std")


@pytest.mark.parametrize("scheme", ["gpt2", "scaled", "default"])
def test_measured_scaling_is_the_promised_one(scheme: str) -> None:
    of = subject(scheme, **MEDIUM)
    ratio, promise = measured(of, 0).residual.scaling_ratio, promised_scaling(of.plan)
    assert_near(ratio, promise, promise * math.sqrt(2 / 128**2), "scaling ratio")


# --- every feature of the reference Transformer

WIDE: dict[str, Any] = {"vocab_size": 2000, "context": 64, "d_model": 128, "n_layers": 2, "n_heads": 4, "eps": 1e-9}
SEEDS = 3

FEATURES: dict[str, dict[str, Any]] = {
    "sinusoidal post": {"placement": "post", "position": "sinusoidal"},
    "parallel": {"placement": "parallel"},
    "parallel_shared": {"placement": "parallel_shared", "norm": "rmsnorm"},
    "one_plus": {"norm_scale": "one_plus", "norm": "rmsnorm"},
    "no parameters in norms": {"norm_scale": "none"},
    "inner_norm": {"inner_norm": True, "activation": "relu"},
    "inner_norm, rmsnorm": {"inner_norm": True, "norm": "rmsnorm", "activation": "relu"},
    "residual_multiplier": {"residual_multiplier": "0.5 / branch", "stream_multiplier": 1.3},
    "relu2": {"activation": "relu2"},
    "quick_gelu": {"activation": "quick_gelu", "biases": {"mlp": True}},
    "gate_limit": {"gated": True, "activation": "quick_gelu", "gate_limit": 0.15},
    "gated relu2": {"gated": True, "activation": "relu2"},
    "first layer dense": {"moe": {"experts": 4, "top_k": 2, "first_dense": 1}},
}


def hidden_kurtosis(fields: dict[str, Any], std: float) -> float:
    """E[h⁴] / E[h²]² of a hidden unit, from draws: it only sets a tolerance."""
    gate, value = std * torch.randn(2, 200_000, generator=torch.Generator().manual_seed(0))
    shape = subject(**fields).architecture
    assert shape is not None
    units = hidden(shape, gate if shape.gated else None, value).double()
    return float(units.pow(4).mean() / units.square().mean() ** 2)


@pytest.mark.parametrize("name", FEATURES)
def test_mlp_branches_of_every_feature_beside_measurements(name: str) -> None:
    """As above: at most √(2/d_model + (κ − 1)/d_ff) each, over layers and seeds together 1/√(their number) of it."""
    of = subject("gpt2", **{**WIDE, **FEATURES[name]})
    ratios = []
    for seed in range(SEEDS):
        found = measured(of, seed)
        expected = expect(of, tokens(of, 2, seed=seed), found).branches
        mlps = [at for at in found.residual.branches if at.kind == "mlp"]
        ratios += [at.branch_variance / expected[at.index].branch_variance for at in mlps]
    kurtosis = hidden_kurtosis({**WIDE, **FEATURES[name]}, 0.02 * math.sqrt(128))
    one = math.sqrt(2 / 128 + (kurtosis - 1) / 512)
    assert len(ratios) == (3 if name == "first layer dense" else 6)
    assert_near(math.fsum(ratios) / len(ratios), 1.0, one / math.sqrt(len(ratios)), "measured / predicted")


@pytest.mark.parametrize("fields", [{}, {"inner_norm": True}, {"norm_scale": "one_plus", "residual_multiplier": 0.5}])
@pytest.mark.parametrize("placement", ["sandwich", "reordered"])
def test_norms_after_branches_make_them_exact(placement: str, fields: dict[str, Any]) -> None:
    """A norm leaves nothing to chance but its eps, here 1e-9 of a variance above 1e-6."""
    of = subject("gpt2", **{**WIDE, "std": 0.1, "placement": placement, **fields})
    found = measured(of, 0)
    expected = expect(of, tokens(of, 2, seed=0), found).branches
    for at in found.residual.branches:
        foreseen = expected[at.index].branch_variance
        assert foreseen == pytest.approx(fields.get("residual_multiplier", 1.0) ** 2, rel=1e-3)
        assert at.branch_variance == pytest.approx(foreseen, rel=1e-3)


def test_a_reordered_mlp_reads_streams_of_many_sizes() -> None:
    """Of small ones a norm gives v/(v + eps): less than of their mean. A seed is off by the spread of 128 tokens."""
    fields = {**WIDE, "placement": "reordered", "eps": 1e-5}
    of = subject("gpt2", **fields)
    found = measured(of, 0)
    expected = expect(of, tokens(of, 2, seed=0), found).branches
    for at in found.residual.branches[1::2]:
        assert at.branch_variance == pytest.approx(expected[at.index].branch_variance, rel=0.02)
    assert expected[2].branch_variance < 0.95


def test_an_inner_layernorm_sees_the_variance_and_an_rmsnorm_the_mean_square() -> None:
    # std(u) = s: relu has E[h²] = s²/2 and E[h] = s/√(2π); with eps about as large, v/(v + eps) tells them apart
    fields = {**WIDE, "inner_norm": True, "activation": "relu", "eps": 1e-3, "embedding_multiplier": 1e5}
    square = 128 * 0.002**2
    for norm, spread in (("layernorm", square * (1 / 2 - 1 / (2 * math.pi))), ("rmsnorm", square / 2)):
        found = mlp_branch_variances(subject("gpt2", **fields, norm=norm, std=0.002))
        assert list(found.values()) == pytest.approx([512 * 0.002**2 * spread / (spread + 1e-3)] * 2, rel=1e-3)


def test_features_by_hand() -> None:
    def first(**fields: Any) -> float:
        found = mlp_branch_variances(subject("gpt2", **WIDE, **fields))
        return found["blocks.0.mlp.out.weight"]

    square, out = 128 * 0.02**2, 512 * 0.02**2  # variance of u; d_ff·σ²
    assert first(activation="relu2") == pytest.approx(out * 1.5 * square**2, rel=1e-3)
    assert first(activation="relu") == pytest.approx(out * square / 2, rel=1e-3)
    assert first(activation="relu", norm_scale="one_plus") == pytest.approx(out * square / 2, rel=1e-3)
    assert first(activation="relu", residual_multiplier="0.3 * branch") == pytest.approx(
        out * square / 2 * 0.6**2, rel=1e-3
    )
    assert first(activation="relu", branch_gain="vector") == pytest.approx(out * square / 2, rel=1e-3)  # a gain of 1
    # cut at σ(u): E[min(z, 1)²] over z > 0 is ∫₀¹ z²φ + P(z > 1) = (½ − φ(1) − P) + P; on both sides twice that
    half = 0.5 - math.exp(-0.5) / math.sqrt(2 * math.pi)
    clamped = 2 * half * square
    limited = first(activation="relu", gated=True, gate_limit=math.sqrt(square))
    assert limited == pytest.approx(out * half * square * (clamped + 1), rel=1e-4)
    assert first(placement="sandwich") == pytest.approx(1.0, rel=1e-3)
    scaled = mlp_branch_variances(layerscaled := subject("layerscale", **WIDE, activation="relu"))
    assert layerscaled.architecture is not None
    assert layerscaled.architecture.branch_gain == "vector"
    assert scaled["blocks.0.mlp.out.weight"] == pytest.approx(out * square / 2 * 1e-8, rel=1e-3)


def with_drawn(of: Subject, name: str, distribution: Normal | Constant) -> Subject:
    entries = [
        replace(one, distribution=distribution) if one.parameter.name == name else one for one in of.plan.entries
    ]
    return replace(of, plan=replace(of.plan, entries=tuple(entries)))


@pytest.mark.parametrize(
    "name", "mlp_norm.bias mlp.input.bias mlp.input.weight mlp.out.weight mlp.out.bias attention.value.weight".split()
)
def test_what_is_the_same_in_all_features_is_refused(name: str) -> None:
    of = with_drawn(subject("gpt2", **WIDE), f"blocks.0.{name}", Constant(0.5))
    with pytest.raises(UnpredictableError, match=rf"'blocks\.0\.{name}' is the constant 0\.5"):
        predicted(of)
    expected = expect(of, tokens(of), measured(of, 0))
    assert expected.prediction is None
    assert "is the constant 0.5" in expected.unpredicted


def test_a_gain_that_is_drawn_counts_by_its_mean_square() -> None:
    plain = subject("gpt2", **WIDE, activation="relu")
    drawn = with_drawn(plain, "blocks.0.mlp_norm.weight", Normal(3.0))
    assert list(mlp_branch_variances(drawn).values()) == pytest.approx(
        [9 * 512 * 0.02**2 * 128 * 0.02**2 / 2, 512 * 0.02**2 * 128 * 0.02**2 / 2], rel=1e-4
    )


def test_a_norm_bias_that_is_drawn_adds_its_variance() -> None:
    of = with_drawn(subject("gpt2", **WIDE, activation="relu"), "blocks.0.mlp_norm.bias", Normal(2.0))
    found = mlp_branch_variances(of)["blocks.0.mlp.out.weight"]
    assert found == pytest.approx(512 * 0.02**2 * 128 * 0.02**2 / 2 * (1 + 2.0**2), rel=1e-4)


LOGITS: dict[str, tuple[dict[str, Any], float]] = {  # of σ√d = 0.02·√128 = 0.22627
    "logit_multiplier": ({"logit_multiplier": 0.5}, 0.5 * 0.22627417),
    "softcap far away": ({"logit_softcap": 30.0}, 0.22627417),
    "softcap of what is multiplied": ({"logit_multiplier": 3.0, "logit_softcap": 30.0, "tied": False}, 3 * 0.22627417),
    "one_plus": ({"norm_scale": "one_plus", "norm": "rmsnorm"}, 0.22627417),
    "no parameters": ({"norm_scale": "none"}, 0.22627417),
    "sandwich": ({"placement": "sandwich", "tied": False}, 0.22627417),
    "reordered": ({"placement": "reordered"}, 0.22627417),
    "post with a final norm": ({"placement": "post", "final_norm": True}, 0.22627417),
    "embedding norm, multiplied": ({"embedding_norm": True, "embedding_multiplier": 9.0}, 0.22627417),
}


@pytest.mark.parametrize("name", LOGITS)
def test_logit_std_of_every_feature(name: str) -> None:
    """√((κ − 1)/4V), κ = 3, if all tokens are alike."""
    fields, by_hand = LOGITS[name]
    of = subject("gpt2", **{**WIDE, **fields})
    expected = logit_std(of)
    assert expected == pytest.approx(by_hand, rel=1e-3)
    stds = [at.std for at in measured(of, 0).positions]
    assert_near(math.fsum(stds) / len(stds), by_hand, by_hand * math.sqrt(2 / (4 * 2000)), "logit std")


def test_logit_std_under_a_softcap_that_bends_and_a_bias() -> None:
    # the middle of a tanh, from draws; PyTorch's default bias is U(1/√d), of variance 1/(3d)
    z = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bent = float((0.2 * torch.tanh(3 * 0.22627417 * z / 0.2)).std())
    of = subject("gpt2", **{**WIDE, "logit_multiplier": 3.0, "logit_softcap": 0.2, "tied": False})
    assert logit_std(of) == pytest.approx(bent, rel=5 * 1e-3)
    stds = [at.std for at in measured(of, 0).positions]
    assert_near(math.fsum(stds) / len(stds), bent, bent * math.sqrt(2 / (4 * 2000)), "logit std")
    head = subject("default", **{**WIDE, "tied": False, "biases": {"head": True}})
    assert logit_std(head) == pytest.approx(math.sqrt(1 / 3 + 1 / (3 * 128)), rel=1e-4)


def test_eps_counts_where_the_stream_is_small() -> None:
    """v/(v + eps) of what the norm reads; tokens differ in v, and the mean of it is a little below it of the mean."""
    of = subject("gpt2", **{**WIDE, "eps": 1e-4})
    stream = predicted(of).residual.branches[-1].stream_variance
    assert logit_std(of) == pytest.approx(0.22627417 * math.sqrt(stream / (stream + 1e-4)), rel=2e-3)
    post = subject("gpt2", **{**WIDE, "eps": 0.5, "placement": "post"})
    stream = predicted(post).residual.branches[-1].stream_variance
    assert logit_std(post) == pytest.approx(0.22627417 * math.sqrt(stream / (stream + 0.5)), rel=2e-3)
    twice = subject("gpt2", **{**WIDE, "eps": 0.5, "placement": "post", "final_norm": True})
    given = stream / (stream + 0.5)
    assert logit_std(twice) == pytest.approx(0.22627417 * math.sqrt(given / (given + 0.5)), rel=2e-3)
    small = predicted(subject("gpt2", **{**WIDE, "eps": 1e-4}, activation="relu")).residual
    read = small.branches[0].stream_variance
    by_hand = read / (read + 1e-4) * 512 * 0.02**2 * 128 * 0.02**2 / 2
    assert small.branches[1].branch_variance == pytest.approx(by_hand, rel=1e-2)


@pytest.mark.parametrize("scheme", ["rezero", "skipinit", "fixup", "zero-residual"])
def test_branches_that_start_at_nothing_promise_nothing(scheme: str) -> None:
    of = subject(scheme, **WIDE)
    assert promised_scaling(of.plan) is None
    assert math.isnan(measured(of, 0).residual.scaling_ratio)


@pytest.mark.parametrize(
    "scheme, promise",
    [
        ("minicpm", 4 * 1.4**2 / 2),  # 2N branches, each times 1.4/√N, N = 2
        ("completep", 4.0),  # n_layers is base_depth
        ("depth-mup", 4.0),
        ("deepnorm", 4 / 16**0.5),  # (8N)^-1/4 on the weights
        ("layerscale", 4.0),
        ("sub-ln", 4 * math.log(4)),
        ("scaled", 1.0),
    ],
)
def test_schemes_that_scale_in_the_forward_pass_keep_their_promise(scheme: str, promise: float) -> None:
    """The factors are the same for all branches: what is left is the std of 2N drawn matrices of 128 × 128 or more."""
    of = subject(scheme, **WIDE)
    assert promised_scaling(of.plan) == pytest.approx(promise)
    assert_near(measured(of, 0).residual.scaling_ratio, promise, promise * math.sqrt(2 / 128**2), "scaling ratio")


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "reordered", "parallel", "parallel_shared", "none"])
def test_the_configs_residual_multiplier_is_part_of_the_promise(placement: str) -> None:
    of = subject("scaled", **WIDE, placement=placement, residual_multiplier=0.5)
    # after a norm nothing is left of 1/√(2N): four branches of 0.5²
    promise = 4 * 0.25 if placement in ("sandwich", "reordered") else 0.25
    assert promised_scaling(of.plan) == pytest.approx(promise)
    assert_near(measured(of, 0).residual.scaling_ratio, promise, promise * math.sqrt(2 / 128**2), "scaling ratio")


def test_u_mup_weights_its_branches() -> None:
    """τ² = 1/(N + branches before it, one for each); a branch counts τ²/(1 + τ²): 1/3, 1/4, 1/5, 1/6 for N = 2."""
    factors = [1 / 3, 1 / 4, 1 / 5, 1 / 6]
    of = subject("u-mup", **WIDE)
    assert promised_scaling(of.plan) == pytest.approx(sum(factors))
    found = measured(of, 0).residual
    sizes = [at.branch_variance for at in found.branches]
    ratio = sum(sizes) * 4 / sum(size / factor for size, factor in zip(sizes, factors, strict=True))
    assert_near(found.scaling_ratio, ratio, ratio * math.sqrt(2 / 128**2), "scaling ratio")


@pytest.mark.parametrize(
    ("placement", "norm"),
    [("pre", "mlp_norm"), ("parallel", "mlp_norm"), ("parallel_shared", "attention_norm"), ("post", "attention_norm")],
)
def test_the_gain_that_counts_is_that_of_the_norm_it_reads(placement: str, norm: str) -> None:
    of = subject("gpt2", **WIDE, activation="relu", placement=placement)
    found = mlp_branch_variances(with_drawn(of, f"blocks.0.{norm}.weight", Constant(2.0)))
    plain = 512 * 0.02**2 * 128 * 0.02**2 / 2
    assert list(found.values()) == pytest.approx([4 * plain, plain], rel=1e-3)
