"""A report as GitHub-flavoured Markdown, for a pull-request comment or a job summary."""

from __future__ import annotations

from collections.abc import Sequence

from initdiag.report.compared import by_scheme, comparison_rows
from initdiag.report.facts import FACTS, branch_cells, expectation, size
from initdiag.report.numbers import number
from initdiag.report.report import Report, Run
from initdiag.report.style import Style
from initdiag.rules import Finding


def render(report: Report, style: Style) -> str:
    """Render every run, or a comparison; branches are folded away."""
    body = _comparison(report) if report.pick else "\n".join(_run(run) for run in report.runs)
    command = f"\n<sub>{_escape(report.command)}</sub>\n" if report.command else ""
    return style.text(body + command)


def _run(run: Run) -> str:
    rows = [(fact.key, number(fact.measured(run), fact.digits), expectation(fact, run), fact.unit) for fact in FACTS]
    branches = branch_cells(run)
    columns = ("#", "branch", "variance", "expected", "stream", "ratio")
    return (
        f"### initdiag: {run.verdict.upper()} {_escape(run.subject.target)}\n\n"
        f"Scheme {run.scheme}, seed {run.seed}; {_escape(size(run))}; tokens: {_escape(run.batch.describe())}\n\n"
        + _findings(run.findings)
        + _table(("", "measured", "expected", "unit"), rows, "lrrl")
        + f"\n<details><summary>{len(branches)} residual branches</summary>\n\n"
        + _table(columns, branches, "rlrrrr")
        + "\n</details>\n"
    )


def _comparison(report: Report) -> str:
    groups = by_scheme(report.runs)
    labels, cells = comparison_rows(groups)
    rows = [[label.strip(), *row] for label, row in zip(labels, cells, strict=True)]
    rows.append(["verdict", *(max((run.verdict for run in runs), key="fail".__eq__) for runs in groups.values())])
    first = report.runs[0]
    picked = f"\n**Pick: {report.pick.scheme}**: {_escape(report.pick.why)}\n" if report.pick else ""
    return (
        f"### initdiag: schemes compared on {_escape(first.subject.target)}\n\n"
        + _table(("", *groups), rows, "l" + "r" * len(groups))
        + picked
        + "".join(f"\n#### {scheme}\n\n{_findings(_once(runs))}" for scheme, runs in groups.items() if _once(runs))
    )


def _once(runs: Sequence[Run]) -> list[Finding]:
    """Return the findings of several seeds, each rule once."""
    return list({one.rule: one for run in reversed(runs) for one in run.findings}.values())


def _findings(findings: Sequence[Finding]) -> str:
    lines = [
        f"- **{one.severity} {one.rule}** {one.name}"
        + (f" ({_escape(str(one.location))})" if one.location else "")
        + f": {_escape(one.message)}\n  - instead: {_escape(one.help)}\n"
        for one in findings
    ]
    return "".join(lines) + ("\n" if lines else "")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    rules = [{"l": ":--", "r": "--:"}[side] for side in sides]
    lines = [columns, rules, *rows]
    return "".join(
        "| " + " | ".join(cell if line is rules else _escape(cell) for cell in line) + " |\n" for line in lines
    )


def _escape(words: str) -> str:
    for sign in ("\\", "|", "*", "_", "<", "`", "["):
        words = words.replace(sign, f"\\{sign}" if sign != "<" else "&lt;")
    return words.replace("\n", " ")
