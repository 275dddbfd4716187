"""Predictions with one value varied, as a table, Markdown, JSON or annotations."""

from __future__ import annotations

import json
from dataclasses import asdict

from initdiag.report.document import SCHEMA_VERSION, document, encodable
from initdiag.report.layout import SEVERITY_COLORS, Column, colored, paragraph, table, tables
from initdiag.report.predicted import ONLY_A_RUN
from initdiag.report.report import Report
from initdiag.report.style import Style
from initdiag.report.varied import Varied, captions, fit_caption, fit_rows, found_lines, summary, value_rows


def as_table(varied: Varied, style: Style) -> str:
    """Render for a terminal."""
    parts = ["\n".join(paragraph(line, style, indent="  ", first="") for line in captions(varied))]
    headings, rows = value_rows(varied)
    parts += tables([Column(heading) for heading in headings], rows, style)
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
