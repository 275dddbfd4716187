"""What a scheme demands of the forward pass, in the architecture, in the module, and in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from initdiag.errors import PlanError
from initdiag.model import Architecture
from initdiag.model.demands import changes, demanded
from initdiag.model.planning import planned
from initdiag.model.transformer import Transformer
from initdiag.schemes import SCHEMES, Scheme
from tests.small_models import architecture

EXPERTS: dict[str, Any] = {"moe": {"experts": 4, "top_k": 2}}


def lab(forward: Mapping[str, str], **fields: Any) -> Scheme:
    return replace(SCHEMES["gpt2"], name="lab", forward=forward, **fields)


def shaped(forward: Mapping[str, str], scheme: Mapping[str, Any] | None = None, **fields: Any) -> Architecture:
    return planned(architecture(**fields), lab(forward, **(scheme or {})))[0]


def refusal(forward: Mapping[str, str], **fields: Any) -> str:
    with pytest.raises(PlanError) as caught:
        shaped(forward, **fields)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- in the architecture and in the module


def test_a_scheme_without_demands_leaves_the_architecture_alone() -> None:
    shape = architecture(placement="post")
    assert demanded(shape, SCHEMES["scaled"], {}) is shape
    assert changes(shape, shape) == ()


def test_numbers_reach_the_module() -> None:
    given = architecture(d_model=64, n_heads=4, n_layers=3)
    shape, _ = planned(given, SCHEMES["minicpm"], {"base_width": 16})
    module = Transformer(shape)
    assert module.shape.embedding_multiplier == 12
    assert module.shape.logit_multiplier == pytest.approx(16 / 64)
    for block in module.blocks:
        assert block.added == pytest.approx([1.4 / math.sqrt(3)] * 2)
        assert block.kept == [1.0, 1.0]
    shape, _ = planned(given, SCHEMES["deepnorm"])
    for block in Transformer(shape).blocks:
        assert block.placement == "post"
        assert block.kept == pytest.approx([6**0.25] * 2)
        assert block.added == [1.0, 1.0]
    shape, _ = planned(given, SCHEMES["mup"])
    assert shape.attention_scale == pytest.approx(8 / 16)


def test_by_branch_with_terms() -> None:
    """u-muP, N = 3: τ² = 1/(N + branches before), all alphas 1; stream and branch times 1 and τ over √(1 + τ²)."""
    shape, _ = planned(architecture(n_layers=3), SCHEMES["u-mup"])
    taus = [1 / (3 + before) for before in range(6)]
    blocks = Transformer(shape).blocks
    assert [factor for block in blocks for factor in block.added] == pytest.approx(
        [math.sqrt(tau / (1 + tau)) for tau in taus]
    )
    assert [factor for block in blocks for factor in block.kept] == pytest.approx(
        [1 / math.sqrt(1 + tau) for tau in taus]
    )


def test_by_branch_layer_from_0_and_branch_from_1() -> None:
    shape = shaped({"residual_multiplier": "10 * (layer + 1) + branch"}, n_layers=3)
    assert shape.residual_multiplier == (11.0, 12.0, 23.0, 24.0, 35.0, 36.0)
    assert shaped({"residual_multiplier": "1 / n_layers"}, n_layers=4).residual_multiplier == 0.25


def test_by_branch_with_a_choice_that_depends_on_the_layer() -> None:
    scheme = {"choices": {"depth": {"layer": "layer + 1", "total": "n_layers"}}}
    by_layer = shaped({"residual_multiplier": "1 / depth"}, scheme, n_layers=2)
    assert by_layer.residual_multiplier == (1.0, 1.0, 0.5, 0.5)
    total, _ = planned(
        architecture(n_layers=2), lab({"residual_multiplier": "1 / depth"}, **scheme), {"depth": "total"}
    )
    assert total.residual_multiplier == 0.5


def test_words_booleans_and_whole_numbers() -> None:
    shape = shaped({"placement": "post", "tied": "false", "embedding_norm": "true", "position_offset": "2"})
    assert (shape.placement, shape.tied, shape.embedding_norm) == ("post", False, True)
    assert shape.position_offset == 2
    assert isinstance(shape.position_offset, int)
    assert shaped({"attention_softcap": "25 * 2"}).attention_softcap == 50.0  # none before


def test_what_follows_from_a_demand_follows_and_what_the_config_says_stays() -> None:
    assert architecture().final_norm
    assert not shaped({"placement": "post"}).final_norm  # a default that depends on placement
    assert shaped({"placement": "post"}, final_norm=True).final_norm
    kept = shaped({"placement": "post"}, n_kv_heads=2, d_ff=77, biases={"mlp": True}, residual_multiplier=0.3)
    assert (kept.n_kv_heads, kept.d_ff, kept.residual_multiplier) == (2, 77, 0.3)
    assert kept.biases.mlp
    assert not kept.biases.qkv


def test_parameters_of_the_new_architecture_are_planned() -> None:
    shape, plan = planned(architecture(n_layers=2), SCHEMES["layerscale"], {"gain": 0.25})
    names = [name for name, _ in Transformer(shape).named_parameters()]
    assert [entry.parameter.name for entry in plan.entries] == names
    assert "blocks.1.mlp_gain.weight" in names
    assert "blocks.0.mlp_norm.weight" not in {
        entry.parameter.name for entry in planned(architecture(), SCHEMES["rezero"])[1].entries
    }


# --- in words


def test_an_explicit_field_is_overridden_and_told() -> None:
    given = architecture(placement="sandwich", residual_multiplier=0.5, logit_multiplier=0.1)
    shape, _ = planned(given, lab({"placement": "post", "residual_multiplier": "0.25", "logit_multiplier": "0.1"}))
    assert shape.placement == "post"
    assert changes(shape, given) == ("placement post (config: sandwich)", "residual_multiplier 0.25 (config: 0.5)")


def test_defaults_that_are_changed_are_told() -> None:
    given = architecture(n_layers=3)
    shape, _ = planned(given, lab({"placement": "post", "stream_multiplier": "branch / 3", "tied": "false"}))
    assert changes(shape, given) == (
        "placement post (config: pre)",
        "tied false (config: true)",
        "stream_multiplier 0.3333 … 2 (config: 1)",
    )
    back, _ = planned(shape, lab({"stream_multiplier": "1", "logit_softcap": "20"}))
    assert changes(back, shape) == ("stream_multiplier 1 (config: 0.3333 … 2)", "logit_softcap 20 (config: none)")


# --- what can't be


def test_a_field_that_nobody_has() -> None:
    said = refusal({"placment": "post"})
    assert said.startswith("scheme 'lab' wants 'placment' of the forward pass; expected a field of `model:`")
    assert "did you mean 'placement'?" in said
    assert "wants 'n_layers' of the forward pass" in refusal({"n_layers": "4"})  # the model's own


def test_values_that_do_not_fit_are_one_sentence_with_the_field() -> None:
    said = refusal({"placement": "posst"})
    assert said.startswith("scheme 'lab' wants placement posst, which doesn't fit this model: placement: ")
    assert said.endswith("or 'none'")  # and nothing of the fields that follow from it
    assert "logit_multiplier: Input should be greater than 0" in refusal({"logit_multiplier": "0"})
    assert "residual_multiplier -1 … 1, which doesn't fit this model: residual_multiplier: found -1.0" in refusal(
        {"residual_multiplier": "layer - 1"}
    )


def test_demands_that_contradict_the_config() -> None:
    assert refusal({"inner_norm": "true"}, **EXPERTS) == (
        "scheme 'lab' wants inner_norm true, which doesn't fit this model: inner_norm: found with moe, expected false: "
        "experts have no inner norms"
    )
    assert "gate_limit: found with gated false" in refusal({"gate_limit": "7"})
    with pytest.raises(PlanError, match=r"scheme 'sub-ln' wants .*: inner_norm: found with moe"):
        planned(architecture(**EXPERTS), SCHEMES["sub-ln"])


def test_formulas_that_can_not_be_computed_say_whose_they_are() -> None:
    said = refusal({"logit_multiplier": "1 / layer"})
    assert said.startswith(
        "scheme 'lab' wants logit_multiplier '1 / layer' of the forward pass: a formula uses 'layer'"
    )
    assert "wants residual_multiplier '1 / layer' of the forward pass: can't compute" in refusal(
        {"residual_multiplier": "1 / layer"}
    )
