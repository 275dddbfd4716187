"""muP and depth schemes, role by role and multiplier by multiplier, against arithmetic written down here.

Numbers are those of facts/schemes.md (A3, A6), worked out for one shape; none is read from the schemes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import log, prod, sqrt
from typing import Any

import pytest

from initdiag.model import parameters, sizes
from initdiag.schemes import Constant, Distribution, InitPlan, Normal, Parameter, Role, Truncated, Uniform, make_plan
from initdiag.schemes.depth import DEPTH_SCHEMES
from initdiag.schemes.formula import evaluate
from initdiag.schemes.mup import MUP_SCHEMES
from initdiag.schemes.settings import formula_names, settings_of
from tests.small_models import architecture

SCHEMES = {scheme.name: scheme for scheme in (*MUP_SCHEMES, *DEPTH_SCHEMES)}
FIELDS = {"vocab_size": 97, "context": 24, "d_model": 48, "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "d_ff": 80}
# inputs × outputs of SHAPE: q 48 × 64, k and v 48 × 32, out 64 × 48, gate and in 48 × 80, out 80 × 48, head 48 × 97
SHAPE = architecture(**FIELDS, n_layers=3, gated=True, tied=False)
ALL = (
    *parameters(SHAPE),
    # and what SHAPE has not
    Parameter("router", (8, 48), Role.ROUTER, 48, 1),
    Parameter("router_bias", (8,), Role.ROUTER_BIAS, 48, 1),
    Parameter("sink", (4,), Role.ATTENTION_SINK, 1, 1),
    Parameter("gain", (48,), Role.MULTIPLIER, 1, 1),
)
ROLES = tuple(role for role in Role if role is not Role.OTHER)
WEIGHTS = ("token", "position", "query", "key", "value", "out", "in", "gate", "mlp_out", "head", "router")
SHORT = dict(
    zip(
        WEIGHTS,
        (
            Role.TOKEN_EMBEDDING,
            Role.POSITION_EMBEDDING,
            Role.ATTENTION_QUERY,
            Role.ATTENTION_KEY,
            Role.ATTENTION_VALUE,
            Role.ATTENTION_OUT,
            Role.MLP_IN,
            Role.MLP_GATE,
            Role.MLP_OUT,
            Role.LM_HEAD,
            Role.ROUTER,
        ),
        strict=True,
    )
)
PLAIN = {
    Role.NORM_SCALE: Constant(1.0),
    Role.NORM_BIAS: Constant(0.0),
    Role.BIAS: Constant(0.0),
    Role.ROUTER_BIAS: Constant(0.0),
    Role.ATTENTION_SINK: Constant(0.0),
    Role.MULTIPLIER: Constant(1.0),
}


def sizes_of(n_layers: int = 3) -> dict[str, float]:
    return {**sizes(SHAPE), "n_layers": float(n_layers)}


def plan_of(scheme: str, n_layers: int = 3, **given: float | str) -> InitPlan:
    return make_plan(SCHEMES[scheme], ALL, sizes_of(n_layers), given)


def std_of(scheme: str, role: str, n_layers: int = 3, **given: float | str) -> float:
    weight = next(one for one in ALL if one.role is SHORT[role])
    return make_plan(SCHEMES[scheme], (weight,), sizes_of(n_layers), given).entries[0].distribution.std


def forward_of(scheme: str, n_layers: int = 3, **given: float | str) -> dict[str, str | list[float]]:
    """The forward fields of a scheme: words as they are, formulas for each of the 2N branches."""
    known = sizes_of(n_layers)
    settings = settings_of(SCHEMES[scheme], known, given)
    answers: dict[str, str | list[float]] = {}
    for field, text in SCHEMES[scheme].forward.items():
        if field in ("placement", "inner_norm", "final_norm", "branch_gain"):
            answers[field] = text
            continue
        answers[field] = [
            evaluate(text, formula_names(SCHEMES[scheme], known, settings, (k - 1) // 2, k))
            for k in range(1, 2 * n_layers + 1)
        ]
    return answers


def normal(*stds: float) -> dict[Role, Distribution]:
    """In the order of WEIGHTS."""
    return {SHORT[name]: Normal(std) for name, std in zip(WEIGHTS, stds, strict=True)}


M = 48 / 256  # how much wider SHAPE is than the default base model
S, HIDDEN = 0.02, 0.02 / sqrt(M)
ROOT = sqrt(2 * 3)  # √(2N)
D = 1 / sqrt(48)


def fairseq(attention: float = 1, mlp: float = 1, qk: float = 1) -> dict[Role, Distribution]:
    """Xavier-uniform: √(6 / (in + out)), with gain 1/√2 for q, k, v; times factors of depth."""
    return {
        **{SHORT[name]: Normal(D) for name in ("token", "position", "head")},
        Role.ATTENTION_QUERY: Uniform(qk * sqrt(6 / 112) / sqrt(2)),
        Role.ATTENTION_KEY: Uniform(qk * sqrt(6 / 80) / sqrt(2)),
        Role.ATTENTION_VALUE: Uniform(attention * sqrt(6 / 80) / sqrt(2)),
        Role.ATTENTION_OUT: Uniform(attention * sqrt(6 / 112)),
        Role.MLP_IN: Uniform(mlp * sqrt(6 / 128)),
        Role.MLP_GATE: Uniform(mlp * sqrt(6 / 128)),
        Role.MLP_OUT: Uniform(mlp * sqrt(6 / 128)),
        Role.ROUTER: Uniform(sqrt(6 / 56)),
    }


def torchscale(factor: float) -> dict[Role, Distribution]:
    """Attention as in fairseq, MLP U(1 / √fan_in), positions like tokens."""
    return {
        **fairseq(attention=factor),
        Role.POSITION_EMBEDDING: Normal(D),
        Role.MLP_IN: Uniform(factor / sqrt(48)),
        Role.MLP_GATE: Uniform(factor / sqrt(48)),
        Role.MLP_OUT: Uniform(factor / sqrt(80)),
        Role.ROUTER: Uniform(1 / sqrt(48)),
    }


NINE = (9 * 3) ** -0.25  # T-Fixup
EXPECTED: dict[str, dict[Role, Distribution]] = {
    "mup": normal(S, S, 0, *[HIDDEN] * 6, 0, S / M) | {Role.ATTENTION_QUERY: Constant(0), Role.LM_HEAD: Constant(0)},
    "megatron-mup": normal(
        S, S, HIDDEN, HIDDEN, HIDDEN, S / (ROOT * sqrt(M)), HIDDEN, HIDDEN, S / (ROOT * sqrt(M)), S, HIDDEN
    )
    | {Role.ROUTER_BIAS: Normal(HIDDEN)},
    "cerebras": {
        SHORT[name]: Truncated(0.02 / sqrt(6) if name in ("out", "mlp_out") else 0.02, 2.0) for name in WEIGHTS
    },
    "cerebras-mup": {
        **{SHORT[name]: Truncated(0.08, 2.0) for name in ("token", "position", "head", "router")},
        **{SHORT[name]: Truncated(0.08 / sqrt(M), 2.0) for name in ("query", "key", "value", "in", "gate")},
        **{SHORT[name]: Truncated(0.08 / sqrt(6 * M), 2.0) for name in ("out", "mlp_out")},
    },
    "eleuther-mup": normal(S, S, HIDDEN, HIDDEN, HIDDEN, S / sqrt(6 * M), HIDDEN, HIDDEN, S / sqrt(6 * M), S, HIDDEN),
    "completep": normal(S, S, *[HIDDEN] * 7, S, HIDDEN),
    "depth-mup": normal(S, S, *[HIDDEN] * 7, S, HIDDEN),
    "u-mup": normal(1, 1, D, D, D, 1 / 8, D, D, 1 / sqrt(80), 1 / 48, D),
    "minicpm": normal(*[0.1 / sqrt(48 / 256)] * 11),
    # fan_out < fan_in for keys and values (32 / 48), out (48 / 64), mlp_out (48 / 80) and router (8 / 48)
    "spectral": normal(
        1,
        1,
        D,
        sqrt(32 / 48) * D,
        sqrt(32 / 48) * D,
        sqrt(48 / 64) / 8,
        D,
        D,
        sqrt(48 / 80) / sqrt(80),
        D,
        sqrt(8 / 48) * D,
    ),
    "deepnorm": torchscale(1 / 24**0.25),
    "sub-ln": torchscale(sqrt(log(6))),
    "admin": fairseq(),
    # the value matrix, of gain 1/√2, is also multiplied by √2
    "t-fixup": fairseq(NINE, NINE)
    | {Role.TOKEN_EMBEDDING: Normal(NINE * D), Role.ATTENTION_VALUE: Uniform(NINE * sqrt(6 / 80))},
    "fixup": fairseq(6 ** (-1 / 6), 6**-0.5, 6 ** (-1 / 6))
    | dict.fromkeys((Role.ATTENTION_OUT, Role.MLP_OUT, Role.LM_HEAD), Constant(0)),
    "rezero": {
        **{SHORT[name]: Normal(0.02) for name in ("token", "position", "head")},
        Role.ATTENTION_QUERY: Uniform(sqrt(3 / 112)),
        Role.ATTENTION_KEY: Uniform(sqrt(3 / 80)),
        Role.ATTENTION_VALUE: Uniform(sqrt(3 / 80)),
        Role.ATTENTION_OUT: Uniform(sqrt(6 / 112)),
        **{SHORT[name]: Uniform(sqrt(6 / 128)) for name in ("in", "gate", "mlp_out")},
        Role.ROUTER: Uniform(sqrt(6 / 56)),
        Role.MULTIPLIER: Constant(0),
    },
    "skipinit": normal(
        0.02, 0.02, *[sqrt(2 / 48)] * 3, sqrt(2 / 64), *[sqrt(2 / 48)] * 2, sqrt(2 / 80), 0.02, D * sqrt(2)
    )
    | {Role.MULTIPLIER: Constant(0)},
    "layerscale": normal(*[0.02] * 11) | {Role.MULTIPLIER: Constant(0.0001)},
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_role(scheme: str) -> None:
    expected = {**PLAIN, **EXPECTED[scheme]}
    found = plan_of(scheme)
    assert {entry.parameter.role for entry in found.entries} == set(ROLES) == set(expected)
    for entry in found.entries:
        wanted = expected[entry.parameter.role]
        assert type(entry.distribution) is type(wanted), entry.parameter.name
        assert vars(entry.distribution) == pytest.approx(vars(wanted), rel=1e-12), entry.parameter.name


def tau_of(branch: int, n_layers: int, attention: float, mlp: float) -> float:
    """facts/schemes.md: tau² = a² / (L_res / 2 + n_attn · a_attn² + n_mlp · a_mlp²), counting the branches before."""
    before = ["attention" if k % 2 else "mlp" for k in range(1, branch)]
    own = attention if branch % 2 else mlp
    counted = before.count("attention") * attention**2 + before.count("mlp") * mlp**2
    return own / sqrt(2 * n_layers / 2 + counted)


def weights_of(branches: int, **alphas: float) -> tuple[list[float], list[float]]:
    taus = [tau_of(k, branches // 2, **alphas) for k in range(1, branches + 1)]
    return [1 / sqrt(1 + tau**2) for tau in taus], [tau / sqrt(1 + tau**2) for tau in taus]


NO_NORMS = {"placement": "none", "final_norm": "false"}
FORWARD: dict[str, Mapping[str, str | float | list[float]]] = {
    "mup": {"attention_scale": 8 / 16, "logit_multiplier": 256 / 48},
    "megatron-mup": {"attention_scale": 1 / 16, "logit_multiplier": 256 / 48},
    "cerebras": {},
    "cerebras-mup": {"embedding_multiplier": 10, "attention_scale": 1 / 16, "logit_multiplier": 256 / 48},
    "eleuther-mup": {"embedding_multiplier": 1, "attention_scale": 1 / 16, "logit_multiplier": 256 / 48},
    "completep": {
        "embedding_multiplier": 1,
        "attention_scale": 1 / 16,
        "logit_multiplier": 256 / 48,
        "residual_multiplier": 2 / 3,
    },
    "depth-mup": {
        "embedding_multiplier": 1,
        "attention_scale": 1 / 16,
        "logit_multiplier": 256 / 48,
        "residual_multiplier": sqrt(2 / 3),
    },
    "u-mup": {
        "attention_scale": 1 / 16,
        "stream_multiplier": weights_of(6, attention=1, mlp=1)[0],
        "residual_multiplier": weights_of(6, attention=1, mlp=1)[1],
        "logit_multiplier": 1,
    },
    "minicpm": {"embedding_multiplier": 12, "residual_multiplier": 1.4 / sqrt(3), "logit_multiplier": 256 / 48},
    "spectral": {},
    "deepnorm": {"placement": "post", "stream_multiplier": 6**0.25},
    "sub-ln": {"placement": "pre", "inner_norm": "true"},
    "admin": {"placement": "post", "stream_multiplier": sqrt(7 / log(7) - 1), "embedding_multiplier": sqrt(48)},
    "t-fixup": {**NO_NORMS, "embedding_multiplier": sqrt(48)},
    "fixup": {**NO_NORMS, "branch_gain": "scalar", "embedding_multiplier": sqrt(48)},
    "rezero": {**NO_NORMS, "branch_gain": "scalar"},
    "skipinit": {**NO_NORMS, "branch_gain": "scalar"},
    "layerscale": {"placement": "pre", "branch_gain": "vector"},
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_forward_field(scheme: str) -> None:
    found, expected = forward_of(scheme), FORWARD[scheme]
    assert set(found) == set(expected)
    for field, wanted in expected.items():
        if isinstance(wanted, str):
            assert found[field] == wanted, field
        else:
            numbers = wanted if isinstance(wanted, list) else [float(wanted)] * 6
            assert found[field] == pytest.approx(numbers, rel=1e-12), field


UNSCALED: dict[str, dict[str, float]] = {  # stds without the depth factor, where a weight has one
    "megatron-mup": {"out": HIDDEN, "mlp_out": HIDDEN},
    "cerebras": {"out": Truncated(0.02, 2).std, "mlp_out": Truncated(0.02, 2).std},
    "cerebras-mup": {"out": Truncated(0.08 / sqrt(M), 2).std, "mlp_out": Truncated(0.08 / sqrt(M), 2).std},
    "eleuther-mup": {"out": HIDDEN, "mlp_out": HIDDEN},
    **{
        scheme: {
            "value": sqrt(1 / 80),
            "out": sqrt(2 / 112),
            "in": 1 / sqrt(3 * 48),
            "gate": 1 / sqrt(3 * 48),
            "mlp_out": 1 / sqrt(3 * 80),
        }
        for scheme in ("deepnorm", "sub-ln")
    },
    "t-fixup": {
        "value": sqrt(2 / 80),
        "out": sqrt(2 / 112),
        "in": sqrt(2 / 128),
        "gate": sqrt(2 / 128),
        "mlp_out": sqrt(2 / 128),
        "token": D,
    },
    "fixup": {
        "query": sqrt(1 / 112),
        "key": sqrt(1 / 80),
        "value": sqrt(1 / 80),
        "in": sqrt(2 / 128),
        "gate": sqrt(2 / 128),
    },
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_unscaled_is_the_std_without_the_factor_of_depth(scheme: str) -> None:
    expected = {SHORT[name]: std for name, std in UNSCALED.get(scheme, {}).items()}
    for entry in plan_of(scheme).entries:
        wanted = expected.get(entry.parameter.role, entry.distribution.std)
        assert entry.unscaled_std == pytest.approx(wanted, rel=1e-12), entry.parameter.name


def number(scheme: str, field: str, n_layers: int) -> float:
    value = forward_of(scheme, n_layers).get(field, [1.0])[0]
    assert isinstance(value, float)
    return value


@pytest.mark.parametrize(
    ("scheme", "ratio"),
    [
        ("mup", 4),
        ("spectral", 4),
        ("cerebras", 1),
        ("megatron-mup", 1),
        ("cerebras-mup", 1),
        ("eleuther-mup", 1),
        ("minicpm", 1),
        ("depth-mup", 1),
        ("completep", 1 / 4),
        ("sub-ln", 4 * log(64) / log(16)),
        ("layerscale", 4),
    ],
)
def test_sum_of_branch_variances_from_8_to_32_layers(scheme: str, ratio: float) -> None:
    """What normed inputs leave: 2N branches, each in proportion to (output projection · multiplier)²."""
    for role in ("out", "mlp_out"):
        small, large = (
            2 * n * (std_of(scheme, role, n) * number(scheme, "residual_multiplier", n)) ** 2 for n in (8, 32)
        )
        assert large / small == pytest.approx(ratio, rel=1e-12)


def test_deepnorm_and_t_fixup_scale_both_matrices_of_a_branch() -> None:
    def share(scheme: str, n_layers: int, *roles: str) -> float:
        weights = prod(std_of(scheme, role, n_layers) ** 2 for role in roles)
        return weights / number(scheme, "stream_multiplier", n_layers) ** 2

    for roles in (("value", "out"), ("in", "mlp_out")):
        # β⁴ / α² = 1 / (8N · √(2N)): 4^-1.5 from 8 to 32 layers; and 1 / (9N)
        assert share("deepnorm", 32, *roles) / share("deepnorm", 8, *roles) == pytest.approx(1 / 8, rel=1e-12)
        assert share("t-fixup", 32, *roles) / share("t-fixup", 8, *roles) == pytest.approx(1 / 4, rel=1e-12)


def test_deepnorm_of_the_paper_s_examples() -> None:
    # decoder-only: α = (2N)^1/4, β = (8N)^-1/4; N = 8 gives 2 and 8^-1/2
    assert number("deepnorm", "stream_multiplier", 8) == pytest.approx(2)
    assert std_of("deepnorm", "in", 8) == pytest.approx(1 / sqrt(3 * 48) / sqrt(8))


def test_admin_s_share_of_a_branch_is_logarithmic() -> None:
    # omega² + 1 = (2N + 1) / ln(2N + 1)
    for n_layers in (1, 12, 50):
        omega = number("admin", "stream_multiplier", n_layers)
        assert (omega**2 + 1) * log(2 * n_layers + 1) == pytest.approx(2 * n_layers + 1)


@pytest.mark.parametrize(("residual", "ratio"), [(1.0, 1.0), (0.5, 1.0), (1.0, 0.25), (2.0, 3.0)])
@pytest.mark.parametrize("n_layers", [1, 3, 12])
def test_u_mup_keeps_variance_1_and_shares_it_as_asked(residual: float, ratio: float, n_layers: int) -> None:
    """Run x = stream · x + residual · branch on coefficients: what each branch counts in the end."""
    forward = forward_of("u-mup", n_layers, residual_alpha=residual, attention_ratio=ratio)
    counts = [1.0]
    for stream, branch in zip(forward["stream_multiplier"], forward["residual_multiplier"], strict=True):
        assert isinstance(stream, float) and isinstance(branch, float)
        counts = [count * stream for count in counts] + [branch]
    squares = [count**2 for count in counts]
    assert sum(squares) == pytest.approx(1, rel=1e-12)
    embedding, attention, mlp = squares[0], squares[1::2], squares[2::2]
    # every attention the same, every MLP the same; their mean is residual² of the embedding, attention ratio² of MLP
    assert attention == pytest.approx([attention[0]] * n_layers, rel=1e-12)
    assert mlp == pytest.approx([mlp[0]] * n_layers, rel=1e-12)
    assert (sum(attention) + sum(mlp)) / 2 == pytest.approx(residual**2 * embedding, rel=1e-12)
    assert sum(attention) == pytest.approx(ratio**2 * sum(mlp), rel=1e-12)


def test_u_mup_has_the_taus_of_the_facts() -> None:
    mlp = 0.5 * sqrt(2 / (1 + 3**2))
    streams, branches = weights_of(10, attention=3 * mlp, mlp=mlp)
    found = forward_of("u-mup", 5, residual_alpha=0.5, attention_ratio=3)
    assert found["stream_multiplier"] == pytest.approx(streams, rel=1e-12)
    assert found["residual_multiplier"] == pytest.approx(branches, rel=1e-12)


def test_u_mup_gains_are_in_the_output_projections() -> None:
    assert std_of("u-mup", "out", attention_gain=3) == pytest.approx(3 / 8)
    assert std_of("u-mup", "mlp_out", activation_gain="2 ** 0.75") == pytest.approx(2**0.75 / sqrt(80))


def test_mup_choices() -> None:
    plan = plan_of("mup", readout="normal", query="normal")
    assert plan.with_role(Role.LM_HEAD)[0].distribution == Normal(0.02)
    assert plan.with_role(Role.ATTENTION_QUERY)[0].distribution.std == pytest.approx(HIDDEN)
    assert plan_of("mup").settings["readout"] == plan_of("mup").settings["query"] == "zero"  # as the README recommends


@pytest.mark.parametrize(
    ("scheme", "given", "residual"),
    [
        ("mup", {"readout": "normal", "query": "normal", "attention_multiplier": "sqrt(head_dim)"}, 0.02),
        ("megatron-mup", {"attention_multiplier": 4}, 0.02 / sqrt(6)),
        ("eleuther-mup", {}, 0.02 / sqrt(6)),
        ("completep", {"base_depth": 3}, 0.02),
    ],
)
def test_mup_at_its_base_width_is_the_standard_parametrization(
    scheme: str, given: dict[str, Any], residual: float
) -> None:
    given = {"base_width": 48, **given}
    for name in WEIGHTS:
        wanted = residual if name in ("out", "mlp_out") else 0.02
        assert std_of(scheme, name, **given) == pytest.approx(wanted, rel=1e-12), name
    forward = forward_of(scheme, **given)
    assert forward["logit_multiplier"] == [1.0] * 6
    assert forward.get("residual_multiplier", [1.0] * 6) == [1.0] * 6
    if "attention_multiplier" in given:
        assert forward["attention_scale"] == [1 / sqrt(16)] * 6


def test_cerebras_mup_at_its_base_width_is_cerebras() -> None:
    plan = plan_of("cerebras-mup", base_width=48, std=0.02)
    assert [one.distribution for one in plan.entries] == [one.distribution for one in plan_of("cerebras").entries]


def test_cerebras_111m_has_the_number_of_its_config() -> None:
    law = plan_of("cerebras", n_layers=10).with_role(Role.MLP_OUT)[0].distribution
    assert isinstance(law, Truncated)
    assert law.sigma == pytest.approx(0.004472135954999579, rel=1e-15)
    assert law.sigma * law.cut == pytest.approx(0.008944271909999158, rel=1e-15)


def test_cerebras_mup_111m_by_hand() -> None:
    """Width 768 of base 256, 10 layers: m = 3, and √(2N · m) = √60."""
    shape = architecture(**{**FIELDS, "d_model": 768}, n_layers=10)
    plan = make_plan(SCHEMES["cerebras-mup"], parameters(shape), sizes(shape))
    sigmas = {one.parameter.role: vars(one.distribution).get("sigma") for one in plan.entries}
    assert sigmas[Role.ATTENTION_KEY] == pytest.approx(0.046188021535170064)
    assert sigmas[Role.ATTENTION_OUT] == sigmas[Role.MLP_OUT] == pytest.approx(0.010327955589886445)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_weights_need_nothing_that_is_unknown_of_a_user_s_own_module(scheme: str) -> None:
    known = {"d_model": 48.0, "n_layers": 3.0, "vocab_size": 97.0}
    plan = make_plan(SCHEMES[scheme], ALL, known)
    assert [one.distribution for one in plan.entries] == [one.distribution for one in plan_of(scheme).entries]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_said_about_it(scheme: str) -> None:
    said = SCHEMES[scheme]
    assert set(said.roles) == set(ROLES)
    assert said.family == ("muP" if said in MUP_SCHEMES else "Depth")
    assert 0 < len(said.summary) <= 110 and not said.summary.endswith(".")
    assert said.source and said.depth.endswith(".") and all(note.endswith(".") for note in said.notes)
    assert not set(said.settable) & set(sizes(SHAPE))  # a parameter would hide the size
