"""The texts of rules, for a terminal and, as Markdown, for docs/. One source: the data itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from initdiag.report.layout import Column, paragraph, table
from initdiag.report.style import Style

if TYPE_CHECKING:
    from initdiag.rules import Rule


def rule_list(style: Style) -> str:
    from initdiag.rules import RULES  # not at once: pages of schemes share this module

    rows = [(rule.id, rule.name, rule.severity) for rule in RULES.values()]
    return table(word_columns("id", "name", "severity"), rows, style) + "\n"


def rule_page(rule: Rule, style: Style) -> str:
    parts = [paragraph(f"{rule.id} {rule.name} ({rule.severity})", style, indent="  ", first="")]
    parts += [f"{heading}\n" + paragraph(text, style, indent="  ") for heading, text in _sections(rule)]
    return "\n\n".join(parts) + "\n"


def rules_markdown() -> str:
    """docs/rules.md, without its first lines."""
    from initdiag.rules import RULES

    pages = []
    for rule in RULES.values():
        sections = "\n\n".join(f"**{heading}.** {plain(text)}" for heading, text in _sections(rule))
        pages.append(f"## {rule.id}\n\n`{rule.name}`: {rule.severity}\n\n{sections}\n")
    return "\n".join(pages)


def _sections(rule: Rule) -> Iterator[tuple[str, str]]:
    yield "What it does", rule.what
    yield "Why it is bad", rule.why
    yield "Example", rule.example
    yield "Use instead", rule.instead
    if rule.references:
        yield "References", "; ".join(rule.references)


def word_columns(*headings: str) -> Sequence[Column]:
    return [Column(heading, number=False) for heading in headings]


def plain(words: str) -> str:
    """Escape what Markdown would read as emphasis, but not inside `code`."""
    parts = words.split("`")
    return "`".join(
        part if i % 2 else part.replace("*", r"\*").replace("_", r"\_").replace("<", "&lt;")
        for i, part in enumerate(parts)
    )
