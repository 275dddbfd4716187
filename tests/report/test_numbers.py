from __future__ import annotations

import doctest
import math

import pytest

from initdiag.report import numbers
from initdiag.report.numbers import bar, counted, number, sparkline, spread


def test_the_examples_in_the_docstrings() -> None:
    assert doctest.testmod(numbers).failed == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0"), (1.0, "1.000"), (123456.0, "1.235e+05"), (math.inf, "inf"), (-0.5, "-0.5000")],
)
def test_numbers_have_four_digits(value: float | None, text: str) -> None:
    assert number(value) == text


def test_spread_is_the_sample_standard_deviation() -> None:
    assert spread([2.0, 4.0]) == "3.000 ± 1.4"
    assert spread([2.0, math.nan]) == "nan"


def test_bars_grow_with_the_value() -> None:
    widths = [len(bar(value, 10.0, 8, ascii_only=True)) for value in (0.0, 0.1, 5.0, 10.0)]
    assert widths == [0, 1, 4, 8]
    assert bar(10.0, 10.0, 8, ascii_only=False) == "█" * 8
    assert bar(math.nan, 10.0, 8, ascii_only=False) == ""


def test_a_sparkline_begins_at_zero_and_samples_evenly() -> None:
    assert sparkline([0.0, 7.0], 7.0, 12, ascii_only=False) == "▁█"
    assert sparkline([5.0, 5.0], 10.0, 12, ascii_only=False) == "▅▅"
    assert len(sparkline([float(i) for i in range(252)], 251.0, 12, ascii_only=False)) == 12
    assert sparkline([0.0, 0.0], 0.0, 12, ascii_only=True) == "__"
    assert sparkline([math.nan, 1.0], 1.0, 12, ascii_only=True) == "?@"


def test_counts_have_no_digits_behind_the_point() -> None:
    assert (number(3.0, 0), number(12345.0, 0), number(0.0, 0)) == ("3", "12345", "0")
    assert spread([2.0], 0) == "2" and spread([2.0, 3.0], 0) == "2.5 ± 0.71"
    assert [counted(1, "branch"), counted(2, "branch"), counted(0, "error")] == ["1 branch", "2 branches", "0 errors"]
