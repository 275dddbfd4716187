"""A report for a terminal or a CI log."""

from __future__ import annotations

from initdiag.report.compared import compared
from initdiag.report.facts import FACTS, branch_cells, expectation, size
from initdiag.report.layout import SEVERITY_COLORS, Column, colored, paragraph, table
from initdiag.report.numbers import bar, number
from initdiag.report.report import Report, Run
from initdiag.report.style import Style
from initdiag.rules import Finding, Severity

BAR = 8


def render(report: Report, style: Style) -> str:
    """Render every run whole, or a comparison side by side."""
    if report.pick is not None:
        return compared(report, style)
    return "\n\n".join(_run(run, style) for run in report.runs) + "\n"


def _run(run: Run, style: Style) -> str:
    parts = [header(run, style), _numbers(run, style), _branches(run, style), _weights(run, style)]
    parts += [finding(one, style) for one in run.findings]
    parts.append(verdict(run, style))
    return "\n\n".join(part for part in parts if part)


def header(run: Run, style: Style) -> str:
    """Say what was run: model, scheme, tokens and how."""
    plan = run.subject.plan
    settings = ", ".join(f"{name} {value:.4g}" for name, value in plan.settings.items())
    lines = (
        f"{run.subject.target}: scheme {run.scheme}" + (f" ({settings})" if settings else "") + f", seed {run.seed}",
        size(run),
        f"tokens: {run.batch.describe()}",
        f"engine: {run.engine}, {run.dtype}, {run.versions['device']}; torch {run.versions['torch']}, "
        f"initdiag {run.versions['initdiag']}",
    )
    return "\n".join(paragraph(line, style, indent="  ", first="") for line in lines)


def _numbers(run: Run, style: Style) -> str:
    rows = []
    for fact in FACTS:
        rows.append((fact.key, number(fact.measured(run), fact.digits), expectation(fact, run), fact.unit))
    return table(
        (Column("", number=False), Column("measured"), Column("expected"), Column("unit", False, 1)), rows, style
    )


def _branches(run: Run, style: Style) -> str:
    branches = run.measured.residual.branches
    if not branches:
        return paragraph("No residual stream was found: no addition of a branch to what the embedding wrote.", style)
    columns = (
        Column("#", optional=2),
        Column("branch", number=False),
        Column("variance"),
        Column("expected", optional=3),
        Column("stream"),
        Column("ratio", optional=1),
        Column("growth", number=False, optional=4),
    )
    largest = max(branch.stream_variance for branch in branches)
    bars = [bar(branch.stream_variance, largest, BAR, style.ascii) for branch in branches]
    rows = [(*cells, drawn) for cells, drawn in zip(branch_cells(run), bars, strict=True)]
    return table(columns, rows, style)


def _weights(run: Run, style: Style) -> str:
    plan = run.subject.plan.by_name
    off = [
        (abs(measured.std / plan[measured.name].distribution.std - 1), measured)
        for measured in run.measured.parameters
        if measured.name in plan and plan[measured.name].distribution.std
    ]
    if not off:
        return ""
    worst, measured = max(off, key=lambda pair: pair[0])
    return paragraph(
        f"weights: {len(run.measured.parameters)} parameters; the std furthest from its plan is that of "
        f"{measured.name}, {number(measured.std)} for {number(plan[measured.name].distribution.std)} "
        f"({100 * worst:.2g} %)",
        style,
        indent="  ",
        first="",
    )


def finding(one: Finding, style: Style) -> str:
    """Write a finding: severity and rule; who sets it; what was measured; what to write instead."""
    head = colored(str(one.severity), SEVERITY_COLORS[one.severity], style)
    lines = [f"{head} {one.rule} {one.name}"]
    if one.location:
        lines.append(style.text(f"  at {one.location}"))  # never wrapped: terminals open it with a click
    lines += [paragraph(one.message, style, indent="  "), paragraph(f"instead: {one.help}", style, indent="  ")]
    return "\n".join(lines)


def verdict(run: Run, style: Style) -> str:
    """Write the verdict and what it rests on."""
    errors, warnings = run.count(Severity.ERROR), run.count(Severity.WARNING)
    counted = f"{errors} error{'' if errors == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}"
    return f"verdict: {colored(run.verdict.upper(), SEVERITY_COLORS[run.verdict], style)} ({counted})"
