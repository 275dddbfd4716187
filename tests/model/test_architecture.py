"""An architecture that is made in Python is held to what a config file is held to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from initdiag.model.sections import Biases, Experts, LatentAttention, RotaryScaling
from tests.small_models import architecture

SCALING = {"factor": 8, "low": 1, "high": 4, "context": 16}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_heads": 5}, "n_heads: 5 does not divide d_model 32"),
        ({"rotary_base": 5e5}, "rotary_base: found 500000 with position learned, expected position rotary"),
        ({"position": "none", "rotary_scaling": SCALING}, "rotary_scaling: found with position none"),
        (
            {"position": "rotary", "rotary_scaling": SCALING | {"low": 4}},
            "rotary_scaling.low: found 4, expected less than rotary_scaling.high, 4",
        ),
        (
            {"position": "rotary", "rotary_scaling": RotaryScaling(factor=8, low=5, high=4, context=16)},
            "rotary_scaling.low: found 5, expected less than rotary_scaling.high, 4",
        ),
        ({"position": "rotary", "rotary_scaling": SCALING | {"type": "llama3"}}, "Extra inputs are not permitted"),
    ],
)
def test_what_does_not_fit_together(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        architecture(**fields)
    assert message in str(caught.value)


def test_a_mapping_and_the_class_are_the_same_scaling() -> None:
    given = architecture(position="rotary", rotary_scaling=SCALING)
    assert given == architecture(position="rotary", rotary_scaling=RotaryScaling(**SCALING))
    with pytest.raises(ValidationError, match="frozen"):
        given.rotary_scaling.factor = 4


def test_defaults_follow_from_the_fields_before() -> None:
    shape = architecture(d_model=48)
    assert (shape.n_kv_heads, shape.head_dim, shape.d_ff, shape.rotary_dims) == (4, 12, 192, 12)
    assert shape.attention_scale == 12**-0.5
    assert (shape.value_dim, shape.norm_biases, shape.has_experts(0), shape.window(0)) == (12, True, False, None)
    assert architecture(head_dim=7).attention_scale == 7**-0.5


def test_defaults_with_latent_attention() -> None:
    mla = {"kv_rank": 10, "nope_dim": 6, "rope_dim": 8, "value_dim": 5}
    shape = architecture(position="rotary", mla=mla, n_heads=5)  # of no meaning for d_model, 32: heads have widths
    assert (shape.head_dim, shape.rotary_dims, shape.value_dim) == (14, 8, 5)
    assert shape.attention_scale == 14**-0.5
    assert shape == architecture(position="rotary", mla=LatentAttention(**mla), n_heads=5)


@pytest.mark.parametrize(
    ("placement", "final_norm"),
    [("pre", True), ("post", False), ("sandwich", True), ("reordered", True), ("parallel", True), ("none", False)],
)
def test_the_final_norm(placement: str, final_norm: bool) -> None:
    assert architecture(placement=placement).final_norm is final_norm
    assert architecture(placement=placement, final_norm=not final_norm).final_norm is not final_norm


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (True, Biases(qkv=True, out=True, mlp=True, norm=True, head=False, router=False)),
        (False, Biases(qkv=False, out=False, mlp=False, norm=False, head=False, router=False)),
        ({"qkv": True}, Biases(qkv=True, out=False, mlp=False, norm=False, head=False, router=False)),
    ],
)
def test_biases(given: Any, expected: Biases) -> None:
    assert architecture(biases=given).biases == expected
    assert architecture().biases == Biases(qkv=True, out=True, mlp=True, norm=True)


@pytest.mark.parametrize(
    ("fields", "biases"),
    [
        ({}, True),
        ({"norm": "rmsnorm"}, False),
        ({"norm_scale": "none"}, False),
        ({"norm_scale": "one_plus"}, True),
        ({"biases": {"mlp": True}}, False),
    ],
)
def test_which_norms_have_biases(fields: dict[str, Any], biases: bool) -> None:
    assert architecture(**fields).norm_biases is biases


def test_windows_and_experts_of_layers() -> None:
    shape = architecture(n_layers=5, windows=(4, 3, None), moe=Experts(experts=4, top_k=2, first_dense=2))
    assert [shape.window(layer) for layer in range(5)] == [4, 3, None, 4, 3]
    assert [shape.has_experts(layer) for layer in range(5)] == [False, False, True, True, True]


@pytest.mark.parametrize("high", [4.0, 32.0])
def test_the_upper_border_of_a_scaling(high: float) -> None:
    kind = "yarn" if high == 32 else "llama3"
    assert RotaryScaling(kind=kind, factor=2, context=9).high == high
    assert RotaryScaling(kind=kind, factor=2, context=9, high=7).high == 7


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"placement": "before"}, "placement"),
        ({"norm_scale": "1+w"}, "norm_scale"),
        ({"activation": "swish"}, "activation"),
        ({"windows": (0,)}, "windows.0"),
        ({"windows": (True,)}, "windows.0"),
        ({"windows": 4}, "windows"),
        ({"biases": 1}, "biases"),
        ({"biases": {"qkv": 1}}, "biases.qkv"),
        ({"biases": {"query": True}}, "biases.query"),
        ({"moe": {"experts": 1, "top_k": 1}}, "moe.experts"),
        ({"moe": {"experts": 4}}, "moe.top_k"),
        ({"position": "rotary", "mla": {"kv_rank": 4, "nope_dim": 4, "rope_dim": 1, "value_dim": 1}}, "mla.rope_dim"),
        ({"logit_softcap": 0.0}, "logit_softcap"),
        ({"attention_softcap": float("inf")}, "attention_softcap"),
        ({"gated": True, "gate_limit": -7.0}, "gate_limit"),
        ({"rotary_dims": 1, "position": "rotary"}, "rotary_dims"),
        ({"qk_norm": True}, "qk_norm"),
        ({"branch_gain": "layerscale"}, "branch_gain"),
    ],
)
def test_values_of_no_field(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(ValidationError) as caught:
        architecture(**fields)
    errors = [error for error in caught.value.errors() if error["type"] != "default_factory_not_called"]
    assert {".".join(map(str, error["loc"]))[: len(where)] for error in errors} == {where}
