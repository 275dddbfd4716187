"""The weights of a run by role: what they were to hold, and what they hold."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from initdiag.measure import ParameterMeasure
from initdiag.report.layout import Column
from initdiag.report.names import pattern, role_of
from initdiag.report.numbers import counted, number
from initdiag.report.report import Run
from initdiag.rules.gradients import few
from initdiag.schemes import AsFound, PlannedParameter

SAME = 0.1  # of weights as they were found: stds within 10 % are one row; sampling takes less than 2 % from 1,000 draws

Tensor = tuple[PlannedParameter, ParameterMeasure]


@dataclass(frozen=True)
class _Group:
    """Tensors of one role that are planned alike."""

    role: str
    patterns: tuple[str, ...]
    tensors: tuple[Tensor, ...]

    @property
    def planned(self) -> str:
        return in_words([entry for entry, _ in self.tensors])

    @property
    def constant(self) -> bool:
        return all(measured.std == 0 for _, measured in self.tensors)


def weight_columns(run: Run) -> tuple[Column, ...]:
    return (
        Column("role", number=False),
        Column("tensors"),
        Column("planned" if run.subject.drawn_by_us else "drawn", number=False),
        Column("std"),
        Column("kurtosis"),
        Column("max/σ"),
        Column("rank"),
    )


def weight_rows(run: Run) -> list[tuple[str, ...]]:
    """Return a row per role, and per pattern of names where a role is drawn in several ways, of what isn't constant.

    role, tensors, what they were to be (or were seen to be) drawn from, median std, median kurtosis, largest max/σ,
    median stable rank.
    """
    groups = [group for group in _groups(run) if not group.constant]
    roles = [group.role for group in groups]
    return [
        (
            group.role if roles.count(group.role) == 1 else f"{group.role}: {few(group.patterns)}",
            str(len(group.tensors)),
            group.planned,
            _median(measured.std for _, measured in group.tensors),
            _median((measured.kurtosis for _, measured in group.tensors), 3),
            number(_largest(group.tensors), 3),
            _median((measured.stable_rank for _, measured in group.tensors), 2),
        )
        for group in groups
    ]


def weight_notes(run: Run) -> list[str]:
    """Return, as sentences: what is constant, the std furthest from its plan, what is frozen, and bad buffers."""
    groups = [group for group in _groups(run) if group.constant]
    constant = [f"{group.role} {_value(group)} ({counted(len(group.tensors), 'tensor')})" for group in groups]
    frozen = sum(not one.trainable for one in run.measured.parameters)
    bad = [one.name for one in run.measured.buffers if one.not_finite]
    notes = [f"constant: {', '.join(constant)}"] if constant else []
    notes += [words] if (words := _furthest(run)) else []
    lawful = sum(not one.drawn for one in run.measured.parameters)
    if lawful:
        known = f"std and kurtosis of {counted(lawful, 'parameter')} follow from what they are drawn from"
        notes.append(f"{known}; copies and rank are not known")
    notes += [f"frozen: {counted(frozen, 'parameter')} of {len(run.measured.parameters)}"] if frozen else []
    notes += [f"buffers that hold inf or nan: {', '.join(bad)}"] if bad else []
    return notes


def in_words(entries: Sequence[PlannedParameter]) -> str:
    """Return what tensors are drawn from: 'N(0.02)', 'N(0.02) to N(0.005)' by layer; '–' where nobody said it."""
    known = list(dict.fromkeys(str(one.distribution) for one in entries if not isinstance(one.distribution, AsFound)))
    if not known:
        return number(None)
    return known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}"


def _groups(run: Run) -> list[_Group]:
    plan = run.subject.plan.by_name
    by_pattern: dict[tuple[str, str], list[Tensor]] = {}
    for measured in run.measured.parameters:
        if entry := plan.get(measured.name):
            by_pattern.setdefault((role_of(entry.parameter), pattern(measured.name)), []).append((entry, measured))
    groups: list[_Group] = []
    for (role, name), tensors in by_pattern.items():
        new = _Group(role, (name,), tuple(tensors))
        at = next((i for i, old in enumerate(groups) if old.role == role and _alike(old, new)), None)
        if at is None:
            groups.append(new)
        else:
            groups[at] = _Group(role, (*groups[at].patterns, name), (*groups[at].tensors, *tensors))
    return groups


def _alike(one: _Group, other: _Group) -> bool:
    if one.planned != other.planned or one.constant != other.constant:
        return False
    if one.constant:
        return _value(one) == _value(other)
    if one.planned != number(None):
        return True
    stds = [median(measured.std for _, measured in group.tensors) for group in (one, other)]
    return abs(stds[0] - stds[1]) <= SAME * max(stds)


def _value(group: _Group) -> str:
    values = sorted({measured.mean for _, measured in group.tensors})
    return f"{values[0]:.4g}" if len(values) == 1 else f"{values[0]:.4g} to {values[-1]:.4g}"


def _median(values: Iterable[float | None], digits: int = 4) -> str:
    known = [value for value in values if value is not None and not math.isnan(value)]
    return number(median(known) if known else None, digits)


def _largest(tensors: Sequence[Tensor]) -> float | None:
    drawn = [one for _, one in tensors if one.drawn and one.std > 0 and not math.isnan(one.max_abs)]
    ratios = [one.max_abs / one.std for one in drawn]
    return max(ratios, default=None)


def _furthest(run: Run) -> str:
    plan = run.subject.plan.by_name
    off = [
        (abs(measured.std / entry.distribution.std - 1), measured, entry.distribution.std)
        for measured in run.measured.parameters
        if measured.drawn
        and (entry := plan.get(measured.name))
        and entry.distribution.std
        and not isinstance(entry.distribution, AsFound)
    ]
    if not off:
        return ""
    worst, measured, std = max(off, key=lambda one: one[0])
    return (
        f"the std furthest from its plan ({100 * worst:.2g} % off) is that of {measured.name}: "
        f"{number(measured.std)} for {number(std)}"
    )
