"""Predictions with one value varied, as a table, Markdown, JSON or annotations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.cells import cell_len

from initdiag.report.document import SCHEMA_VERSION, document, encodable
from initdiag.report.layout import DEFAULT_WIDTH, GAP, SEVERITY_COLORS, Column, colored, paragraph, table
from initdiag.report.predicted import ONLY_A_RUN
from initdiag.report.report import Report
from initdiag.report.style import Style
from initdiag.report.varied import Varied, captions, fit_caption, fit_rows, found_lines, summary, value_rows


def as_table(varied: Varied, style: Style) -> str:
    """Render for a terminal."""
    parts = ["\n".join(paragraph(line, style, indent="  ", first="") for line in captions(varied))]
    parts += _tables(*value_rows(varied), style)
    if varied.fits:
        parts.append(paragraph(fit_caption(varied), style))
        columns = (Column("", False), Column("law"), Column("off by"), Column("in words", number=False))
        parts.append(table(columns, fit_rows(varied), style))
        parts.append("\n".join(paragraph(line, style, indent="  ", first="") for line in summary(varied)))
    found = [
        colored(severity, SEVERITY_COLORS[severity], style)
        + paragraph(f"{severity} {words}", style, indent="  ", first="").removeprefix(severity)
        for severity, words in found_lines(varied)
    ]
    parts += ["\n".join(found)] if found else []
    verdict = colored(varied.verdict.upper(), SEVERITY_COLORS[varied.verdict], style)
    parts.append(f"verdict: {verdict}, predicted\n{paragraph(ONLY_A_RUN, style)}")
    return "\n\n".join(parts) + "\n"


def as_markdown(varied: Varied, style: Style) -> str:
    """Render as GitHub-flavoured Markdown."""
    from initdiag.report.markdown import escaped, markdown_table

    headings, rows = value_rows(varied)
    first, *rest = captions(varied)
    parts = [f"### initdiag: {varied.verdict.upper()} {escaped(first)}\n", *(f"{escaped(line)}\n" for line in rest)]
    parts.append(markdown_table(headings, rows, "r" * (len(headings) - 1) + "l"))
    if varied.fits:
        parts.append(f"{escaped(fit_caption(varied))}\n")
        parts.append(markdown_table(("", "law", "off by", "in words"), fit_rows(varied), "lrrl"))
        parts += [f"- {escaped(line)}" for line in summary(varied)]
    parts += [f"- **{severity}** {escaped(words)}" for severity, words in found_lines(varied)]
    parts.append(f"\n{escaped(ONLY_A_RUN)}\n")
    parts += [f"<sub>{escaped(varied.command)}</sub>\n"] if varied.command else []
    return style.text("\n".join(parts))


def as_json(varied: Varied, style: Style) -> str:
    """Render as one document: the runs are those of `initdiag predict`."""
    content = {
        "schema_version": SCHEMA_VERSION,
        "key": varied.key,
        "values": list(varied.values),
        "followed": list(varied.followed),
        "runs": [document(Report((run,), varied.command)) for run in varied.runs],
        "fits": {key: {**asdict(found), "words": found.words} for key, found in varied.fits.items()},
        "verdict": varied.verdict,
        "command": varied.command,
    }
    return json.dumps(encodable(content), indent=2, allow_nan=False, ensure_ascii=style.ascii) + "\n"


def render(varied: Varied, format: str, style: Style) -> str:  # noqa: A002 - the option's name
    """Render in any of the formats of a report; github annotates the runs one by one."""
    match format:
        case "json":
            return as_json(varied, style)
        case "markdown":
            return as_markdown(varied, style)
        case "github":
            from initdiag.report.github import render as annotated

            return annotated(varied.report, style)
    return as_table(varied, style)


def _tables(headings: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """Break into as many tables as the width asks for; each begins with the values."""
    room, tables, left = style.width or DEFAULT_WIDTH, [], list(range(1, len(headings)))
    widths = [max(map(cell_len, map(style.text, column))) + GAP for column in zip(headings, *rows, strict=True)]
    while left:
        kept = [0, left.pop(0)]
        while left and sum(widths[i] for i in (*kept, left[0])) <= room:
            kept.append(left.pop(0))
        columns = [Column(headings[i]) for i in kept]
        tables.append(table(columns, [[row[i] for i in kept] for row in rows], style))
    return tables
