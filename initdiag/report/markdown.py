"""A report as GitHub-flavoured Markdown, for a pull-request comment or a job summary."""

from __future__ import annotations

from collections.abc import Sequence

from initdiag.report.advised import advice_lines, heading
from initdiag.report.branches import branch_table
from initdiag.report.compared import by_scheme, comparison_rows
from initdiag.report.facts import fact_cells, size
from initdiag.report.header import (
    demanded,
    demands_compared,
    engine_lines,
    engines_compared,
    init_code_seen,
    scheme_in_words,
    wiring,
)
from initdiag.report.layout import Column
from initdiag.report.predicted import COLUMNS, ONLY_A_RUN, predicted_branches, predicted_cells
from initdiag.report.report import Report, Run
from initdiag.report.style import Style
from initdiag.report.weights import weight_columns, weight_notes, weight_rows
from initdiag.rules import Finding


def render(report: Report, style: Style) -> str:
    """Render every run, or a comparison; branches are folded away."""
    body = _comparison(report) if report.pick else "\n".join(_run(run) for run in report.runs)
    command = f"\n<sub>{escaped(report.command)}</sub>\n" if report.command else ""
    return style.text(body + command)


def _run(run: Run) -> str:
    branches = predicted_branches(run) if run.predicted else branch_table(run)
    weights = weight_rows(run)
    seen = [line for line in (*demanded(run), wiring(run), init_code_seen(run), *engine_lines(run)) if line]
    seen += [ONLY_A_RUN] if run.predicted else []
    facts = predicted_cells(run) if run.predicted else fact_cells(run)
    columns = [column.heading for column in COLUMNS] if run.predicted else ["", "measured", "expected", "unit"]
    return (
        f"### initdiag: {run.verdict.upper()} {escaped(run.subject.target)}{', predicted' * run.predicted}\n\n"
        f"{_sentence(scheme_in_words(run))}, seed {run.seed}; {escaped(size(run))}; "
        f"tokens: {escaped(run.batch.describe())}\n\n"
        + "".join(f"{_sentence(escaped(line))}\n\n" for line in seen)
        + findings_list(run.findings)
        + _advice(run)
        + markdown_table(columns, facts, "lrrl")
        + _folded(f"{len(branches.rows)} residual branches", branches.columns, branches.rows)
        + _folded("weights by role", weight_columns(run), weights, weight_notes(run))
    )


def _advice(run: Run) -> str:
    said = "".join(f"- `{write}`: {escaped(then)}\n" for write, then in advice_lines(run))
    return f"{_sentence(heading(run))}\n\n{said}\n" if said else ""


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _folded(summary: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    if not rows and not notes:
        return ""
    sides = "".join("r" if column.number else "l" for column in columns)
    return (
        f"\n<details><summary>{summary}</summary>\n\n"
        + (markdown_table([column.heading for column in columns], rows, sides) if rows else "")
        + "".join(f"\n{escaped(note)}\n" for note in notes)
        + "\n</details>\n"
    )


def _comparison(report: Report) -> str:
    groups = by_scheme(report.runs)
    labels, cells = comparison_rows(groups)
    rows = [[label.strip(), *row] for label, row in zip(labels, cells, strict=True)]
    rows.append(["verdict", *(max((run.verdict for run in runs), key="fail".__eq__) for runs in groups.values())])
    first = report.runs[0]
    picked = f"\n**Pick: {report.pick.scheme}**: {escaped(report.pick.why)}\n" if report.pick else ""
    return (
        f"### initdiag: schemes compared on {escaped(first.subject.target)}\n\n"
        + "".join(f"{_sentence(escaped(line))}\n\n" for line in (*demands_compared(groups), *engines_compared(groups)))
        + markdown_table(("", *groups), rows, "l" + "r" * len(groups))
        + picked
        + "".join(f"\n#### {scheme}\n\n{findings_list(_once(runs))}" for scheme, runs in groups.items() if _once(runs))
    )


def _once(runs: Sequence[Run]) -> list[Finding]:
    """Return the findings of several seeds, each rule once."""
    return list({one.rule: one for run in reversed(runs) for one in run.findings}.values())


def findings_list(findings: Sequence[Finding]) -> str:
    lines = [
        f"- **{one.severity} {one.rule}** {one.name}"
        + (f" ({escaped(str(one.location))})" if one.location else "")
        + f": {escaped(one.message)}\n  - instead: {escaped(one.help)}\n"
        for one in findings
    ]
    return "".join(lines) + ("\n" if lines else "")


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]], sides: str) -> str:
    rules = [{"l": ":--", "r": "--:"}[side] for side in sides]
    lines = [columns, rules, *rows]
    return "".join(
        "| " + " | ".join(cell if line is rules else escaped(cell) for cell in line) + " |\n" for line in lines
    )


def escaped(words: str) -> str:
    for sign in ("\\", "|", "*", "_", "<", "`", "["):
        words = words.replace(sign, f"\\{sign}" if sign != "<" else "&lt;")
    return words.replace("\n", " ")
