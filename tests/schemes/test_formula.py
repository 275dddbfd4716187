"""Formulas: arithmetic as people write it, and nothing else."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from initdiag.errors import PlanError
from initdiag.schemes.formula import evaluate, require_names

NAMES = {"std": 0.02, "n_layers": 12.0, "fan_in": 768.0}

VALUES = [
    ("1 + 2 * 3", 7.0),
    ("(1 + 2) * 3", 9.0),
    ("2 - 3 - 4", -5.0),
    ("8 / 4 / 2", 1.0),
    ("2 * 3 ** 2", 18.0),
    ("2 ** 3 ** 2", 512.0),  # from the right, as on paper
    ("-2 ** 2", -4.0),
    ("2 ** -1", 0.5),
    ("7 / 2", 3.5),
    ("--3", 3.0),
    ("sqrt(16)", 4.0),
    ("log(1)", 0.0),
    ("log(8, 2)", 3.0),
    (" 1 + 1 ", 2.0),
    ("min(3, 1, 2)", 1.0),
    ("max(3, 1, 2)", 3.0),
    ("1e-3", 0.001),
    ("std / sqrt(2 * n_layers)", 0.02 / math.sqrt(24)),
    ("sqrt(2 / (5 * fan_in))", math.sqrt(2 / 3840)),
    ("sqrt(1 / (14336 * 3))", 0.00482197968631537),  # bigscience tr11, as printed in its README
    ("sqrt(2 / (5 * 11600))", 0.00587220219514703),  # bigscience lessons-learned.md
]


@pytest.mark.parametrize(("formula", "value"), VALUES)
def test_value(formula: str, value: float) -> None:
    assert evaluate(formula, NAMES) == pytest.approx(value, rel=1e-14)


_numbers = st.integers(1, 99).map(str)
_formulas = st.recursive(
    _numbers, lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})")
)


@settings(max_examples=100, derandomize=True, deadline=None, database=None)
@given(_formulas)
def test_arithmetic_is_pythons(formula: str) -> None:
    try:
        expected = float(eval(formula))  # digits, parentheses and four operators, as generated above
    except ZeroDivisionError:
        with pytest.raises(PlanError):
            evaluate(formula, {})
        return
    # numbers are floats from the start, so a difference of rounding is allowed, measured at the size of its terms
    assert evaluate(formula, {}) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_an_unknown_name_is_named_with_a_suggestion() -> None:
    with pytest.raises(PlanError) as caught:
        evaluate("std / n_layer", NAMES)
    message = str(caught.value)
    assert "'n_layer'" in message
    assert "expected one of fan_in, n_layers, std" in message
    assert "did you mean 'n_layers'?" in message


NOT_ARITHMETIC = [
    "std.real",
    "().__class__.__bases__[0].__subclasses__()",
    "__import__('os').system('true')",
    "open('/etc/passwd')",
    "exp(1)",
    "(lambda: 1)()",
    "lambda: 1",
    "[1, 2][0]",
    "{1: 2}[1]",
    "[x for x in (1, 2)]",
    "1 if 1 else 2",
    "1 < 2",
    "1 and 2",
    "(x := 1)",
    "'a' * 3",
    "f'{std}'",
    "True",
    "None",
    "1j",
    "5 // 2",
    "5 % 2",
    "1 << 99",
    "~1",
    "sqrt(x=4)",
    "sqrt(*(4,))",
    "sqrt",
    "",
    "1 +",
    "std = 1",
    "import os",
    "1; 2",
    "\0",
]


@pytest.mark.parametrize("formula", NOT_ARITHMETIC)
def test_anything_else_is_refused_in_a_sentence_that_shows_it(formula: str) -> None:
    with pytest.raises(PlanError) as caught:
        evaluate(formula, NAMES)
    if formula != "sqrt":  # taken for the name of a value
        assert formula in str(caught.value)


IN_OUR_WORDS = [
    ("é∞", "'∞' is not arithmetic"),
    ("2 × 3", "'×' is not arithmetic"),
    ("1 σ", "'σ' is not arithmetic"),
    ("\0", "'\\x00' is not arithmetic"),
    ("1 [", "'[' is not arithmetic"),
    ("(1", "a '(' is never closed"),
    ("sqrt((2)", "a '(' is never closed"),
    ("1)", "a ')' closes nothing"),
    ("1)(", "a ')' closes nothing"),
    ("", "there is nothing in it"),
    ("  ", "there is nothing in it"),
    ("1 +", "it is not arithmetic"),
    ("1 2", "it is not arithmetic"),
    ("max(1)", "max of 1 number; expected two numbers or more"),
    ("min()", "min of no numbers; expected two numbers or more"),
    ("sqrt(1, 2)", "sqrt of 2 numbers; expected one number"),
    ("sqrt()", "sqrt of no numbers; expected one number"),
    ("log(1, 2, 3)", "log of 3 numbers; expected one number, or a number and a base"),
    ("9" * 5000, "a number has too many digits"),
    ("(" * 300 + "1" + ")" * 300, "it is nested too deeply"),
    ("-" * 10_000 + "1", "it is nested too deeply"),
    ("1 + " * 5_000 + "1", "it is nested too deeply"),
    ("10 ** 400", "'10 ** 400' is too large"),
    ("9" * 400, "'" + "9" * 59 + "…' is too large"),
]
OF_NUMBERS = [
    ("sqrt(std - 1)", "'sqrt(std - 1)' is not defined for -0.98"),
    ("log(0)", "'log(0)' is not defined for 0"),
    ("(-8) ** 0.5", "'(-8) ** 0.5' is no real number"),
    ("1 / 0", "float division by zero"),
    ("0 ** -1", "float division by zero"),
]


@pytest.mark.parametrize(("formula", "says"), IN_OUR_WORDS + OF_NUMBERS, ids=lambda text: ascii(text[:24]))
def test_no_words_of_python_reach_users(formula: str, says: str) -> None:
    with pytest.raises(PlanError) as caught:
        evaluate(formula, NAMES)
    assert str(caught.value) == f"can't compute the formula '{formula}': {says}"


OF_TEXT = [*(formula for formula, _ in IN_OUR_WORDS if formula != "10 ** 400"), *NOT_ARITHMETIC]


@pytest.mark.parametrize("formula", OF_TEXT, ids=lambda formula: ascii(formula[:24]))
def test_names_are_checked_in_the_same_words(formula: str) -> None:
    """Formulas of schemes of other distributions are checked when there are no numbers yet."""
    said = []
    for check in (evaluate, require_names):
        with pytest.raises(PlanError) as caught:
            check(formula, NAMES)
        said.append(str(caught.value))
    assert said[0] == said[1]


@pytest.mark.parametrize("formula", [formula for formula, _ in VALUES + OF_NUMBERS])
def test_names_are_enough_for_a_formula_that_is_arithmetic(formula: str) -> None:
    require_names(formula, dict.fromkeys(NAMES))
    if "std" in formula:
        with pytest.raises(PlanError, match="a formula uses 'std'; expected one of n_layers, x"):
            require_names(formula, {"x": None, "n_layers": None})


NO_FINITE_VALUE = [
    "1 / 0",
    "0 ** -1",
    "sqrt(-1)",
    "log(0)",
    "(-8) ** 0.5",  # a complex number
    "sqrt((-8) ** 0.5)",
    "min()",
    "sqrt(1, 2)",
    "1e999",
    "1e999 - 1e999",
    "1e308 * 10",
    "9 ** 9 ** 9",
    "10 ** 400",
    "9 ** 9 ** 9 ** 9 ** 9",
    "9" * 400,
    "9" * 5000,
    "-" * 10_000 + "1",
    "1 ** " * 3_000 + "1",
    "1 + " * 5_000 + "1",
    "(" * 300 + "1" + ")" * 300,
    "nan",
    "inf",
]


@pytest.mark.parametrize("formula", NO_FINITE_VALUE, ids=lambda formula: formula[:24])
def test_no_finite_value_is_a_plan_error_at_once(formula: str) -> None:
    begin = time.monotonic()
    with pytest.raises(PlanError):
        evaluate(formula, NAMES)
    assert time.monotonic() - begin < 2  # 9 ** 9 ** 9 in whole numbers would run for hours


def test_a_value_that_is_not_finite_is_refused() -> None:
    with pytest.raises(PlanError, match="gives inf; expected a finite number"):
        evaluate("std", {"std": math.inf})
