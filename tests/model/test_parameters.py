"""The list of parameters, made without torch, is that of the module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from initdiag.model import Architecture, parameters, sizes
from initdiag.model.transformer import Transformer
from initdiag.schemes import Role
from tests.small_models import WIRINGS, architecture

shapes = st.builds(
    architecture,
    vocab_size=st.integers(2, 40),
    context=st.integers(1, 20),
    d_model=st.sampled_from((8, 12)),
    n_layers=st.integers(1, 3),
    n_heads=st.sampled_from((2, 4)),
    n_kv_heads=st.sampled_from((1, 2)),
    head_dim=st.sampled_from((2, 4, 6)),
    d_ff=st.integers(1, 50),
    activation=st.sampled_from(("gelu", "gelu_tanh", "relu", "silu")),
    norm=st.sampled_from(("layernorm", "rmsnorm")),
    placement=st.sampled_from(("pre", "post")),
    position=st.sampled_from(("learned", "sinusoidal", "rotary", "none")),
    tied=st.booleans(),
    gated=st.booleans(),
    biases=st.booleans(),
    final_norm=st.booleans(),
)


def on_meta(shape: Architecture) -> Transformer:
    with torch.device("meta"):
        return Transformer(shape)


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(shapes)
def test_names_order_and_shapes(shape: Architecture) -> None:
    module = [(name, tuple(parameter.shape)) for name, parameter in on_meta(shape).named_parameters()]
    listed = [(parameter.name, parameter.shape) for parameter in parameters(shape)]
    assert listed == module
    assert not list(on_meta(shape).named_buffers())


@settings(max_examples=50, derandomize=True, deadline=None, database=None)
@given(shapes)
def test_fan_in_layer_and_numel(shape: Architecture) -> None:
    module = dict(on_meta(shape).named_parameters())
    for parameter in parameters(shape):
        assert parameter.numel == module[parameter.name].numel()
        block = parameter.name.split(".")
        assert parameter.layer == (int(block[1]) if block[0] == "blocks" else None)
        if parameter.role is Role.BIAS:  # a bias goes with the inputs of its matrix
            assert parameter.fan_in == module[parameter.name.replace("bias", "weight")].shape[1]
        elif len(parameter.shape) == 2:
            assert parameter.fan_in == parameter.shape[1]


ROLES = {
    "token_embedding.weight": Role.TOKEN_EMBEDDING,
    "position_embedding.weight": Role.POSITION_EMBEDDING,
    "head.weight": Role.LM_HEAD,
    "attention.query.weight": Role.ATTENTION_QUERY,
    "attention.key.weight": Role.ATTENTION_KEY,
    "attention.value.weight": Role.ATTENTION_VALUE,
    "attention.out.weight": Role.ATTENTION_OUT,
    "mlp.gate.weight": Role.MLP_GATE,
    "mlp.input.weight": Role.MLP_IN,
    "mlp.out.weight": Role.MLP_OUT,
    "norm.weight": Role.NORM_SCALE,
    "norm.bias": Role.NORM_BIAS,
    "bias": Role.BIAS,
}


def test_roles() -> None:
    for parameter in parameters(architecture(gated=True, tied=False)):
        expected = next(role for ending, role in ROLES.items() if parameter.name.endswith(ending))
        assert parameter.role is expected, parameter.name


GPT2 = {"vocab_size": 50257, "context": 1024, "activation": "gelu_tanh"}
# published, or the sum over the matrices of the published config (facts/zoo.yaml)
COUNTS: list[tuple[str, dict[str, Any], int]] = [
    ("gpt2 small", GPT2 | {"d_model": 768, "n_layers": 12, "n_heads": 12}, 124_439_808),
    ("gpt2 medium", GPT2 | {"d_model": 1024, "n_layers": 24, "n_heads": 16}, 354_823_168),
    ("gpt2 large", GPT2 | {"d_model": 1280, "n_layers": 36, "n_heads": 20}, 774_030_080),
    ("gpt2 xl", GPT2 | {"d_model": 1600, "n_layers": 48, "n_heads": 25}, 1_557_611_200),
    (
        "tinyllama 1.1b",
        WIRINGS["llama"]
        | {
            "vocab_size": 32000,
            "context": 2048,
            "d_model": 2048,
            "n_layers": 22,
            "n_heads": 32,
            "n_kv_heads": 4,
            "d_ff": 5632,
        },
        1_100_048_384,
    ),
    (
        "smollm2 135m",
        WIRINGS["llama"]
        | {
            "vocab_size": 49152,
            "context": 8192,
            "d_model": 576,
            "n_layers": 30,
            "n_heads": 9,
            "n_kv_heads": 3,
            "d_ff": 1536,
            "tied": True,
        },
        134_515_008,
    ),
]


@pytest.mark.parametrize(("fields", "count"), [case[1:] for case in COUNTS], ids=[case[0] for case in COUNTS])
def test_published_counts(fields: dict[str, Any], count: int) -> None:
    assert sum(parameter.numel for parameter in parameters(Architecture(**fields))) == count


def test_sizes_are_the_fields_of_the_architecture() -> None:
    shape = architecture(n_kv_heads=2, head_dim=6, d_ff=50)
    assert sizes(shape) == {
        "vocab_size": 97,
        "context": 24,
        "d_model": 32,
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 6,
        "d_ff": 50,
    }


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
