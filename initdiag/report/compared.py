"""Schemes side by side: one column for each, one row for each number, and what they do differently."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from initdiag.measure import mean
from initdiag.report.facts import Fact, shown, size
from initdiag.report.header import demands_compared, engines_compared
from initdiag.report.layout import SEVERITY_COLORS, Column, colored, paragraph, table, tables
from initdiag.report.numbers import number, setting, sparkline, spread
from initdiag.report.report import Report, Run
from initdiag.report.scheme_words import plan_in_short, written
from initdiag.report.style import Style
from initdiag.rules import Finding, Severity
from initdiag.schemes import SCHEMES, Role

SPARK = 12
SIDE_BY_SIDE = 3  # schemes whose formulas are readable beside each other at 80 columns

Groups = Mapping[str, Sequence[Run]]


def compared(report: Report, style: Style) -> str:
    """Render a comparison."""
    groups = by_scheme(report.runs)
    first = report.runs[0]
    seeds = sorted({run.seed for run in report.runs})
    told = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds ({seeds[0]} to {seeds[-1]}), mean ± std"
    parts = [
        "\n".join(
            (
                paragraph(f"{first.subject.target}: {', '.join(groups)}; {told}", style),
                paragraph(
                    f"{size(first)}; tokens: {first.batch.describe()}",
                    style,
                ),
                *(paragraph(line, style) for line in (*demands_compared(groups), *engines_compared(groups))),
            )
        )
    ]
    labels, rows = comparison_rows(groups)
    columns = [Column("", number=False), *map(Column, groups)]
    parts += tables(columns, [[label, *row] for label, row in zip(labels, rows, strict=True)], style)
    parts.append(_differences(groups, style))
    largest = max((_finite_peak(runs[0]) for runs in groups.values()), default=0.0)  # one scale for all sparklines
    if len(groups) > 1:
        told = "" if len(seeds) == 1 else f", seed {first.seed}"
        parts.append(paragraph(f"The stream's variance along the branches, all schemes on one scale{told}:", style))
    parts += [_findings(scheme, runs, largest, style) for scheme, runs in groups.items()]
    found = [run for run in report.runs if run.findings]
    loud = [run for run in found if any(finding.severity is not Severity.INFO for finding in run.findings)]
    if failing := next(iter(loud or found), None):
        told = f"initdiag check {failing.subject.typed} --scheme {failing.scheme}"
        parts.append(paragraph(f"What was found, and what to write instead: {told}", style))
    if report.pick:
        parts.append(paragraph(f"pick: {report.pick.scheme}: {report.pick.why}", style, indent="  ", first=""))
    return "\n\n".join(part for part in parts if part) + "\n"


def by_scheme(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Group the runs of a comparison, schemes in the order in which they were asked for."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.scheme, []).append(run)
    return groups


def comparison_rows(groups: Groups) -> tuple[list[str], list[list[str]]]:
    """Return a label and a row of cells, one per scheme, for every number; what is expected of it stands below."""
    facts = shown(run for runs in groups.values() for run in runs)
    labels, rows = [], []
    for fact in facts:
        labels.append(fact.key)
        rows.append([_cell(fact, runs) for runs in groups.values()])
        expected = [_expected(fact, runs) for runs in groups.values()]
        if any(cell != number(None) for cell in expected):
            labels.append("  expected")
            rows.append(expected)
    return labels, rows


def _expected(fact: Fact, runs: Sequence[Run]) -> str:
    values = [value for run in runs if (value := fact.expected(fact, run)) is not None]
    return number(mean(values) if values else None, fact.digits)


def _cell(fact: Fact, runs: Sequence[Run]) -> str:
    values = [fact.measured(run) for run in runs]
    return number(None) if not fact.always and all(map(math.isnan, values)) else spread(values, fact.digits)


def _differences(groups: Groups, style: Style) -> str:
    """List the roles that the schemes draw differently, as formulas, and the values of the schemes' parameters."""
    plans = [runs[0].subject.plan for runs in groups.values()]
    if len(groups) > SIDE_BY_SIDE:
        lines = [f"{scheme}: {'; '.join(plan_in_short(plan))}" for scheme, plan in zip(groups, plans, strict=True)]
        return "\n".join(paragraph(line, style, indent="  ", first="") for line in ("drawn from, in numbers:", *lines))
    rows = []
    for role in Role:
        drawn = [tuple(entry.distribution for entry in plan.with_role(role)) for plan in plans]
        if len(set(drawn)) > 1:
            rows.append([str(role), *(_formula(runs[0], role) for runs in groups.values())])
    if not rows:
        return paragraph("These schemes draw the same weights for this model.", style) if len(plans) > 1 else ""
    for name in dict.fromkeys(name for plan in plans for name in plan.settings):
        rows.append([f"  {name}", *(setting(plan.settings.get(name)) for plan in plans)])
    columns = [Column("drawn from", number=False), *(Column(scheme, number=False) for scheme in groups)]
    return table(columns, rows, style)


def _formula(run: Run, role: Role) -> str:
    """Return a scheme's formula for a role; of a scheme that isn't one of ours, what it came to, in the first layer and
    the last; of weights that are left alone, that they are."""
    if not run.subject.drawn_by_us:
        return "as built"
    if run.scheme in SCHEMES:
        draw = SCHEMES[run.scheme].roles.get(role)
        return written(draw) if draw else "as built"
    drawn = [str(entry.distribution) for entry in run.subject.plan.with_role(role)]
    return " … ".join(dict.fromkeys([*drawn[:1], *drawn[-1:]]))


def _finite_peak(run: Run) -> float:
    variances = [branch.stream_variance for branch in run.measured.residual.branches]
    return max(filter(math.isfinite, variances), default=0.0)


def _findings(scheme: str, runs: Sequence[Run], largest: float, style: Style) -> str:
    """Summarise a scheme: verdict, growth of its stream, and the rules that spoke, with the first seed that they
    spoke of."""
    variances = [branch.stream_variance for branch in runs[0].measured.residual.branches]
    failed = sum(run.verdict == "fail" for run in runs)
    word = "fail" if failed else "pass"
    often = f" in {failed} of {len(runs)} seeds" if 0 < failed < len(runs) else ""
    line = f"{scheme}: {colored(word.upper(), SEVERITY_COLORS[word], style)}{often}"
    if variances:
        growth = sparkline(variances, largest, SPARK, style.ascii)
        line += style.text(f"  stream variance {growth} {number(variances[0])} to {number(variances[-1])}")
    lines = [line]
    spoken: dict[str, list[tuple[int, Finding]]] = {}
    for run in runs:
        for one in run.findings:
            spoken.setdefault(one.rule, []).append((run.seed, one))
    for found in spoken.values():
        seed, one = found[0]
        where = f" (seed {seed}; in {len(found)} of {len(runs)} seeds)" if len(runs) > 1 else ""
        text = f"{one.severity} {one.rule} {one.name}: {one.message}{where}"
        lines.append(paragraph(text, style, indent="    ", first="  "))
    return "\n".join(lines)
