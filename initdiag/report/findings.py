"""The findings of a report as plain text: what an assertion says."""

from __future__ import annotations

from initdiag.report.header import found
from initdiag.report.report import Report, Run


def findings_text(report: Report) -> str:
    """Return a line for each run with its verdict and target, and below it every finding with its message and help.

    No colours, no wrapping: pytest and logs bring their own.
    """
    return "\n".join(line for run in report.runs for line in _lines(run))


def _lines(run: Run) -> list[str]:
    lines = [f"initdiag: {run.verdict.upper()} {run.subject.target or run.subject.name} ({found(run)})"]
    for one in run.findings:
        where = f" (at {one.location})" if one.location else ""
        lines += [f"{one.severity} {one.rule} {one.name}{where}: {one.message}", f"  instead: {one.help}"]
    return lines
