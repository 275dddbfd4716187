"""Findings as GitHub Actions annotations on the line of the config that is at fault."""

from __future__ import annotations

from initdiag.errors import Location, Option
from initdiag.report.header import scheme_in_words
from initdiag.report.predicted import ONLY_A_RUN
from initdiag.report.report import Report, Run
from initdiag.report.style import Style
from initdiag.rules import Finding, Severity

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
PER_STEP = 10  # GitHub shows ten errors and ten warnings of a step and silently drops the rest


def render(report: Report, style: Style) -> str:
    """Render the worst findings as annotations, then a line for each run."""
    lines, left_out = [], 0
    for severity, level in LEVELS.items():
        found = [(run, one) for run in report.runs for one in run.findings if one.severity is severity]
        lines += [_annotation(level, run, one) for run, one in found[:PER_STEP]]
        left_out += len(found[PER_STEP:])
    if left_out:
        lines.append(f"::notice title=initdiag::{left_out} more findings: see the JSON or table output")
    for run in report.runs:
        engine = f", engine {run.engine}" + (f" since {run.why}" if run.why else "")
        verdict = f"{run.verdict}, predicted; {ONLY_A_RUN}" if run.predicted else run.verdict
        lines.append(f"{run.subject.target}: {scheme_in_words(run)}, seed {run.seed}{engine}: {verdict}")
    return style.text("\n".join(lines) + "\n")


def _annotation(level: str, run: Run, one: Finding) -> str:
    properties = [f"title={_property(f'{one.rule} {one.name}')}"]
    if isinstance(one.location, Location):
        properties = [
            f"file={_property(one.location.file)}",
            f"line={one.location.line}",
            f"col={one.location.column}",
            *properties,
        ]
    set_by = f" [{one.location}]" if isinstance(one.location, Option) else ""
    words = f"{run.subject.target} ({run.scheme}){set_by}: {one.message}\ninstead: {one.help}"
    return f"::{level} {','.join(properties)}::{_data(words)}"


def _data(words: str) -> str:
    return words.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(words: str) -> str:
    return _data(words).replace(":", "%3A").replace(",", "%2C")
