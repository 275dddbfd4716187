"""The residual branches as rows of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from initdiag.measure import AttentionMeasure, Branch
from initdiag.report.layout import Column
from initdiag.report.numbers import number
from initdiag.report.report import Run

ATTENTION = ("attention", "cross_attention")


@dataclass(frozen=True)
class BranchTable:
    """Columns that hold something, and a row of cells for each branch."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]


def branch_table(run: Run) -> BranchTable:
    """Return one row per branch; a column that is empty for all of them is left out.

    What a branch reads (RMS), what its tokens differ in and its attention's entropy are shown where the width allows
    it; its gradient, which was asked for, always.
    """
    expected, sharp = run.expected.branches, entropies(run)
    cells: list[tuple[Column, Callable[[Branch], str]]] = [
        (Column("#", optional=2), lambda branch: str(branch.index)),
        (Column("branch", number=False), label),
        (Column("variance"), lambda branch: number(branch.branch_variance)),
        (Column("expected", optional=3), lambda branch: _some(_variance(expected.get(branch.index)))),
        (Column("stream"), lambda branch: number(branch.stream_variance)),
        (Column("ratio", optional=1), lambda branch: number(branch.ratio, 3)),
        (Column("reads", optional=7), lambda branch: _some(branch.reads[0].rms if branch.reads else None, 3)),
        (Column("tokens", optional=8), lambda branch: _some(branch.token_share, 3)),
        (Column("entropy", optional=9), lambda branch: _some(sharp.get(branch.index))),
        (Column("gradient"), lambda branch: _some(branch.gradient_norm, 3)),
    ]
    branches = run.measured.residual.branches
    columns, written = [], []
    for column, cell in cells:
        texts = [cell(branch) for branch in branches]
        if any(text != number(None) for text in texts):
            columns.append(column)
            written.append(texts)
    return BranchTable(tuple(columns), tuple(zip(*written, strict=True)))


def label(branch: Branch) -> str:
    """Return the name of a branch, and what is unusual about the addition, in words."""
    notes = ["parallel"] if branch.joined > 1 else []
    notes += ["second stream"] if branch.stream else []
    return branch.name + "".join(f", {note}" for note in notes)


def entropies(run: Run) -> dict[int, float]:
    """Return the entropy ratio of the attention of each attention branch, by the index of the branch.

    An attention belongs to the branch whose name begins with its own; else to the only one of its layer that is left;
    else, where as many are left as branches, to them in order. Shared layers come by several times, in order.
    """
    left = list(run.measured.attention)
    found: dict[int, float] = {}
    waiting = [branch for branch in run.measured.residual.branches if branch.kind in ATTENTION]

    def settle(match: Callable[[Branch, Sequence[AttentionMeasure]], AttentionMeasure | None]) -> None:
        for branch in tuple(waiting):
            attention = match(branch, left)
            if attention is not None:
                left.remove(attention)
                waiting.remove(branch)
                found[branch.index] = attention.entropy_ratio

    settle(_by_name)
    settle(_by_layer)
    if len(left) == len(waiting):
        found |= {branch.index: one.entropy_ratio for branch, one in zip(waiting, left, strict=True)}
    return found


def _by_name(branch: Branch, left: Sequence[AttentionMeasure]) -> AttentionMeasure | None:
    return next((one for one in left if one.name and f"{branch.name}.".startswith(f"{one.name}.")), None)


def _by_layer(branch: Branch, left: Sequence[AttentionMeasure]) -> AttentionMeasure | None:
    same = [one for one in left if branch.layer is not None and one.layer == branch.layer]
    return same[0] if len(same) == 1 else None


def _variance(branch: Branch | None) -> float | None:
    return branch.branch_variance if branch else None


def _some(value: float | None, digits: int = 4) -> str:
    """Like number, but a value that could not be measured is none."""
    return number(None if value is not None and math.isnan(value) else value, digits)
