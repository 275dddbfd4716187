"""A report for a terminal or a CI log."""

from __future__ import annotations

from initdiag.report.advised import advice_lines, heading
from initdiag.report.branches import branch_table
from initdiag.report.compared import compared
from initdiag.report.facts import fact_cells
from initdiag.report.header import found, header_lines
from initdiag.report.layout import SEVERITY_COLORS, Column, colored, paragraph, table
from initdiag.report.numbers import bar
from initdiag.report.predicted import COLUMNS, ONLY_A_RUN, predicted_branches, predicted_cells
from initdiag.report.report import Report, Run
from initdiag.report.style import Style
from initdiag.report.weights import weight_columns, weight_notes, weight_rows
from initdiag.rules import Finding

BAR = 8


def render(report: Report, style: Style) -> str:
    """Render every run whole, or a comparison side by side."""
    if report.pick is not None:
        return compared(report, style)
    return "\n\n".join(_run(run, style) for run in report.runs) + "\n"


def _run(run: Run, style: Style) -> str:
    parts = [header(run, style), _numbers(run, style), _branches(run, style), _weights(run, style)]
    parts += [finding(one, style) for one in run.findings]
    parts.append(_advice(run, style))
    parts.append(verdict(run, style))
    return "\n\n".join(part for part in parts if part)


def header(run: Run, style: Style) -> str:
    """Say what was run: model, scheme, wiring, tokens and how."""
    return "\n".join(paragraph(line, style, indent="  ", first="") for line in header_lines(run))


def _numbers(run: Run, style: Style) -> str:
    if run.predicted:
        return table(COLUMNS, predicted_cells(run), style)
    columns = (Column("", number=False), Column("measured"), Column("expected"), Column("unit", False, 1))
    return table(columns, fact_cells(run), style)


def _branches(run: Run, style: Style) -> str:
    branches = run.measured.residual.branches
    if not branches:
        return ""  # the header says what was tried
    body = predicted_branches(run) if run.predicted else branch_table(run)
    largest = max(branch.stream_variance for branch in branches)
    bars = [bar(branch.stream_variance, largest, BAR, style.ascii) for branch in branches]
    rows = [(*cells, drawn) for cells, drawn in zip(body.rows, bars, strict=True)]
    return table((*body.columns, Column("growth", number=False, optional=4)), rows, style)


def _weights(run: Run, style: Style) -> str:
    notes = [paragraph(note, style, indent="  ", first="") for note in weight_notes(run)]
    rows = weight_rows(run)
    return "\n\n".join([table(weight_columns(run), rows, style)] * bool(rows) + ["\n".join(notes)] * bool(notes))


def finding(one: Finding, style: Style) -> str:
    """Write a finding: severity and rule; who sets it; what was measured; what to write instead."""
    head = colored(str(one.severity), SEVERITY_COLORS[one.severity], style)
    lines = [f"{head} {one.rule} {one.name}"]
    if one.location:
        lines.append(style.text(f"  at {one.location}"))  # never wrapped: terminals open it with a click
    lines += [paragraph(one.message, style, indent="  "), paragraph(f"instead: {one.help}", style, indent="  ")]
    return "\n".join(lines)


def _advice(run: Run, style: Style) -> str:
    lines = [paragraph(heading(run), style)] if run.advice else []
    for write, then in advice_lines(run):
        lines += [paragraph(write, style, indent="    ", first="  "), paragraph(then, style, indent="      ")]
    return "\n".join(lines)


def verdict(run: Run, style: Style) -> str:
    """Write the verdict and what it rests on; of a prediction, also what it can't."""
    said = f"verdict: {colored(run.verdict.upper(), SEVERITY_COLORS[run.verdict], style)} ({found(run)})"
    return f"{said}, predicted\n{paragraph(ONLY_A_RUN, style)}" if run.predicted else said
