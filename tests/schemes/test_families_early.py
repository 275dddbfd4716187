"""PyTorch, the first Transformers, GPT-2, Megatron and NeoX: every role of every scheme, and their growth, by hand.

The expected numbers are arithmetic on the sizes of one shape, written from the sources in facts/schemes.md (A1 to A3);
nothing is read from the data under test.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from math import sqrt
from typing import Any

import pytest
import torch
from torch import nn

from initdiag.model import parameters, sizes
from initdiag.schemes import (
    SCHEMES,
    Constant,
    Distribution,
    InitPlan,
    Normal,
    Orthogonal,
    Parameter,
    Role,
    Truncated,
    Uniform,
    make_plan,
    scheme_named,
)
from initdiag.schemes.depth import DEPTH_SCHEMES
from initdiag.schemes.formula import evaluate
from initdiag.schemes.gpt2 import GPT2_SCHEMES
from initdiag.schemes.llama import LLAMA_SCHEMES
from initdiag.schemes.megatron import MEGATRON_SCHEMES
from initdiag.schemes.mup import MUP_SCHEMES
from initdiag.schemes.olmo import OLMO_SCHEMES
from initdiag.schemes.original import ORIGINAL_SCHEMES
from initdiag.schemes.pytorch import PYTORCH_SCHEMES
from initdiag.schemes.speedrun import SPEEDRUN_SCHEMES
from tests.sampling import assert_near, relative_error_of_std
from tests.small_models import architecture

EARLY = (*PYTORCH_SCHEMES, *ORIGINAL_SCHEMES, *GPT2_SCHEMES, *MEGATRON_SCHEMES)
LATE = (*LLAMA_SCHEMES, *OLMO_SCHEMES, *SPEEDRUN_SCHEMES, *MUP_SCHEMES, *DEPTH_SCHEMES)
NAMES = [scheme.name for scheme in EARLY]

# no two sizes are alike: queries are 4 × 12 = 48 wide, keys and values 2 × 12 = 24, with d_model 32
SHAPE = architecture(
    vocab_size=97, context=20, d_model=32, n_layers=3, n_heads=4, n_kv_heads=2, head_dim=12, d_ff=88, gated=True,
    tied=False,
)  # fmt: skip
# role -> (fan_in, fan_out)
FANS = {
    Role.TOKEN_EMBEDDING: (32, 97),
    Role.POSITION_EMBEDDING: (32, 20),
    Role.ATTENTION_QUERY: (32, 48),
    Role.ATTENTION_KEY: (32, 24),
    Role.ATTENTION_VALUE: (32, 24),
    Role.ATTENTION_OUT: (48, 32),
    Role.MLP_IN: (32, 88),
    Role.MLP_GATE: (32, 88),
    Role.MLP_OUT: (88, 32),
    Role.ROUTER: (32, 6),
    Role.LM_HEAD: (32, 97),
}
QKV = (Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE)
RESIDUAL = (Role.ATTENTION_OUT, Role.MLP_OUT)
EMBEDDINGS = (Role.TOKEN_EMBEDDING, Role.POSITION_EMBEDDING)
# what the reference Transformer of SHAPE lacks; bias and norm parameters come from it
BESIDES = (
    Parameter("router.weight", (6, 32), Role.ROUTER, 32, layer=1),
    Parameter("router.bias", (6,), Role.ROUTER_BIAS, 32, layer=1),
    Parameter("sinks", (4,), Role.ATTENTION_SINK, 1, layer=1),
    Parameter("gain", (32,), Role.MULTIPLIER, 1, layer=1),
)

Answers = dict[Role, Distribution | Callable[[int], Distribution]]  # a function of the fan_in, where that differs


def matrices(answer: Callable[[int, int], Distribution]) -> Answers:
    """Ask about every matrix and embedding by its fans; the rest is what nearly all schemes agree on."""
    return {
        **{role: answer(fan_in, fan_out) for role, (fan_in, fan_out) in FANS.items()},
        Role.NORM_SCALE: Constant(1),
        **dict.fromkeys((Role.NORM_BIAS, Role.BIAS, Role.ROUTER_BIAS, Role.ATTENTION_SINK), Constant(0)),
        Role.MULTIPLIER: Constant(1),
    }


def each(roles: tuple[Role, ...], distribution: Distribution | Callable[[int], Distribution]) -> Answers:
    return dict.fromkeys(roles, distribution)


def small(std: float, residual: float | None = None) -> Answers:
    """N(std), and the residual projections N(residual)."""
    return {**matrices(lambda *_: Normal(std)), **each(RESIDUAL, Normal(std if residual is None else residual))}


def xavier(fan_in: int, fan_out: int) -> Distribution:
    return Uniform(sqrt(6 / (fan_in + fan_out)))


def cut_fan_in(fan_in: int, _: int) -> Distribution:
    return Truncated(1 / sqrt(fan_in), 2)


def t5(dense: Callable[[int, int], Distribution], head: Distribution) -> Answers:
    return {
        **matrices(dense),
        Role.ATTENTION_QUERY: Normal(1 / sqrt(32 * 12)),
        **each((Role.ATTENTION_KEY, Role.ATTENTION_VALUE), Normal(1 / sqrt(32))),
        Role.ATTENTION_OUT: Normal(1 / sqrt(4 * 12)),
        Role.LM_HEAD: head,
        **each(EMBEDDINGS, Normal(1)),
    }


LINEAR_BIASES: Answers = {Role.BIAS: lambda fan_in: Uniform(1 / sqrt(fan_in)), Role.ROUTER_BIAS: Uniform(1 / sqrt(32))}
SMALL_INIT = sqrt(2 / (5 * 32))
GPT2_RESIDUAL = 0.02 / sqrt(6)  # 2N = 6

EXPECTED: dict[str, Answers] = {
    "default": {
        **matrices(lambda fan_in, _: Uniform(1 / sqrt(fan_in))),
        **LINEAR_BIASES,
        **each(EMBEDDINGS, Normal(1)),
    },
    "torch-transformer": {
        **matrices(xavier),
        **each(QKV, Uniform(sqrt(3) / sqrt(2 * 32))),  # std 1/√(2d)
        **LINEAR_BIASES,
        Role.LM_HEAD: Uniform(1 / sqrt(32)),
        **each(EMBEDDINGS, Normal(1)),
    },
    "xavier-uniform": matrices(xavier),
    "xavier-normal": matrices(lambda fan_in, fan_out: Normal(sqrt(2 / (fan_in + fan_out)))),
    "kaiming-uniform": matrices(lambda fan_in, _: Uniform(sqrt(6 / fan_in))),
    "kaiming-normal": matrices(lambda fan_in, _: Normal(sqrt(2 / fan_in))),
    "orthogonal": {
        **matrices(lambda fan_in, fan_out: Orthogonal(1, max(fan_in, fan_out))),
        **each(EMBEDDINGS, Normal(1)),
    },
    "t2t": {**matrices(xavier), **each((Role.TOKEN_EMBEDDING, Role.LM_HEAD), Normal(1 / sqrt(32)))},
    "t5": t5(cut_fan_in, Truncated(1 / sqrt(32), 2)),
    "t5-hf": t5(lambda fan_in, _: Normal(1 / sqrt(fan_in)), Normal(1)),
    "bert": matrices(lambda *_: Truncated(0.02, 2)),
    "gpt2": small(0.02),
    "gpt2-release": {**small(0.02), Role.POSITION_EMBEDDING: Normal(0.01)},
    "scaled": small(0.02, GPT2_RESIDUAL),
    "llama2c": {**small(0.02), **each((Role.ATTENTION_OUT, Role.MLP_IN), Normal(GPT2_RESIDUAL))},
    "transformerlens": small(0.8 / sqrt(32)),
    "zero-residual": {**small(0.02), **each(RESIDUAL, Constant(0))},
    "megatron": {**small(0.02, GPT2_RESIDUAL), Role.ROUTER_BIAS: Normal(0.02)},
    "megatron-turing": small(sqrt(1 / 96), sqrt(1 / 96) / sqrt(6)),
    "bigscience": small(SMALL_INIT, SMALL_INIT / sqrt(6)),
    "bloom": small(0.00482197968631537, 0.00482197968631537 / sqrt(6)),
    "opt": small(0.006, 0.006 / sqrt(6)),
    "mpt": {
        **matrices(lambda fan_in, _: Normal(sqrt(2 / fan_in))),
        Role.ATTENTION_OUT: Normal(sqrt(2 / 48) / sqrt(6)),
        Role.MLP_OUT: Normal(sqrt(2 / 88) / sqrt(6)),
    },
    "small-init": {
        **small(SMALL_INIT),
        **each((Role.MLP_IN, Role.MLP_GATE, Role.MLP_OUT), Normal(sqrt(2 / (88 + 32)))),
        **each((*EMBEDDINGS, Role.LM_HEAD), Normal(1 / sqrt(32))),
    },
    "wang": small(SMALL_INIT, 2 / (3 * sqrt(32))),
    "tinyllama": small(SMALL_INIT, 1 / (3 * sqrt(32))),
    "neox-single-residual": small(0.02, 0.02 / sqrt(3)),
    "neox-orthogonal": {
        **matrices(lambda fan_in, fan_out: Orthogonal(sqrt(2), max(fan_in, fan_out))),
        Role.ATTENTION_OUT: Orthogonal(sqrt(2 / 3), 48),
        Role.MLP_OUT: Orthogonal(sqrt(2 / 3), 88),
    },
    "gptj": {
        **matrices(cut_fan_in),
        **each(RESIDUAL, Truncated(2 / (3 * sqrt(32)), 2)),
        Role.TOKEN_EMBEDDING: Truncated(1 / sqrt(97), 2),
        Role.POSITION_EMBEDDING: Truncated(0.02, 2),
    },
}


def plan_of(name: str, **given: float) -> InitPlan:
    return make_plan(SCHEMES[name], (*parameters(SHAPE), *BESIDES), sizes(SHAPE), given)


def numbers(distribution: Distribution) -> list[float]:
    match distribution:
        case Normal(std):
            return [std]
        case Uniform(bound):
            return [bound]
        case Truncated(sigma, cut):
            return [sigma, cut]
        case Orthogonal(gain, longer):
            return [gain, longer]
        case _:
            assert isinstance(distribution, Constant)
            return [distribution.value]


def assert_same(found: Distribution, expected: Distribution, where: str) -> None:
    assert type(found) is type(expected), where
    assert numbers(found) == pytest.approx(numbers(expected), rel=1e-12), where


def test_no_scheme_is_forgotten() -> None:
    assert sorted(EXPECTED) == sorted(NAMES)


@pytest.mark.parametrize("name", EXPECTED)
def test_every_role_by_hand(name: str) -> None:
    plan = plan_of(name)
    assert {entry.parameter.role for entry in plan.entries} == set(EXPECTED[name]) == set(Role) - {Role.OTHER}
    for entry in plan.entries:
        expected = EXPECTED[name][entry.parameter.role]
        if not isinstance(expected, Distribution):
            expected = expected(entry.parameter.fan_in)
        assert_same(entry.distribution, expected, entry.parameter.name)


def test_experts_are_drawn_one_by_one() -> None:
    """Of a stack (experts, outputs, inputs) the fans are those of one expert."""
    experts = (
        Parameter("in", (6, 40, 32), Role.MLP_IN, 32, layer=0),
        Parameter("out", (6, 32, 40), Role.MLP_OUT, 40, layer=0),
    )

    def drawn(name: str) -> list[Distribution]:
        return [entry.distribution for entry in make_plan(SCHEMES[name], experts, sizes(SHAPE)).entries]

    for found in drawn("xavier-uniform"):
        assert_same(found, Uniform(sqrt(6 / 72)), "xavier")
    for found in drawn("orthogonal"):
        assert_same(found, Orthogonal(1, 40), "orthogonal")
    for found in drawn("small-init"):
        assert_same(found, Normal(sqrt(2 / 72)), "small init")
    for found, expected in zip(drawn("megatron"), (0.02, 0.02 / sqrt(6)), strict=True):
        assert_same(found, Normal(expected), "megatron")


# --- depth


def unscaled(name: str) -> dict[Role, float]:
    """The std that the depth factor of a scheme stands on."""
    match name:
        case "scaled" | "megatron" | "neox-single-residual":
            return dict.fromkeys(RESIDUAL, 0.02)
        case "llama2c":
            return dict.fromkeys((Role.ATTENTION_OUT, Role.MLP_IN), 0.02)
        case "megatron-turing":
            return dict.fromkeys(RESIDUAL, sqrt(1 / 96))
        case "bloom":
            return dict.fromkeys(RESIDUAL, 0.00482197968631537)
        case "opt":
            return dict.fromkeys(RESIDUAL, 0.006)
        case "bigscience" | "wang" | "tinyllama":
            return dict.fromkeys(RESIDUAL, SMALL_INIT)
        case "mpt":
            return {Role.ATTENTION_OUT: sqrt(2 / 48), Role.MLP_OUT: sqrt(2 / 88)}
        case "neox-orthogonal":  # an orthogonal matrix of entries gain / √longer
            return {Role.ATTENTION_OUT: sqrt(2 / 48), Role.MLP_OUT: sqrt(2 / 88)}
        case "gptj":
            return dict.fromkeys(RESIDUAL, Truncated(1 / sqrt(32), 2).std)
        case _:
            return {}


@pytest.mark.parametrize("name", NAMES)
def test_the_unscaled_std_is_the_std_without_the_depth_factor(name: str) -> None:
    expected = unscaled(name)
    for entry in plan_of(name).entries:
        std = expected.get(entry.parameter.role, entry.distribution.std)
        assert entry.unscaled_std == pytest.approx(std, rel=1e-12), entry.parameter.name


# Σ over the 2N branches of (std / unscaled std)², and a word of the scheme's own promise
CONSTANT, GROWS, FALLS = "constant|stays", "grows like N", "falls like 1/N"
GROWTH: dict[str, tuple[Callable[[int], float], str]] = {
    **dict.fromkeys(NAMES, (lambda n: 2 * n, GROWS)),
    **dict.fromkeys(
        ("scaled", "llama2c", "megatron", "megatron-turing", "bigscience", "bloom", "opt", "mpt"),
        (lambda _: 1, CONSTANT),
    ),
    **dict.fromkeys(("neox-single-residual", "neox-orthogonal"), (lambda _: 2, CONSTANT)),
    "wang": (lambda n: 20 / n, FALLS),  # 2N · ((2 / (N√d)) / √(2 / 5d))² = 2N · 10 / N²
    "tinyllama": (lambda n: 5 / n, FALLS),
    "gptj": (lambda n: 8 / n, FALLS),  # 2N · (2 / N)²
    "zero-residual": (lambda _: 0, "add nothing"),
}


def squared_factors(plan: InitPlan) -> Iterator[float]:
    """Yield, for every branch, by what its variance is scaled; a gated MLP is linear in mlp_in and in mlp_out."""

    def square(*roles: Role) -> Iterator[float]:
        for entry in plan.with_role(*roles):
            yield (entry.distribution.std / entry.unscaled_std) ** 2 if entry.distribution.std else 0.0

    yield from square(Role.ATTENTION_OUT)
    for into, out in zip(square(Role.MLP_IN), square(Role.MLP_OUT), strict=True):
        yield into * out


@pytest.mark.parametrize("name", NAMES)
def test_growth_with_depth_is_as_promised(name: str) -> None:
    law, words = GROWTH[name]
    for n_layers in (1, 6, 48):
        shape = SHAPE.model_copy(update={"n_layers": n_layers})
        factors = list(squared_factors(make_plan(SCHEMES[name], parameters(shape), sizes(shape))))
        assert len(factors) == 2 * n_layers
        assert math.fsum(factors) == pytest.approx(law(n_layers), rel=1e-12), n_layers
    assert any(word in SCHEMES[name].depth for word in words.split("|"))


# --- numbers that were published


def std_of(name: str, role: Role, shape: tuple[int, ...] = (8, 8), fan_in: int = 8, **sizes: float) -> float:
    return make_plan(SCHEMES[name], [Parameter("p", shape, role, fan_in, layer=0)], sizes)["p"].distribution.std


@pytest.mark.parametrize("d_model", [14336, 1024])
def test_bloom_has_the_number_of_the_176b_at_every_width(d_model: int) -> None:
    found = std_of("bloom", Role.MLP_IN, d_model=d_model, n_layers=70)
    assert found == pytest.approx(0.00482197968631537, rel=1e-14)  # bigscience, tr11 README


def test_bigscience() -> None:
    # bigscience, lessons-learned.md: the 104B; the 13B is 5120 wide
    assert std_of("bigscience", Role.MLP_IN, d_model=11600, n_layers=64) == pytest.approx(
        0.00587220219514703, rel=1e-14
    )
    assert std_of("bigscience", Role.MLP_IN, d_model=5120, n_layers=40) == pytest.approx(0.00884, abs=5e-6)


def test_megatron_turing_at_the_width_of_bloom_is_blooms() -> None:
    found = std_of("megatron-turing", Role.MLP_IN, d_model=14336, n_layers=70)
    assert found == pytest.approx(0.00482197968631537, rel=1e-14)


def test_gptj_embedding() -> None:
    found = make_plan(
        SCHEMES["gptj"],
        [Parameter("p", (50400, 8), Role.TOKEN_EMBEDDING, 8)],
        {"vocab_size": 50400, "d_model": 4096, "n_layers": 28},
    )["p"].distribution
    assert isinstance(found, Truncated)
    assert found.sigma == pytest.approx(0.00445, abs=5e-6)
    assert found.std == pytest.approx(0.8796 * 0.00445, rel=2e-3)  # both factors are rounded to three digits


@pytest.mark.parametrize("n_layers", [6, 44])
def test_wang_is_small_init_over_what_llm_foundry_divides_by(n_layers: int) -> None:
    found = std_of("wang", Role.MLP_OUT, d_model=6144, n_layers=n_layers)
    assert found == pytest.approx(sqrt(2 / (5 * 6144)) / (n_layers / sqrt(10)), rel=1e-12)


def test_wang_meets_the_square_root_at_20_layers() -> None:
    wang, root = (std_of(name, Role.MLP_OUT, d_model=512, n_layers=20) for name in ("wang", "bigscience"))
    assert wang == pytest.approx(root, rel=1e-12)


# --- settings, the forward pass, names


def test_settings_reach_the_roles() -> None:
    def stds(name: str, *roles: Role, **given: float) -> list[float]:
        return [plan_of(name, **given).with_role(role)[0].distribution.std for role in roles]

    kinds = (Role.MLP_IN, Role.MLP_OUT, Role.TOKEN_EMBEDDING, Role.LM_HEAD)
    assert stds("megatron", *kinds, std=0.6) == pytest.approx([0.6, 0.6 / sqrt(6), 0.6, 0.6])
    assert stds("megatron", *kinds, std=0.6, embedding_std=1) == pytest.approx([0.6, 0.6 / sqrt(6), 1, 0.6])
    assert stds("kaiming-normal", Role.MLP_IN, gain=1) == pytest.approx([1 / sqrt(32)])
    assert stds("xavier-normal", Role.MLP_IN, gain=2) == pytest.approx([2 * sqrt(2 / 120)])
    assert stds("orthogonal", Role.MLP_IN, Role.TOKEN_EMBEDDING, gain=3, embedding_std=0.5) == pytest.approx(
        [3 / sqrt(88), 0.5]
    )
    assert stds("mpt", Role.TOKEN_EMBEDDING, Role.MLP_IN, embedding_std=0.1) == pytest.approx([0.1, sqrt(2 / 32)])
    assert stds("gpt2-release", Role.POSITION_EMBEDDING, Role.MLP_IN, std=0.5) == pytest.approx([0.01, 0.5])
    assert stds("bert", Role.MLP_IN, cut=3) == pytest.approx([0.9866 * 0.02], rel=5e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_module_of_unknown_heads_and_mlp_can_be_drawn(name: str) -> None:
    """Of the caller's own module only these sizes are known, and the fans of each parameter."""
    known = {"d_model": 32, "n_layers": 3, "vocab_size": 97, "tied": 0}
    given = {"key_dim": 12} if name.startswith("t5") else {}
    plan = make_plan(SCHEMES[name], (*parameters(SHAPE), *BESIDES), known, given)
    assert [entry.distribution for entry in plan.entries] == [entry.distribution for entry in plan_of(name).entries]


FORWARD: dict[str, dict[str, float | str]] = {
    "t2t": {"embedding_multiplier": sqrt(32)},
    "t5": {"attention_scale": 1, "logit_multiplier": 1},
    "t5-hf": {"attention_scale": 1},
    "bloom": {"embedding_norm": "true"},
    "small-init": {"embedding_multiplier": sqrt(32)},
}


@pytest.mark.parametrize("name", NAMES)
def test_what_the_forward_pass_is_asked_for(name: str) -> None:
    found = {
        field: written if written == "true" else evaluate(written, sizes(SHAPE))
        for field, written in SCHEMES[name].forward.items()
    }
    assert found == pytest.approx(FORWARD.get(name, {}))


def test_only_a_tied_head_of_t5_is_scaled() -> None:
    tied = sizes(SHAPE.model_copy(update={"tied": True}))
    assert evaluate(SCHEMES["t5"].forward["logit_multiplier"], tied) == pytest.approx(1 / sqrt(32), rel=1e-12)


ALIASES = {
    "pytorch": "default",
    "glorot-uniform": "xavier-uniform",
    "glorot-normal": "xavier-normal",
    "he-uniform": "kaiming-uniform",
    "he-normal": "kaiming-normal",
    "tensor2tensor": "t2t",
    "t5-mesh": "t5",
    "hf": "gpt2",
    "huggingface": "gpt2",
    "bert-hf": "gpt2",  # Hugging Face's BERT is N(0.02), nothing cut
    "litgpt": "gpt2",  # GPT._init_weights: all N(0.02)
    "nanogpt": "scaled",
    "llama2.c": "llama2c",
    "mt-nlg": "megatron-turing",
    "metaseq": "opt",
    "neox": "wang",
    "pythia": "wang",
    "small-init-wang": "wang",
    "gpt-j": "gptj",
}


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_aliases(alias: str, name: str) -> None:
    assert scheme_named(alias) is SCHEMES[name]


def test_no_name_means_two_schemes() -> None:
    counts = Counter(name for scheme in (*EARLY, *LATE) for name in (scheme.name, *scheme.aliases))
    assert [name for name, times in counts.items() if times > 1] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_scheme_says_what_it_is(name: str) -> None:
    scheme = SCHEMES[name]
    assert name == name.lower()
    assert name.replace("-", "").isalnum()
    assert 0 < len(scheme.summary) <= 110
    assert not scheme.summary.endswith(".")
    assert not scheme.source.endswith(".")
    assert scheme.source
    assert scheme.family != "custom"
    assert scheme.depth.endswith(".")
    assert all(note.endswith(".") for note in scheme.notes)


# --- beside the code that they are from; five standard errors each, see tests/sampling.py


def assert_beside(tensor: torch.Tensor, found: Distribution, what: str) -> None:
    std = float(tensor.detach().double().square().mean().sqrt())
    assert_near(std, found.std, found.std * relative_error_of_std(tensor.numel(), found.kurtosis), what)
    if isinstance(found, Uniform):
        assert float(tensor.detach().abs().max()) <= found.bound * (1 + 1e-6), what


def planned(name: str, role: Role, tensor: torch.Tensor, **sizes: float) -> Distribution:
    parameter = Parameter("p", tuple(tensor.shape), role, tensor.shape[-1], layer=0)
    return make_plan(SCHEMES[name], [parameter], {"n_layers": 1, **sizes})["p"].distribution


def test_torch_transformer_beside_nn_transformer() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(5)
        layer = nn.Transformer(96, 4, 1, 1, 160, batch_first=True).encoder.layers[0]
    for tensor, role in (
        (layer.self_attn.in_proj_weight, Role.ATTENTION_VALUE),
        (layer.self_attn.out_proj.weight, Role.ATTENTION_OUT),
        (layer.linear1.weight, Role.MLP_IN),
        (layer.linear2.weight, Role.MLP_OUT),
    ):
        assert_beside(tensor, planned("torch-transformer", role, tensor, d_model=96), role)
    assert not any(
        isinstance(module, nn.Embedding) for module in nn.Transformer(8, 2, 1, 1, 8, batch_first=True).modules()
    )


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("xavier-uniform", nn.init.xavier_uniform_),
        ("xavier-normal", nn.init.xavier_normal_),
        ("kaiming-uniform", nn.init.kaiming_uniform_),
        ("kaiming-normal", nn.init.kaiming_normal_),
    ],
)
def test_classics_beside_torch_nn_init(name: str, function: Callable[..., torch.Tensor]) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(6)
        for role, shape in ((Role.MLP_IN, (300, 70)), (Role.MLP_OUT, (70, 300)), (Role.TOKEN_EMBEDDING, (500, 40))):
            tensor = function(torch.empty(shape))
            assert_beside(tensor, planned(name, role, tensor), f"{name} {role}")


def test_orthogonal_beside_torch_nn_init() -> None:
    """The squares of an orthogonal matrix's entries add up to gain² times its shorter side, without any chance."""
    for shape in ((60, 20), (20, 60)):
        tensor = nn.init.orthogonal_(torch.empty(shape, dtype=torch.float64), gain=3.0)
        parameter = Parameter("p", shape, Role.MLP_IN, shape[1], layer=0)
        plan = make_plan(SCHEMES["orthogonal"], [parameter], {"d_model": 1, "tied": 0}, {"gain": 3.0})
        found = plan["p"].distribution
        assert float(tensor.square().mean().sqrt()) == pytest.approx(found.std, rel=1e-9)


def test_t5_hf_beside_transformers() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    fields: dict[str, Any] = {"vocab_size": 499, "d_model": 64, "d_kv": 12, "num_heads": 6, "d_ff": 160}
    fields |= {"num_layers": 1, "num_decoder_layers": 1, "feed_forward_proj": "gated-gelu"}
    config = T5Config(**fields)
    with torch.random.fork_rng():
        torch.manual_seed(7)
        model = T5ForConditionalGeneration(config)
    tensors = dict(model.named_parameters())
    block = "decoder.block.0.layer"
    for path, role in {
        "shared": Role.TOKEN_EMBEDDING,
        f"{block}.0.SelfAttention.q": Role.ATTENTION_QUERY,
        f"{block}.0.SelfAttention.k": Role.ATTENTION_KEY,
        f"{block}.0.SelfAttention.v": Role.ATTENTION_VALUE,
        f"{block}.0.SelfAttention.o": Role.ATTENTION_OUT,
        f"{block}.2.DenseReluDense.wi_0": Role.MLP_GATE,
        f"{block}.2.DenseReluDense.wi_1": Role.MLP_IN,
        f"{block}.2.DenseReluDense.wo": Role.MLP_OUT,
    }.items():
        tensor = tensors[f"{path}.weight"]
        assert_beside(tensor, planned("t5-hf", role, tensor, d_model=64, head_dim=12), path)
