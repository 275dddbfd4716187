"""A report for a terminal or a CI log."""

from __future__ import annotations

from initdiag.report.compared import compared
from initdiag.report.facts import FACTS, branch_cells
from initdiag.report.layout import SEVERITY_COLORS, Column, colored, paragraph, table
from initdiag.report.numbers import bar, layers, number
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
    shape, plan = run.subject.architecture, run.subject.plan
    settings = ", ".join(f"{name} {value:.4g}" for name, value in plan.settings.items())
    count = sum(entry.parameter.numel for entry in plan.entries)
    lines = (
        f"{run.subject.target}: scheme {run.scheme}" + (f" ({settings})" if settings else "") + f", seed {run.seed}",
        f"{layers(shape.n_layers)}, d_model {shape.d_model:,}, vocabulary {shape.vocab_size:,}, {parameters(count)}",
        f"tokens: {run.batch.describe()}",
        f"engine: {run.engine}, {run.dtype}, {run.versions['device']}; torch {run.versions['torch']}, "
        f"initdiag {run.versions['initdiag']}",
    )
    return "\n".join(paragraph(line, style, indent="  ", first="") for line in lines)


def parameters(count: int) -> str:
    """Write a number of parameters: '124.4 M parameters'."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit} parameters"
    return f"{count} parameters"


def _numbers(run: Run, style: Style) -> str:
    rows = []
    for fact in FACTS:
        expected = number(fact.expected(run), fact.digits)
        if fact.key == "loss":
            expected += f" ± {number(run.expected.allowance, 3)}"
        rows.append((fact.key, number(fact.measured(run), fact.digits), expected, fact.unit))
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
    """Write a finding: severity, rule and place; what was measured; what to write instead."""
    head = colored(str(one.severity), SEVERITY_COLORS[one.severity], style)
    place = f" at {one.location}" if one.location else ""
    return "\n".join(
        (
            f"{head} {one.rule} {one.name}" + style.text(place),
            paragraph(one.message, style, indent="  "),
            paragraph(f"instead: {one.help}", style, indent="  "),
        )
    )


def verdict(run: Run, style: Style) -> str:
    """Write the verdict and what it rests on."""
    errors, warnings = run.count(Severity.ERROR), run.count(Severity.WARNING)
    counted = f"{errors} error{'' if errors == 1 else 's'}, {warnings} warning{'' if warnings == 1 else 's'}"
    return f"verdict: {colored(run.verdict.upper(), SEVERITY_COLORS[run.verdict], style)} ({counted})"
