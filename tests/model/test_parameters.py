"""The list of parameters, made without torch, is that of the module."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import given
from torch.utils._python_dispatch import TorchDispatchMode

from initdiag.model import Architecture, parameters, sizes
from initdiag.model.transformer import Transformer
from initdiag.schemes import Role
from tests.model.random_shapes import examples, shapes
from tests.small_models import WIRINGS, architecture


def on_meta(shape: Architecture) -> Transformer:
    with torch.device("meta"):
        return Transformer(shape)


ROLES = {
    "token_embedding.weight": Role.TOKEN_EMBEDDING,
    "position_embedding.weight": Role.POSITION_EMBEDDING,
    "head.weight": Role.LM_HEAD,
    "attention.query.weight": Role.ATTENTION_QUERY,
    "attention.key.weight": Role.ATTENTION_KEY,
    "attention.value.weight": Role.ATTENTION_VALUE,
    "attention.out.weight": Role.ATTENTION_OUT,
    "attention.query_down.weight": Role.ATTENTION_QUERY,
    "attention.latent_down.weight": Role.ATTENTION_KEY,
    "attention.rotary_key.weight": Role.ATTENTION_KEY,
    "attention.mix.sinks.weight": Role.ATTENTION_SINK,
    "mlp.gate.weight": Role.MLP_GATE,
    "mlp.input.weight": Role.MLP_IN,
    "mlp.out.weight": Role.MLP_OUT,
    "mlp.shared.gate.weight": Role.MLP_GATE,
    "mlp.shared.input.weight": Role.MLP_IN,
    "mlp.shared.out.weight": Role.MLP_OUT,
    "mlp.router.weight": Role.ROUTER,
    "mlp.router.bias": Role.ROUTER_BIAS,
    "mlp.choice.bias": Role.ROUTER_BIAS,
    "gain.weight": Role.MULTIPLIER,
    "norm.weight": Role.NORM_SCALE,
    "norm.bias": Role.NORM_BIAS,
    "bias": Role.BIAS,
}


@examples(70)
@given(shapes)
def test_all_that_is_known_of_a_parameter_is_so(shape: Architecture) -> None:
    """Names, order, shapes; roles, layers and inputs."""
    made = on_meta(shape)
    module = dict(made.named_parameters())
    listed = list(parameters(shape))
    assert [(p.name, p.shape) for p in listed] == [(name, tuple(p.shape)) for name, p in module.items()]
    assert not list(made.named_buffers())
    for parameter in listed:
        assert parameter.role is next(role for ending, role in ROLES.items() if parameter.name.endswith(ending))
        assert parameter.numel == module[parameter.name].numel()
        block = parameter.name.split(".")
        assert parameter.layer == (int(block[1]) if block[0] == "blocks" else None)
        assert module[parameter.name].requires_grad is not parameter.name.endswith("choice.bias")  # a rule moves that
        if parameter.name.endswith(("choice.bias", "norm.bias")):  # of no matrix
            assert parameter.fan_in == 1
        elif parameter.role in (Role.BIAS, Role.ROUTER_BIAS):  # a bias goes with the inputs of its matrix
            assert parameter.fan_in == module[parameter.name.replace("bias", "weight")].shape[-1]
        elif len(parameter.shape) >= 2:  # (outputs, inputs), or (experts, outputs, inputs)
            assert parameter.fan_in == parameter.shape[-1]
        else:
            assert parameter.fan_in == 1


GPT2: dict[str, Any] = {"activation": "gelu_tanh"}
LLAMA = {
    "norm": "rmsnorm",
    "position": "rotary",
    "gated": True,
    "biases": False,
    "activation": "silu",
    "tied": False,
}
V3_LATENTS = {"query_rank": 1536, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128}
V3_EXPERTS = {"experts": 256, "top_k": 8, "shared": 1, "d_ff": 2048, "first_dense": 3, "choice_bias": True}


def sized(kind: dict[str, Any], v: int, context: int, d: int, n: int, heads: int, **fields: Any) -> dict[str, Any]:
    return kind | {"vocab_size": v, "context": context, "d_model": d, "n_layers": n, "n_heads": heads} | fields


DEEPSEEK_V3 = sized(
    LLAMA,
    *(129280, 163840, 7168, 61, 128),
    d_ff=18432,
    mla=V3_LATENTS,
    moe=V3_EXPERTS,
)
# published, or the sum over the matrices of the published config (facts/zoo.yaml)
COUNTS: dict[str, tuple[dict[str, Any], int]] = {
    "gpt2 small": (sized(GPT2, 50257, 1024, 768, 12, 12), 124_439_808),
    "gpt2 medium": (sized(GPT2, 50257, 1024, 1024, 24, 16), 354_823_168),
    "gpt2 large": (sized(GPT2, 50257, 1024, 1280, 36, 20), 774_030_080),
    "gpt2 xl": (sized(GPT2, 50257, 1024, 1600, 48, 25), 1_557_611_200),
    "tinyllama 1.1b": (sized(LLAMA, 32000, 2048, 2048, 22, 32, n_kv_heads=4, d_ff=5632), 1_100_048_384),
    "smollm2 135m": (sized(LLAMA, 49152, 8192, 576, 30, 9, n_kv_heads=3, d_ff=1536, tied=True), 134_515_008),
    "pythia 160m, two norms": (
        sized({}, 50304, 2048, 768, 12, 12, placement="parallel", position="rotary", rotary_dims=16, tied=False),
        162_322_944,
    ),
    "phi 2, one norm and a biased head": (
        sized(
            {"placement": "parallel_shared", "position": "rotary", "rotary_dims": 32, "tied": False},
            *(51200, 2048, 2560, 32, 32),
            biases={"qkv": True, "out": True, "mlp": True, "norm": True, "head": True},
        ),
        2_779_683_840,
    ),
    "gpt-j 6b, biases of mlp, norms and head": (
        sized(
            {"placement": "parallel_shared", "position": "rotary", "rotary_dims": 64, "tied": False},
            *(50400, 2048, 4096, 28, 16),
            biases={"mlp": True, "norm": True, "head": True},
        ),
        6_050_882_784,
    ),
    "opt 125m, two positions more": (sized({"position_offset": 2}, 50272, 2048, 768, 12, 12), 125_239_296),
    "bloom 560m, embedding norm": (
        sized({"position": "alibi", "embedding_norm": True}, 250880, 2048, 1024, 24, 16),
        559_214_592,
    ),
    "mpt 7b, norms without biases": (
        sized({"position": "alibi", "biases": False}, 50432, 2048, 4096, 32, 32),
        6_649_286_656,
    ),
    "qwen2.5 0.5b, biases of qkv": (
        sized(LLAMA, 151936, 32768, 896, 24, 14, n_kv_heads=2, d_ff=4864, tied=True, biases={"qkv": True}),
        494_032_768,
    ),
    "qwen3 0.6b, norms of each head": (
        sized(LLAMA, 151936, 40960, 1024, 28, 16, n_kv_heads=8, head_dim=128, d_ff=3072, tied=True, qk_norm="per_head"),
        596_049_920,
    ),
    "gemma 2 9b, four norms": (
        sized(
            LLAMA,
            *(256000, 8192, 3584, 42, 16),
            n_kv_heads=8,
            head_dim=256,
            d_ff=14336,
            tied=True,
            placement="sandwich",
        ),
        9_241_705_984,
    ),
    "olmo 2 32b, norms of the full width": (
        sized(LLAMA, 100352, 4096, 5120, 64, 40, n_kv_heads=8, d_ff=27648, placement="reordered", qk_norm="full"),
        32_234_279_936,
    ),
    "olmo 1b, norms without parameters": (
        sized(LLAMA, 50304, 2048, 2048, 16, 16, tied=True, norm="layernorm", norm_scale="none"),
        1_176_764_416,
    ),
    "mixtral 8x7b": (
        sized(LLAMA, 32000, 32768, 4096, 32, 32, n_kv_heads=8, d_ff=14336, moe={"experts": 8, "top_k": 2}),
        46_702_792_704,
    ),
    "deepseek v3": (DEEPSEEK_V3, 671_026_419_200),
    "gpt-oss 20b": (
        sized(
            LLAMA,
            *(201088, 131072, 2880, 24, 64),
            n_kv_heads=8,
            head_dim=64,
            d_ff=2880,
            attention_sinks=True,
            biases={"qkv": True, "out": True, "mlp": True, "router": True},
            moe={"experts": 32, "top_k": 4},
        ),
        20_914_757_184,
    ),
}


@pytest.mark.parametrize(("fields", "count"), COUNTS.values(), ids=COUNTS)
def test_published_counts(fields: dict[str, Any], count: int) -> None:
    assert sum(parameter.numel for parameter in parameters(Architecture(**fields))) == count


def test_sizes_are_the_fields_of_the_architecture() -> None:
    shape = architecture(n_kv_heads=2, head_dim=6, d_ff=50)
    assert sizes(shape) == {
        "qk_norm": 0,
        "vocab_size": 97,
        "context": 24,
        "d_model": 32,
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 6,
        "d_ff": 50,
        "tied": 1,
    }
    assert sizes(architecture(tied=False))["tied"] == 0


class _Operations(TorchDispatchMode):
    """Writes down every operation and its result's device."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen.append((func._schema.name, result.device.type if isinstance(result, torch.Tensor) else ""))
        return result


@pytest.mark.parametrize("wiring", WIRINGS)
def test_building_allocates_nothing_and_draws_nothing(wiring: str) -> None:
    state = torch.get_rng_state()
    with _Operations() as operations:
        module = on_meta(architecture(**WIRINGS[wiring]))
    assert {device for _, device in operations.seen} == {"meta"}
    assert {name for name, _ in operations.seen} <= {"aten::empty", "aten::detach"}  # no fill_, no normal_
    assert all(parameter.is_meta for parameter in module.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_model_of_671_billion_parameters_is_built_at_once() -> None:
    """1.3 TB in bfloat16: nothing of it is allocated. A second, of this process alone, is five times what it takes."""
    shape = Architecture(**DEEPSEEK_V3)
    started = time.process_time()
    with _Operations() as operations:
        module = on_meta(shape)
    listed = list(parameters(shape))
    assert time.process_time() - started < 1
    assert {device for _, device in operations.seen} == {"meta"}
    assert sum(parameter.numel() for parameter in module.parameters()) == 671_026_419_200
    assert [parameter.name for parameter in listed] == [name for name, _ in module.named_parameters()]
