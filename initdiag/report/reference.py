"""The texts of rules and schemes, for a terminal and, as Markdown, for docs/. One source: the data itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from initdiag.report.layout import Column, paragraph, table
from initdiag.report.style import Style
from initdiag.rules import RULES, Rule
from initdiag.schemes import SCHEMES, Scheme


def rule_list(style: Style) -> str:
    rows = [(rule.id, rule.name, rule.severity) for rule in RULES.values()]
    return table(_words("id", "name", "severity"), rows, style) + "\n"


def rule_page(rule: Rule, style: Style) -> str:
    parts = [paragraph(f"{rule.id} {rule.name} ({rule.severity})", style, indent="  ", first="")]
    parts += [f"{heading}\n" + paragraph(text, style, indent="  ") for heading, text in _sections(rule)]
    return "\n\n".join(parts) + "\n"


def rules_markdown() -> str:
    """docs/rules.md, without its first lines."""
    pages = []
    for rule in RULES.values():
        sections = "\n\n".join(f"**{heading}.** {_plain(text)}" for heading, text in _sections(rule))
        pages.append(f"## {rule.id}\n\n`{rule.name}`: {rule.severity}\n\n{sections}\n")
    return "\n".join(pages)


def _sections(rule: Rule) -> Iterator[tuple[str, str]]:
    yield "What it does", rule.what
    yield "Why it is bad", rule.why
    yield "Example", rule.example
    yield "Use instead", rule.instead
    if rule.references:
        yield "References", "; ".join(rule.references)


def scheme_list(style: Style) -> str:
    rows = [(scheme.name, scheme.summary) for scheme in SCHEMES.values()]
    return table(_words("scheme", "what it draws"), rows, style) + "\n"


def scheme_page(scheme: Scheme, style: Style) -> str:
    parts = [
        paragraph(f"{scheme.name}: {scheme.summary}", style),
        table(_words("role", "drawn from"), _roles(scheme), style),
    ]
    if scheme.parameters:
        parts.append(table(_words("parameter", "default"), list(scheme.parameters.items()), style))
    parts.append(paragraph(f"source: {scheme.source}", style, indent="  ", first=""))
    parts += [paragraph(note, style, indent="  ", first="- ") for note in scheme.notes]
    parts.append(paragraph(NOTATION, style))
    return "\n\n".join(parts) + "\n"


NOTATION = (
    "N(s) is a normal with mean 0 and std s; U(b) is uniform on ±b, with std b/√3; a bare number is a constant. "
    "Formulas may use d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size, context, fan_in (inputs of "
    "the matrix; of a bias, of its matrix), layer (from 0) and the scheme's parameters."
)


def schemes_markdown() -> str:
    """docs/schemes.md, without its first lines."""
    pages = [f"{NOTATION}\n"]
    for scheme in SCHEMES.values():
        notes = "".join(f"- {_plain(note)}\n" for note in scheme.notes)
        parameters = "".join(f"- `{name}`: default `{default}`\n" for name, default in scheme.parameters.items())
        pages.append(
            f"## {scheme.name}\n\n{_plain(scheme.summary)}.\n\n| role | drawn from |\n| :-- | :-- |\n"
            + "".join(f"| {role} | `{draw}` |\n" for role, draw in _roles(scheme))
            + (f"\nParameters:\n\n{parameters}" if parameters else "")
            + f"\nSource: {_plain(scheme.source)}.\n\n{notes}"
        )
    return "\n".join(pages)


def _roles(scheme: Scheme) -> list[tuple[str, str]]:
    return [(str(role), str(draw)) for role, draw in scheme.roles.items()]


def _words(*headings: str) -> Sequence[Column]:
    return [Column(heading, number=False) for heading in headings]


def _plain(words: str) -> str:
    """Escape what Markdown would read as emphasis, but not inside `code`."""
    parts = words.split("`")
    return "`".join(
        part if i % 2 else part.replace("*", r"\*").replace("_", r"\_").replace("<", "&lt;")
        for i, part in enumerate(parts)
    )
