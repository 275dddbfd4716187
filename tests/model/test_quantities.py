"""Numbers of an architecture that are written as formulas of its sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from initdiag.model.architecture import of_branch
from tests.small_models import architecture

FIELDS = ("attention_scale", "embedding_multiplier", "residual_multiplier", "stream_multiplier", "logit_multiplier")
BY_BRANCH = ("residual_multiplier", "stream_multiplier")
# d_model 32, 3 layers, 4 heads of 8, context 24, vocabulary 97
FORMULAS = [
    ("sqrt(d_model)", 32**0.5),
    ("1 / sqrt(168)", 168**-0.5),
    ("1 / head_dim", 0.125),
    ("1.4 / sqrt(n_layers)", 1.4 / 3**0.5),
    ("(2 * n_layers) ** 0.25", 6**0.25),
    ("max(n_heads, n_kv_heads) * d_ff / context", 4 * 128 / 24),
    ("log(vocab_size)", math.log(97)),
    ("3", 3.0),
]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(("formula", "value"), FORMULAS)
def test_formulas_of_sizes(field: str, formula: str, value: float) -> None:
    found = getattr(architecture(**{field: formula}), field)
    assert isinstance(found, float)
    assert found == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize("field", FIELDS)
def test_numbers_stay_what_they_are(field: str) -> None:
    assert getattr(architecture(**{field: 0.25}), field) == 0.25
    assert getattr(architecture(**{field: 2}), field) == 2.0


def test_formulas_use_the_sizes_as_given_and_as_they_follow() -> None:
    assert architecture(head_dim=10, attention_scale="head_dim").attention_scale == 10
    assert architecture(d_ff=50, logit_multiplier="d_ff").logit_multiplier == 50
    assert architecture(n_kv_heads=2, logit_multiplier="n_kv_heads").logit_multiplier == 2
    mla = {"kv_rank": 10, "nope_dim": 6, "rope_dim": 8, "value_dim": 5}
    assert architecture(position="rotary", mla=mla, attention_scale="2 / head_dim").attention_scale == 2 / 14


@pytest.mark.parametrize("field", BY_BRANCH)
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("1 / branch", [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5, 1 / 6]),
        ("layer + 1", [1, 1, 2, 2, 3, 3]),
        ("branch + layer / n_layers", [1, 2, 10 / 3, 13 / 3, 17 / 3, 20 / 3]),
        ([1, 2, 0.5, 4, 5, 6], [1, 2, 0.5, 4, 5, 6]),
        ((1.0, 2.0, 0.5, 4.0, 5.0, 6.0), [1, 2, 0.5, 4, 5, 6]),
        (0.5, 6 * [0.5]),
        ("1 / n_layers", 6 * [1 / 3]),
    ],
    ids=str,
)
def test_multipliers_of_branches(field: str, given: Any, expected: list[float]) -> None:
    multiplier = getattr(architecture(**{field: given}), field)
    assert [of_branch(multiplier, k) for k in range(1, 7)] == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("field", BY_BRANCH)
@pytest.mark.parametrize("given", [6 * [0.5], "0.5 + 0 * layer", "branch / (2 * branch)"], ids=str)
def test_branches_that_are_alike_have_one_number(field: str, given: Any) -> None:
    assert getattr(architecture(**{field: given}), field) == 0.5


TOO_SMALL = "greater than 0"
NO_NUMBER = "expected a number above 0 and up to 1e+06, a formula, or a list of numbers"
REFUSED: list[tuple[tuple[str, ...], Any, str]] = [
    (FIELDS, "sqrt(d_modl)", "a formula uses 'd_modl'; expected one of "),
    (FIELDS, "sqrt(d_modl)", "context, d_ff, d_model, "),
    (FIELDS, "sqrt(d_modl)", "(did you mean 'd_model'?)"),
    (FIELDS, "1 /", "can't compute the formula '1 /'"),
    (FIELDS, "open('x')", "can't compute the formula 'open('x')'"),
    (FIELDS, "1 / 0", "can't compute the formula '1 / 0': float division by zero"),
    (FIELDS, "1e300 ** 2", "can't compute the formula '1e300 ** 2'"),
    (FIELDS, "std", "a formula uses 'std'"),
    (FIELDS, "", "can't compute the formula ''"),
    (("attention_scale", "embedding_multiplier", "logit_multiplier"), "layer", "a formula uses 'layer'"),
    (("attention_scale", "embedding_multiplier", "logit_multiplier"), "1 - d_model", TOO_SMALL),
    (("attention_scale", "embedding_multiplier", "logit_multiplier"), 0.0, TOO_SMALL),
    (("attention_scale", "embedding_multiplier", "logit_multiplier"), "1e7", "less than or equal to 1000000"),
    (("attention_scale", "embedding_multiplier", "logit_multiplier"), float("nan"), "should be a finite number"),
    (("attention_scale", "embedding_multiplier", "logit_multiplier"), [1.0], "should be a valid number"),
    (("attention_scale", "embedding_multiplier", "logit_multiplier"), True, "should be a valid number"),
    (BY_BRANCH, 0, f"found 0, {NO_NUMBER}"),
    (BY_BRANCH, -2.5, f"found -2.5, {NO_NUMBER}"),
    (BY_BRANCH, True, f"found True, {NO_NUMBER}"),
    (BY_BRANCH, None, f"found None, {NO_NUMBER}"),
    (BY_BRANCH, float("inf"), f"found inf, {NO_NUMBER}"),
    (BY_BRANCH, float("nan"), f"found nan, {NO_NUMBER}"),
    (BY_BRANCH, "layer", "the formula 'layer' gives 0, expected numbers above 0 and up to 1e+06"),  # the first
    (BY_BRANCH, "1 / layer", "can't compute the formula '1 / layer': float division by zero"),
    (BY_BRANCH, [1, 2, 3, 4, 5, "6"], f"found '6', {NO_NUMBER}"),
    (BY_BRANCH, [1, 2, 3], "found 3 numbers, expected one for each of the 6 branches, or one for all"),
    (BY_BRANCH, [], "found 0 numbers, expected one for each of the 6 branches, or one for all"),
    (BY_BRANCH, {"attention": 1}, NO_NUMBER),
]


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [(field, given, message) for fields, given, message in REFUSED for field in fields],
    ids=str,
)
def test_refused(field: str, given: Any, message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        architecture(**{field: given})
    errors = [error for error in caught.value.errors() if error["type"] != "default_factory_not_called"]
    assert {error["loc"][0] for error in errors} == {field}
    assert any(message in error["msg"] for error in errors), [error["msg"] for error in errors]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("formula", ["sqrt(d_model)", "sqrt(head_dim)"])
def test_a_formula_of_a_wrong_size_is_no_second_fault(field: str, formula: str) -> None:
    """It is marked `formula_depends`, which readers of the errors leave out."""
    with pytest.raises(ValidationError) as caught:
        architecture(d_model="wide", **{field: formula})
    types = {error["loc"][0]: error["type"] for error in caught.value.errors()}
    assert types["d_model"] == "int_type"
    assert types[field] == "formula_depends"


@pytest.mark.parametrize("field", BY_BRANCH)
@pytest.mark.parametrize("given", ["layer + 1", "1 / sqrt(branch)", "1 / sqrt(2 * n_layers)"])
def test_branches_of_a_wrong_number_of_layers(field: str, given: str) -> None:
    with pytest.raises(ValidationError) as caught:
        architecture(n_layers="three", **{field: given})
    types = {error["loc"][0]: error["type"] for error in caught.value.errors()}
    assert types[field] == "formula_depends"
