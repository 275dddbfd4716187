"""The schemes of the Llama, OLMo and speedrun families, role by role, against arithmetic done here from the sources."""

from __future__ import annotations

import math
from dataclasses import astuple

import pytest

from initdiag.errors import UsageError
from initdiag.model import parameters, sizes
from initdiag.model.planning import planned
from initdiag.schemes import (
    Constant,
    Distribution,
    InitPlan,
    Normal,
    Parameter,
    Role,
    Scheme,
    Truncated,
    Uniform,
    make_plan,
    scheme_named,
)
from initdiag.schemes.formula import evaluate
from initdiag.schemes.llama import LLAMA_SCHEMES
from initdiag.schemes.olmo import OLMO_SCHEMES
from initdiag.schemes.roles import RESIDUAL_PROJECTIONS
from initdiag.schemes.settings import formula_names
from initdiag.schemes.speedrun import SPEEDRUN_SCHEMES
from tests.small_models import architecture

SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in (*LLAMA_SCHEMES, *OLMO_SCHEMES, *SPEEDRUN_SCHEMES)}

# Queries are 4 × 12 = 48 wide and keys 2 × 12 = 24, neither of them d_model; N = 3 and layer 1, so that 2N = 6 and
# 2(l + 1) = 4 differ.
SHAPE = architecture(
    vocab_size=97, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=12, d_ff=96, gated=True, tied=False
)
NAMES = {
    Role.TOKEN_EMBEDDING: "token_embedding.weight",
    Role.POSITION_EMBEDDING: "position_embedding.weight",
    Role.ATTENTION_QUERY: "blocks.1.attention.query.weight",  # fan_in 32, fan_out 48
    Role.ATTENTION_KEY: "blocks.1.attention.key.weight",  # 32, 24
    Role.ATTENTION_VALUE: "blocks.1.attention.value.weight",  # 32, 24
    Role.ATTENTION_OUT: "blocks.1.attention.out.weight",  # 48, 32
    Role.MLP_IN: "blocks.1.mlp.input.weight",  # 32, 96
    Role.MLP_GATE: "blocks.1.mlp.gate.weight",  # 32, 96
    Role.MLP_OUT: "blocks.1.mlp.out.weight",  # 96, 32
    Role.LM_HEAD: "head.weight",  # 32, 97
    Role.NORM_SCALE: "blocks.1.mlp_norm.weight",
    Role.NORM_BIAS: "blocks.1.mlp_norm.bias",
    Role.BIAS: "blocks.1.attention.query.bias",
    Role.ROUTER: "router",  # 32, 5
    Role.ROUTER_BIAS: "router.bias",
    Role.ATTENTION_SINK: "sinks",
    Role.MULTIPLIER: "gain",
}
MORE = (
    Parameter("router", (5, 32), Role.ROUTER, 32, 1),
    Parameter("router.bias", (5,), Role.ROUTER_BIAS, 32, 1),
    Parameter("sinks", (4,), Role.ATTENTION_SINK, 1, 1),
    Parameter("gain", (32,), Role.MULTIPLIER, 1, 1),
)
D, OUT, FF = 32**-0.5, 48**-0.5, 96**-0.5
KEPT = 0.8796256610342398  # std of a standard normal that is cut at 2 sigmas


def plan_of(name: str, tied: bool = False, **given: float | str) -> InitPlan:
    shape = SHAPE.model_copy(update={"tied": tied})
    return make_plan(SCHEMES[name], (*parameters(shape), *MORE), sizes(shape), given)


def cut3(sigma: float) -> Truncated:
    return Truncated(sigma, 3.0)


def corrected(std: float) -> Truncated:
    return Truncated(std / KEPT, 2.0)


def answers(
    embedding: Distribution,
    attention: Distribution,  # queries, keys and values
    attention_out: Distribution,
    mlp: Distribution,  # input and gate
    mlp_out: Distribution,
    head: Distribution,
    router: Distribution,
    **single: Distribution,
) -> dict[Role, Distribution]:
    return {
        **dict.fromkeys((Role.TOKEN_EMBEDDING, Role.POSITION_EMBEDDING), embedding),
        **dict.fromkeys((Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE), attention),
        Role.ATTENTION_OUT: attention_out,
        **dict.fromkeys((Role.MLP_IN, Role.MLP_GATE), mlp),
        Role.MLP_OUT: mlp_out,
        Role.LM_HEAD: head,
        Role.ROUTER: router,
        Role.NORM_SCALE: Constant(1.0),
        **dict.fromkeys((Role.NORM_BIAS, Role.BIAS, Role.ROUTER_BIAS, Role.ATTENTION_SINK), Constant(0.0)),
        Role.MULTIPLIER: Constant(1.0),
        **{Role(role): distribution for role, distribution in single.items()},
    }


def everywhere(distribution: Distribution, residual: Distribution | None = None) -> dict[Role, Distribution]:
    out = residual or distribution
    return answers(distribution, distribution, out, distribution, out, distribution, distribution)


ZERO = Constant(0.0)
MITCHELL = answers(
    cut3(D), cut3(D), cut3(1 / math.sqrt(2 * 32 * 2)), cut3(D), cut3(1 / math.sqrt(2 * 96 * 2)), cut3(D), cut3(D)
)
# from shared/facts/schemes.md, A4 and A5; routers of torchtitan, OLMo-core from their own code
EXPECTED: dict[str, dict[Role, Distribution]] = {
    "torchtitan": answers(
        embedding=Normal(1.0),
        attention=Normal(0.02),
        attention_out=Normal(0.02 / 2),  # layer 1: sqrt(2 * 2)
        mlp=Normal(0.02),
        mlp_in=Normal(0.02 / 2),  # w3
        mlp_out=Normal(0.02 / 2),
        head=cut3(D),
        router=Normal(0.02 / 2),
    ),
    "deepseek": everywhere(Normal(0.006)),
    "gemma": everywhere(Normal(0.01)),
    "nanotron": everywhere(Normal(D), Normal(D / math.sqrt(6))),
    "lingua": answers(cut3(D), cut3(D), cut3(D), cut3(D), cut3(FF), cut3(D), cut3(D)),
    "maxtext": answers(
        embedding=Normal(1.0),
        attention=Normal(D),
        attention_query=Normal(D / math.sqrt(12)),
        attention_out=Normal(OUT),
        mlp=corrected(D),
        mlp_out=corrected(FF),
        head=corrected(D),
        router=corrected(D),
    ),
    "palm": answers(Normal(1.0), Normal(D), Normal(OUT), Normal(D), Normal(FF), Normal(1.0), Normal(D)),
    "olmo-mitchell": MITCHELL,
    "olmo-full-megatron": {**everywhere(cut3(0.02), cut3(0.02 / math.sqrt(6))), Role.LM_HEAD: cut3(D)},
    "olmo-normal": everywhere(cut3(0.02)),
    "olmo-core-normal": everywhere(cut3(0.02)),
    "olmo-core-llama": answers(
        embedding=Normal(1.0),
        attention=cut3(0.02),
        attention_out=cut3(0.02 / math.sqrt(6)),
        mlp=cut3(0.02),
        mlp_in=cut3(0.02 / math.sqrt(6)),
        mlp_out=cut3(0.02 / math.sqrt(6)),
        head=cut3(D),
        router=cut3(0.02 / math.sqrt(6)),
    ),
    "olmo-core-normalized": answers(
        embedding=Normal(D),
        attention=cut3(D),
        attention_out=cut3(D / math.sqrt(6)),
        mlp=cut3(D),
        mlp_out=cut3(D / math.sqrt(6)),
        head=cut3(D),
        router=cut3(0.02),
    ),
    "olmo-core-fan-in": answers(Normal(1.0), cut3(D), cut3(OUT), cut3(D), cut3(FF), cut3(D), cut3(D)),
    "open-lm": MITCHELL,
    "nanochat": answers(
        embedding=Normal(0.8),
        attention=Uniform(math.sqrt(3) / math.sqrt(32)),
        attention_out=ZERO,
        mlp=Uniform(0.4 * math.sqrt(3) / math.sqrt(32)),
        mlp_out=ZERO,
        head=Normal(0.001),
        router=Uniform(math.sqrt(3) / math.sqrt(32)),
    ),
    "nanochat-2025": answers(
        embedding=Normal(1.0),
        attention=Normal(math.sqrt(24 / 32) * D),
        attention_query=Normal(D),  # wider than d_model
        attention_out=ZERO,
        mlp=Normal(D),
        mlp_out=ZERO,
        head=ZERO,
        router=Normal(math.sqrt(5 / 32) * D),
    ),
    "modded-nanogpt": answers(
        embedding=Normal(0.005),
        attention=Uniform(math.sqrt(3) * 0.5 / math.sqrt(32)),
        attention_out=Uniform(math.sqrt(3) * 0.5 / math.sqrt(32)),
        mlp=Uniform(math.sqrt(3) * 0.5 / math.sqrt(32)),
        mlp_out=ZERO,
        head=Normal(0.005),
        router=Uniform(math.sqrt(3) * 0.5 / math.sqrt(32)),
    ),
    "mamba": answers(
        embedding=Normal(0.02),
        attention=Uniform(D),
        attention_out=Uniform(OUT / math.sqrt(6)),
        mlp=Uniform(D),
        mlp_out=Uniform(FF / math.sqrt(6)),
        head=Uniform(D),
        router=Uniform(D),
    ),
    "ngpt": everywhere(Normal(D), Normal(D / math.sqrt(6))),
}


def same(found: Distribution, expected: Distribution) -> bool:
    # a few operations in double precision each; both sides are the same number otherwise
    return type(found) is type(expected) and astuple(found) == pytest.approx(astuple(expected), rel=1e-12, abs=0)


def test_every_scheme_of_the_three_families_is_written_down_here() -> None:
    assert set(EXPECTED) == set(SCHEMES)


@pytest.mark.parametrize("name", EXPECTED)
def test_distributions(name: str) -> None:
    plan = plan_of(name)
    assert set(EXPECTED[name]) == set(Role) - {Role.OTHER}
    wrong = {
        role: (plan[NAMES[role]].distribution, expected)
        for role, expected in EXPECTED[name].items()
        if not same(plan[NAMES[role]].distribution, expected)
    }
    assert not wrong


# std of the roles that have a depth factor, without it; all others have one std only
TN3 = Truncated(1.0, 3.0).std
UNSCALED: dict[str, dict[Role, float]] = {
    "torchtitan": dict.fromkeys((Role.ATTENTION_OUT, Role.MLP_OUT, Role.MLP_IN, Role.ROUTER), 0.02),
    "nanotron": dict.fromkeys(RESIDUAL_PROJECTIONS, D),
    "olmo-mitchell": {Role.ATTENTION_OUT: TN3 * D, Role.MLP_OUT: TN3 * FF},
    "olmo-full-megatron": dict.fromkeys(RESIDUAL_PROJECTIONS, TN3 * 0.02),
    "olmo-core-llama": dict.fromkeys((Role.ATTENTION_OUT, Role.MLP_OUT, Role.MLP_IN, Role.ROUTER), TN3 * 0.02),
    "olmo-core-normalized": dict.fromkeys(RESIDUAL_PROJECTIONS, TN3 * D),
    "open-lm": {Role.ATTENTION_OUT: TN3 * D, Role.MLP_OUT: TN3 * FF},
    "mamba": {Role.ATTENTION_OUT: OUT / math.sqrt(3), Role.MLP_OUT: FF / math.sqrt(3)},
    "ngpt": dict.fromkeys(RESIDUAL_PROJECTIONS, D),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_unscaled_stds(name: str) -> None:
    plan = plan_of(name)
    for role, parameter in NAMES.items():
        entry = plan[parameter]
        expected = UNSCALED.get(name, {}).get(role, entry.distribution.std)
        assert entry.unscaled_std == pytest.approx(expected, rel=1e-12, abs=0), role


# Growth with depth: Σ (std / unscaled std)² over the 2N residual projections.


def ratios(name: str, n_layers: int, role: Role, **given: float | str) -> list[float]:
    """std / unscaled std of a role, layer by layer."""
    shape = architecture(d_model=768, n_heads=4, d_ff=96, gated=True, n_layers=n_layers)
    asked = (parameter for parameter in parameters(shape) if parameter.role is role)
    plan = make_plan(SCHEMES[name], asked, sizes(shape), given)
    return [entry.distribution.std / entry.unscaled_std for entry in plan.entries]


def growth(name: str, n_layers: int, **given: float | str) -> float:
    return math.fsum(ratio**2 for role in RESIDUAL_PROJECTIONS for ratio in ratios(name, n_layers, role, **given))


def harmonic(n_layers: int) -> float:
    return math.fsum(1 / (layer + 1) for layer in range(n_layers))


CONSTANT: tuple[tuple[str, dict[str, str]], ...] = (
    ("torchtitan", {"depth": "total"}),
    ("nanotron", {}),
    ("olmo-full-megatron", {}),
    ("olmo-core-llama", {}),
    ("olmo-core-normalized", {}),
    ("mamba", {}),
    ("ngpt", {}),
    ("deepseek", {"residual_std": "std / sqrt(2 * n_layers)"}),
)
LINEAR = ("deepseek", "gemma", "lingua", "maxtext", "palm", "olmo-normal", "olmo-core-normal", "olmo-core-fan-in")
LOGARITHMIC: tuple[tuple[str, dict[str, str]], ...] = (
    ("torchtitan", {}),
    ("olmo-mitchell", {}),
    ("open-lm", {}),
    ("olmo-core-llama", {"depth": "layer"}),
)


@pytest.mark.parametrize("n_layers", [4, 16, 64])
def test_growth_with_depth(n_layers: int) -> None:
    for name, given in CONSTANT:
        assert growth(name, n_layers, **given) == pytest.approx(1, rel=1e-9), name
    for name in LINEAR:
        assert growth(name, n_layers) == pytest.approx(2 * n_layers, rel=1e-9), name
    for name, given in LOGARITHMIC:
        # two branches a layer, 1/(2(l + 1)) each
        assert growth(name, n_layers, **given) == pytest.approx(harmonic(n_layers), rel=1e-9), name
    # 2N branches of 1/(2(N + 1)) each
    assert growth("lingua", n_layers, factor="global") == pytest.approx(n_layers / (n_layers + 1), rel=1e-6)


@pytest.mark.parametrize("name", ["nanochat", "nanochat-2025"])
def test_nothing_is_added_where_both_output_projections_are_zero(name: str) -> None:
    assert all(entry.distribution == ZERO for entry in plan_of(name).with_role(*RESIDUAL_PROJECTIONS))


@pytest.mark.parametrize("n_layers", [4, 16, 64])
@pytest.mark.parametrize("name", ["torchtitan", "olmo-core-llama"])
def test_a_gated_mlp_is_scaled_twice(name: str, n_layers: int) -> None:
    def branches(depth: str) -> float:
        up, down = (ratios(name, n_layers, role, depth=depth) for role in (Role.MLP_IN, Role.MLP_OUT))
        return math.fsum((one * other) ** 2 for one, other in zip(up, down, strict=True))

    assert branches("total") == pytest.approx(1 / (4 * n_layers), rel=1e-9)  # N times 1/(2N)²
    assert branches("layer") == pytest.approx(sum(0.25 / (k * k) for k in range(1, n_layers + 1)), rel=1e-9)
    assert branches("layer") < math.pi**2 / 24  # the sum of 1/(4k²) over all k


# Choices and parameters.


def found(plan: InitPlan, role: Role) -> Distribution:
    return plan[NAMES[role]].distribution


def test_torchtitan_choices() -> None:
    plan = plan_of("torchtitan", tied=True, depth="total")
    for role in (Role.ATTENTION_OUT, Role.MLP_OUT, Role.MLP_IN, Role.ROUTER):
        assert same(found(plan, role), Normal(0.02 / math.sqrt(6)))
    assert same(found(plan, Role.TOKEN_EMBEDDING), Normal(D))
    assert same(found(plan_of("torchtitan", std=0.04), Role.MLP_OUT), Normal(0.02))  # 0.04 / sqrt(4)


@pytest.mark.parametrize(
    ("factor", "number"), [("disabled", 1.0), ("current", math.sqrt(4)), ("global", math.sqrt(2 * 4))]
)
def test_lingua_keeps_the_bound_of_attention_out(factor: str, number: float) -> None:
    plan = plan_of("lingua", factor=factor)
    assert same(found(plan, Role.ATTENTION_OUT), Truncated(D / number, 3 * number))
    assert same(found(plan, Role.MLP_OUT), Truncated(FF / number, 3.0))
    assert same(found(plan, Role.MLP_IN), cut3(D))
    # sigma without the factor, between the same bounds
    assert plan[NAMES[Role.ATTENTION_OUT]].unscaled_std == pytest.approx(Truncated(D, 3 * number).std, rel=1e-12)


@pytest.mark.parametrize("d_model", [768, 4096, 8192])
def test_lingua_by_width(d_model: int) -> None:
    shape = architecture(d_model=d_model, n_heads=4, d_ff=96)
    plan = make_plan(SCHEMES["lingua"], parameters(shape), sizes(shape), {"factor": "dim"})
    ratio = d_model / 4096
    out, down = (plan[f"blocks.0.{name}.weight"].distribution for name in ("attention.out", "mlp.out"))
    assert same(out, Truncated(d_model**-0.5 / ratio, 3 * ratio))
    assert same(down, Truncated(FF / ratio, 3.0))


def test_lingua_by_width_of_a_narrow_model() -> None:
    """The bound is what the source says; sigma isn't, but so far inside of it a cut normal is a uniform."""
    out = found(plan_of("lingua", factor="dim"), Role.ATTENTION_OUT)
    assert isinstance(out, Truncated)
    assert out.sigma * out.cut == pytest.approx(3 * D, rel=1e-12)
    exact = Truncated(D * 4096 / 32, 3 * 32 / 4096)
    assert out.std == pytest.approx(exact.std, rel=1e-3)
    assert out.kurtosis == pytest.approx(1.8, abs=2e-3)
    assert same(found(plan_of("lingua", factor="dim"), Role.MLP_OUT), cut3(FF * 4096 / 32))


def test_olmo_core_llama_choices() -> None:
    plan = plan_of("olmo-core-llama", depth="layer")
    for role in (Role.ATTENTION_OUT, Role.MLP_OUT, Role.MLP_IN, Role.ROUTER):
        assert same(found(plan, role), cut3(0.01))  # 0.02 / sqrt(2 * 2)
    assert same(found(plan, Role.MLP_GATE), cut3(0.02))
    gate = plan_of("olmo-core-llama", mlp="experts")[NAMES[Role.MLP_GATE]]
    assert same(gate.distribution, cut3(0.02 / math.sqrt(6)))
    assert gate.unscaled_std == pytest.approx(TN3 * 0.02, rel=1e-12)
    assert same(found(plan_of("olmo-core-llama", mlp="experts", depth="layer"), Role.MLP_GATE), cut3(0.01))


def forward(name: str, field: str, tied: bool = False, **given: float | str) -> float:
    scheme, shape = SCHEMES[name], SHAPE.model_copy(update={"tied": tied})
    return evaluate(scheme.forward[field], formula_names(scheme, sizes(shape), plan_of(name, **given).settings))


def test_what_the_schemes_demand_of_the_forward_pass() -> None:
    fields = {name: set(scheme.forward) for name, scheme in SCHEMES.items() if scheme.forward}
    assert fields == {
        "gemma": {"embedding_multiplier", "norm_scale"},
        "maxtext": {"attention_scale", "logit_multiplier"},
        "palm": {"logit_multiplier"},
        "olmo-core-fan-in": {"embedding_multiplier"},
        "nanochat": {"embedding_norm"},
        "nanochat-2025": {"embedding_norm"},
        "modded-nanogpt": {"embedding_norm"},
    }
    for name in ("nanochat", "nanochat-2025", "modded-nanogpt"):
        assert SCHEMES[name].forward["embedding_norm"] == "true"
    assert forward("gemma", "embedding_multiplier") == pytest.approx(math.sqrt(32))
    assert forward("palm", "logit_multiplier") == pytest.approx(D)
    assert forward("maxtext", "attention_scale") == 1
    assert forward("maxtext", "logit_multiplier") == 1
    assert forward("maxtext", "logit_multiplier", tied=True) == pytest.approx(D)
    assert forward("olmo-core-fan-in", "embedding_multiplier", embed_scale=8) == 8
    assert same(found(plan_of("olmo-core-fan-in", embed_scale=8), Role.TOKEN_EMBEDDING), Normal(1 / 8))


def test_gemma_norms_multiply_by_one_plus_weights_of_zero() -> None:
    shape, plan = planned(SHAPE, SCHEMES["gemma"])
    assert shape.norm_scale == "one_plus"
    assert all(entry.distribution == ZERO for entry in plan.with_role(Role.NORM_SCALE))


@pytest.mark.parametrize("name", SCHEMES)
def test_the_reference_transformer_can_do_what_is_demanded(name: str) -> None:
    shape, plan = planned(SHAPE, SCHEMES[name])
    assert set(plan.by_name) == {parameter.name for parameter in parameters(shape)}
    assert shape.embedding_norm == (name in ("nanochat", "nanochat-2025", "modded-nanogpt"))


def test_parameters() -> None:
    assert same(found(plan_of("mamba", branches=1), Role.MLP_OUT), Uniform(FF / math.sqrt(3)))
    assert same(found(plan_of("nanochat", embedding_std=1.0), Role.TOKEN_EMBEDDING), Normal(1.0))
    scaled = plan_of("olmo-full-megatron", std=0.01, embedding_std="std * sqrt(d_model)", cut=2)
    assert same(found(scaled, Role.TOKEN_EMBEDDING), Truncated(0.01 * math.sqrt(32), 2.0))
    assert same(found(scaled, Role.POSITION_EMBEDDING), Truncated(0.01, 2.0))
    assert same(found(scaled, Role.ATTENTION_OUT), Truncated(0.01 / math.sqrt(6), 2.0))
    assert same(found(plan_of("olmo-mitchell", cut=2), Role.MLP_OUT), Truncated(1 / math.sqrt(2 * 96 * 2), 2.0))
    with pytest.raises(UsageError, match="factor is 'curent'; expected one of disabled, current, global, dim"):
        plan_of("lingua", factor="curent")


# Published numbers.


def weight(scheme: str, layer: int, name: str, given: dict[str, float], **fields: int) -> float:
    shape = architecture(**{"n_heads": 1, **fields})
    distribution = make_plan(SCHEMES[scheme], parameters(shape), sizes(shape), given)[f"blocks.{layer}.{name}.weight"]
    return distribution.distribution.std


def test_smollm2() -> None:
    assert scheme_named("smollm") is scheme_named("nanotron")
    assert weight("nanotron", 0, "mlp.input", {}, d_model=576, n_layers=30) == pytest.approx(0.041666666666666664)
    # 1/24 over sqrt(60)
    assert weight("nanotron", 29, "mlp.out", {}, d_model=576, n_layers=30) == pytest.approx(0.00537914, abs=5e-9)
    assert weight("nanotron", 0, "mlp.input", {}, d_model=960, n_layers=32) == pytest.approx(0.03227, abs=5e-6)
    assert weight("nanotron", 0, "mlp.input", {"std": 0.02}, d_model=2048, n_layers=24) == 0.02


def test_numbers_of_well_known_models() -> None:
    # Llama 3 8B by torchtitan: the last of 32 layers has 0.02 / sqrt(64)
    assert weight("torchtitan", 31, "attention.out", {}, d_model=4096, n_layers=32) == pytest.approx(0.0025)
    # OLMo 7B: 1/64; out of layer 31 1/sqrt(2 * 4096 * 32) = 1/512; both cut at 3 sigmas, which leaves 0.9866
    assert weight("olmo-mitchell", 0, "attention.query", {}, d_model=4096, n_layers=32) == pytest.approx(
        0.9866 / 64, rel=1e-4
    )
    assert weight("olmo-mitchell", 31, "attention.out", {}, d_model=4096, n_layers=32) == pytest.approx(
        0.9866 / 512, rel=1e-4
    )
    assert scheme_named("mitchell") is scheme_named("olmo-mitchell")
    # nanochat says std = 1/sqrt(n_embd): 1/sqrt(1280) = 0.0279508
    assert weight("nanochat", 0, "attention.query", {}, d_model=1280) == pytest.approx(0.0279508, abs=5e-8)


# What is said about the schemes.


@pytest.mark.parametrize("scheme", SCHEMES.values(), ids=SCHEMES)
def test_what_is_said(scheme: Scheme) -> None:
    assert scheme_named(scheme.name) is scheme
    assert scheme.name == scheme.name.lower().replace("_", "-")
    assert 0 < len(scheme.summary) <= 110 and not scheme.summary.endswith(".")
    assert scheme.family != "custom" and scheme.depth and not scheme.depth.endswith(".")
    assert "/" in scheme.source or "paper" in scheme.source  # a repository, or what was recalled
    assert all(note.endswith(".") for note in scheme.notes)
