"""What a table shows of a run that was predicted: numbers, their spread over draws, branches."""

from __future__ import annotations

import math
from dataclasses import replace

from initdiag.report.branches import BranchTable, branch_table
from initdiag.report.facts import FACTS, Fact, spread_of
from initdiag.report.layout import Column
from initdiag.report.numbers import number
from initdiag.report.report import Run

COLUMNS = (
    Column("", number=False),
    Column("predicted"),
    Column("± 1 std over draws"),
    Column("unit", False, 1),
)

ONLY_A_RUN = (
    "Only a run shows the largest |logit|, the largest activation, dead parameters and damaged tensors: initdiag check."
)
ROUNDING = 1e-12  # relative; a ratio that no draw changes comes out with a spread of roundings
OF_A_RUN = ("dead parameters",)  # whatever a predicted backward says: a gradient is 0 by chance, or by a fault


def predicted_facts(run: Run) -> list[tuple[Fact, float]]:
    """Return the facts that theory knows of a run, and their values."""
    known = [(fact, fact.measured(run)) for fact in FACTS if fact.key not in OF_A_RUN]
    return [(fact, value) for fact, value in known if not math.isnan(value)]


def predicted_cells(run: Run) -> list[tuple[str, str, str, str]]:
    """Return a row for each of them: its name, its value, the standard deviation of single draws, and the unit."""
    return [
        (fact.key, number(value, fact.digits), _std(spread_of(fact, run), value), fact.unit)
        for fact, value in predicted_facts(run)
    ]


def predicted_branches(run: Run) -> BranchTable:
    """Return one row per branch, without the column of expected variances: all of them are."""
    return branch_table(replace(run, expected=replace(run.expected, prediction=None)))


def _std(std: float, value: float) -> str:
    if std <= ROUNDING * abs(value):
        return "0"
    return number(None if math.isnan(std) else std, 2)
