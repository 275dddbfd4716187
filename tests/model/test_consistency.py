"""Values that don't fit together: each sentence beside a mapping that is all right."""

from __future__ import annotations

import ast
import inspect
import re
from typing import Any

import pytest

from initdiag.model import consistency
from initdiag.model.consistency import inconsistencies
from tests.small_models import WIRINGS, architecture

Fields = dict[str, Any]

SMALL: Fields = {"d_model": 32, "n_heads": 4, "n_layers": 3, "vocab_size": 9, "context": 9}
ROTARY: Fields = {"position": "rotary"}
LLAMA3: Fields = {"factor": 8, "context": 512}
YARN: Fields = {"kind": "yarn", "factor": 8, "context": 512}
LATENT: Fields = {"kv_rank": 4, "nope_dim": 6, "rope_dim": 8, "value_dim": 5}
MLA: Fields = {"position": "rotary", "mla": LATENT}


def rotary(**scaling: Any) -> Fields:
    return {"position": "rotary", "rotary_scaling": scaling}


def moe(**fields: Any) -> Fields:
    return {"moe": {"experts": 8, "top_k": 4, **fields}}


# (what is wrong, the field, the sentence, beside it what is right)
CASES: list[tuple[Fields, str, str, Fields]] = [
    (
        {"n_heads": 5},
        "n_heads",
        "5 does not divide d_model 32; expected a divisor of it, or a head_dim",
        {"n_heads": 5, "head_dim": 8},
    ),
    (
        {"n_heads": 3},
        "n_heads",
        "3 does not divide d_model 32; expected a divisor of it, or a head_dim",
        MLA | {"n_heads": 3},
    ),
    (
        {"n_kv_heads": 3},
        "n_kv_heads",
        "3 does not divide n_heads 4; expected a divisor of it",
        {"n_kv_heads": 2},
    ),
    (
        {"n_kv_heads": 8},
        "n_kv_heads",
        "8 does not divide n_heads 4; expected a divisor of it",
        {"n_kv_heads": 4},
    ),
    (
        ROTARY | {"head_dim": 7},
        "position",
        "rotary turns pairs of features; expected an even head_dim, found 7",
        ROTARY | {"head_dim": 7, "rotary_dims": 6},
    ),
    (
        ROTARY | {"d_model": 36},
        "position",
        "rotary turns pairs of features; expected an even head_dim, found 9",
        {"d_model": 36, "position": "alibi"},
    ),
    (
        {"position": "sinusoidal", "d_model": 33, "n_heads": 3},
        "position",
        "sinusoidal positions come in pairs of features; expected an even d_model, found 33",
        {"position": "learned", "d_model": 33, "n_heads": 3},
    ),
    (
        {"position": "alibi", "position_offset": 2},
        "position_offset",
        "found with position alibi, expected position learned, or no position_offset",
        {"position": "alibi", "position_offset": 0},
    ),
    (
        ROTARY | {"position_offset": 2},
        "position_offset",
        "found with position rotary, expected position learned, or no position_offset",
        {"position_offset": 2},
    ),
    (
        {"rotary_base": 5e5},
        "rotary_base",
        "found 500000 with position learned, expected position rotary, or no rotary_base",
        {"rotary_base": 10_000.0},
    ),
    (
        {"position": "none", "rotary_base": 5e5},
        "rotary_base",
        "found 500000 with position none, expected position rotary, or no rotary_base",
        ROTARY | {"rotary_base": 5e5},
    ),
    (
        {"position": "alibi", "rotary_scaling": LLAMA3},
        "rotary_scaling",
        "found with position alibi, expected position rotary, or no rotary_scaling",
        {"position": "alibi", "rotary_scaling": None},
    ),
    (
        {"local_rotary_base": 1e3, "windows": (4, None)},
        "local_rotary_base",
        "found with position learned, expected position rotary, or no local_rotary_base",
        ROTARY | {"local_rotary_base": 1e3, "windows": (4, None)},
    ),
    (
        {"position": "sinusoidal", "rotary_dims": 4},
        "rotary_dims",
        "found with position sinusoidal, expected position rotary, or no rotary_dims",
        ROTARY | {"rotary_dims": 4},
    ),
    (
        {"position": "alibi", "rotary_dims": 6},
        "rotary_dims",
        "found with position alibi, expected position rotary, or no rotary_dims",
        {"position": "alibi", "rotary_dims": 8},  # what it is by default, written out
    ),
    (
        ROTARY | {"rotary_dims": 5},
        "rotary_dims",
        "rotary turns pairs of features; expected an even number, found 5",
        ROTARY | {"rotary_dims": 6},
    ),
    (
        ROTARY | {"rotary_dims": 10},
        "rotary_dims",
        "found 10, expected at most head_dim, 8",
        ROTARY | {"rotary_dims": 8},
    ),
    (
        ROTARY | {"rotary_dims": 10, "head_dim": 9},
        "rotary_dims",
        "found 10, expected at most head_dim, 9",
        ROTARY | {"rotary_dims": 10, "head_dim": 11},
    ),
    *(
        (
            ROTARY | {"local_rotary_base": 1e3} | windows,
            "local_rotary_base",
            "found without windows, expected windows, or no local_rotary_base",
            ROTARY | {"local_rotary_base": 1e3, "windows": [None, 4]},
        )
        for windows in ({}, {"windows": ()}, {"windows": [None, None]})
    ),
    *(
        (
            rotary(kind="linear", factor=8, **{name: 5}),
            f"rotary_scaling.{name}",
            f"found with kind linear, expected no {name}: all pairs turn slower",
            rotary(kind="linear", factor=8, **{name: default}),
        )
        for name, default in (("low", 1.0), ("high", 4.0), ("context", None))
    ),
    (
        rotary(factor=8, context=16, rounded=False),
        "rotary_scaling.rounded",
        "found false with kind llama3, expected kind yarn, or no rounded",
        rotary(kind="yarn", factor=8, context=16, rounded=False),
    ),
    (
        rotary(factor=8),
        "rotary_scaling.context",
        "not found, expected a whole number: the context before the scaling (llama3)",
        rotary(**LLAMA3),
    ),
    (
        rotary(kind="yarn", factor=8),
        "rotary_scaling.context",
        "not found, expected a whole number: the context before the scaling (yarn)",
        rotary(**YARN),
    ),
    (
        rotary(**LLAMA3, low=4),
        "rotary_scaling.low",
        "found 4, expected less than rotary_scaling.high, 4",
        rotary(**LLAMA3, low=3.9),
    ),
    (
        rotary(**YARN, low=32.5),
        "rotary_scaling.low",
        "found 32.5, expected less than rotary_scaling.high, 32",
        rotary(**YARN, low=31),
    ),
    (
        rotary(**LLAMA3, high=0.5),
        "rotary_scaling.low",
        "found 1, expected less than rotary_scaling.high, 0.5",
        rotary(**LLAMA3, high=1.5),
    ),
    (
        MLA | {"mla": LATENT | {"rope_dim": 7}},
        "mla.rope_dim",
        "rotary turns pairs of features; expected an even number, found 7",
        MLA | {"mla": LATENT | {"rope_dim": 6}},
    ),
    (
        {"mla": LATENT},
        "position",
        "found with mla, whose rope_dim features turn with the position; expected rotary",
        MLA,
    ),
    (
        {"mla": LATENT, "position": "alibi"},
        "position",
        "found with mla, whose rope_dim features turn with the position; expected rotary",
        {"mla": None, "position": "alibi"},
    ),
    (
        MLA | {"head_dim": 8},
        "head_dim",
        "found 8 with mla, expected nope_dim + rope_dim, 14, or no head_dim",
        MLA | {"head_dim": 14},
    ),
    (
        MLA | {"n_kv_heads": 2},
        "n_kv_heads",
        "found 2 with mla, expected n_heads, 4, or no n_kv_heads",
        MLA | {"n_kv_heads": 4},
    ),
    (
        MLA | {"rotary_dims": 6},
        "rotary_dims",
        "found with mla, expected mla.rope_dim, 8, or no rotary_dims",
        MLA | {"rotary_dims": 8},
    ),
    (MLA | {"qk_norm": "full"}, "qk_norm", "found with mla, which norms its latents; expected none", MLA),
    (
        MLA | {"qk_norm": "per_head"},
        "qk_norm",
        "found with mla, which norms its latents; expected none",
        MLA | {"qk_norm": "none"},
    ),
    (moe(top_k=9), "moe.top_k", "found 9, expected at most moe.experts, 8", moe(top_k=8)),
    (moe(groups=3), "moe.groups", "3 does not divide moe.experts 8; expected a divisor of it", moe(groups=2)),
    (
        moe(groups=8, top_groups=8),
        "moe.groups",
        "found 8, expected at least two experts in each group: at most 4",
        moe(groups=4, top_groups=4),
    ),
    (
        moe(groups=4, top_groups=1),
        "moe.top_groups",
        "found 1, which leaves 2 experts; expected room for moe.top_k, 4",
        moe(groups=4, top_groups=2),
    ),
    (
        moe(groups=4),  # top_groups is 1 where it isn't given
        "moe.top_groups",
        "found 1, which leaves 2 experts; expected room for moe.top_k, 4",
        moe(groups=4, top_k=2),
    ),
    (
        moe(groups=4, top_groups=5),
        "moe.top_groups",
        "found 5, expected at most moe.groups, 4",
        moe(groups=4, top_groups=4),
    ),
    (moe(top_groups=2), "moe.top_groups", "found 2, expected at most moe.groups, 1", moe(top_groups=1)),
    (
        moe(first_dense=3),
        "moe.first_dense",
        "found 3, expected less than n_layers, 3, or no moe",
        moe(first_dense=2),
    ),
    (
        moe() | {"inner_norm": True},
        "inner_norm",
        "found with moe, expected false: experts have no inner norms",
        moe() | {"inner_norm": False},
    ),
    (
        {"gate_limit": 7.0},
        "gate_limit",
        "found with gated false, expected gated true, or no gate_limit",
        {"gate_limit": 7.0, "gated": True},
    ),
    (
        {"gate_limit": 7, "gated": False},
        "gate_limit",
        "found with gated false, expected gated true, or no gate_limit",
        {"gate_limit": None, "gated": False},
    ),
    (
        {"biases": {"head": True}},
        "biases.head",
        "found with tied true, expected tied false: the embedding has no bias",
        {"biases": {"head": True}, "tied": False},
    ),
    (
        {"biases": {"head": True}, "tied": True},
        "biases.head",
        "found with tied true, expected tied false: the embedding has no bias",
        {"biases": {"head": False}},
    ),
    (
        {"biases": {"router": True}},
        "biases.router",
        "found without moe, expected moe, or no bias of a router",
        moe() | {"biases": {"router": True}},
    ),
]


@pytest.mark.parametrize(("wrong", "field", "sentence", "right"), CASES, ids=str)
def test_each_sentence(wrong: Fields, field: str, sentence: str, right: Fields) -> None:
    assert list(inconsistencies(SMALL | wrong)) == [(field, sentence)]
    assert list(inconsistencies(SMALL | right)) == []


def test_every_sentence_has_a_case() -> None:
    """All `yield field, message` of the module; what a message computes may be anything."""
    yields = [node.value for node in ast.walk(ast.parse(inspect.getsource(consistency))) if isinstance(node, ast.Yield)]
    patterns = {_pattern(pair.elts[1]) for pair in yields if isinstance(pair, ast.Tuple)}
    assert len(yields) > 25
    sentences = [sentence for _, _, sentence, _ in CASES]
    assert [pattern for pattern in patterns if not any(re.fullmatch(pattern, it) for it in sentences)] == []


def _pattern(message: ast.expr) -> str:
    parts = message.values if isinstance(message, ast.JoinedStr) else [message]
    return "".join(re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in parts)


UNUSABLE = ("many", True, 2.5, -1, 0, None, [], {}, float("nan"))
SECTIONS = ("mla", "moe", "rotary_scaling", "biases")


@pytest.mark.parametrize("value", UNUSABLE, ids=str)
@pytest.mark.parametrize(
    "field", ["d_model", "n_heads", "n_kv_heads", "head_dim", "position", "rotary_dims", "n_layers", *SECTIONS]
)
def test_what_is_no_value_of_a_field_is_left_to_the_field(field: str, value: Any) -> None:
    """`False` and `None` sections are none; of an unusable number or word, nothing is said about what goes with it."""
    given = SMALL | {"position": "rotary", field: value}
    allowed = {"rotary_scaling.context"} if field == "rotary_scaling" and value == {} else set()
    assert {name for name, _ in inconsistencies(given)} <= allowed


@pytest.mark.parametrize("value", UNUSABLE, ids=str)
@pytest.mark.parametrize("field", ["experts", "top_k", "groups", "top_groups", "first_dense"])
def test_unusable_numbers_of_experts(field: str, value: Any) -> None:
    given = SMALL | {"moe": {"experts": 8, "top_k": 4, "groups": 4, "top_groups": 3, "first_dense": 1, field: value}}
    assert list(inconsistencies(given)) == []


@pytest.mark.parametrize("value", UNUSABLE, ids=str)
@pytest.mark.parametrize("field", ["kind", "low", "high", "factor"])
def test_unusable_values_of_a_scaling(field: str, value: Any) -> None:
    scaling = {"kind": "yarn", "factor": 8, "low": 1, "high": 20, "context": 512, field: value}
    assert list(inconsistencies(SMALL | {"position": "rotary", "rotary_scaling": scaling})) == []


def test_all_that_is_wrong_is_said_at_once() -> None:
    given = SMALL | {"n_heads": 5, "n_kv_heads": 3, "rotary_base": 5e5, "gate_limit": 7.0, **moe(top_k=9)}
    assert [field for field, _ in inconsistencies(given)] == [
        "n_heads",
        "n_kv_heads",
        "rotary_base",
        "moe.top_k",
        "gate_limit",
    ]


@pytest.mark.parametrize("wiring", WIRINGS)
def test_nothing_is_wrong_with_the_small_models(wiring: str) -> None:
    assert list(inconsistencies(WIRINGS[wiring])) == []
    assert list(inconsistencies(architecture(**WIRINGS[wiring]).model_dump(exclude_unset=True))) == []
