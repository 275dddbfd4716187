"""The texts of schemes: a list and a page for a terminal, and all of them as Markdown. One source: the data itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from rich.cells import cell_len

from initdiag.errors import printable
from initdiag.report.demands import calibration, demands
from initdiag.report.layout import colored, paragraph, table
from initdiag.report.reference import plain, word_columns
from initdiag.report.scheme_words import draws, in_short, truncations, written
from initdiag.report.style import Style
from initdiag.schemes import SCHEMES, Scheme

BROKEN = "of other distributions, broken"  # a family of its own
KEPT = "\x1f"  # stands for a space in a line that is not to be broken there
LETTERS = (
    "N(s) is a normal with mean 0 and std s; TN(s, cut cσ) that normal cut at ±c·s, its std smaller for it or, where "
    "it says so, kept; U(b) is uniform on ±b, with std b/√3; O(g) is g times a matrix whose rows or columns, whichever "
    "are fewer, are orthonormal; a bare number is a constant."
)
NOTATION = (
    f"{LETTERS} Formulas may use d_model, n_layers, n_heads, n_kv_heads, head_dim, d_ff, vocab_size, context, fan_in "
    "and fan_out (inputs and outputs of the matrix; of a bias, those inputs), layer (from 0), tied (1 where the "
    "head is the embedding, else 0), and the scheme's parameters and choices; a choice is a word that stands for a "
    "number."
)
OWN_CODE = (
    "A model of a config does so whenever the scheme is taken: these are fields of `model:`. In a module of your own "
    "its forward has to do it: a scheme draws weights and nothing else."
)


def families(schemes: Iterable[Scheme]) -> dict[str, list[Scheme]]:
    """Return schemes by family, in the order in which they come."""
    found: dict[str, list[Scheme]] = {}
    for scheme in schemes:
        found.setdefault(scheme.family, []).append(scheme)
    return found


def scheme_list(
    style: Style, schemes: Iterable[Scheme] = tuple(SCHEMES.values()), broken: Mapping[str, str] = MappingProxyType({})
) -> str:
    """List schemes by family: name, draws, source, on one line where the width allows it.

    Args:
        broken: names of schemes of other distributions that can't be used, and why.
    """
    listed = families(schemes)
    name_width = max(cell_len(name) for name in (*(one.name for of in listed.values() for one in of), *broken))
    parts = [
        "\n".join(
            [colored(family, "bold", style), *(line for scheme in of for line in _entry(scheme, name_width, style))]
        )
        for family, of in listed.items()
    ]
    if broken:
        lines = [_broken(name, why, name_width, style) for name, why in broken.items()]
        parts.append("\n".join([colored(BROKEN, "bold", style), *lines]))
    parts += [paragraph(f"`initdiag scheme NAME` explains one. {LETTERS}", style)]
    return "\n\n".join(parts) + "\n"


def _entry(scheme: Scheme, name_width: int, style: Style) -> Iterator[str]:
    drawn, source = style.text("; ".join(in_short(scheme, KEPT))), style.text(f"from {scheme.source}")
    head = f"  {scheme.name:<{name_width}}  "
    whole = f"{head}{drawn}  {source}".replace(KEPT, " ")
    if style.width is None or cell_len(whole) <= style.width:
        yield whole
        return
    indent = " " * len(head)
    yield paragraph(drawn, style, indent=indent, first=head).replace(KEPT, " ")
    yield paragraph(source, style, indent=f"{indent}  ", first=indent)


def _broken(name: str, why: str, name_width: int, style: Style) -> str:
    shown = printable(name)
    head = f"  {shown:<{name_width}}  "
    said = "can't be used: " + why.removeprefix(f"scheme '{shown}': ")
    if style.width is None:
        return head + style.text(said)
    return paragraph(said, style, indent=" " * len(head), first=head)


def scheme_page(scheme: Scheme, style: Style) -> str:
    """Explain a scheme."""
    parts = [
        paragraph(f"{scheme.name}: {scheme.summary}", style),
        table(word_columns("drawn from", "roles"), _rows(scheme), style),
    ]
    if scheme.parameters:
        rows = list(scheme.parameters.items())
        parts.append(table(word_columns("parameter", "default"), rows, style))
    if scheme.choices:
        rows = [(name, _words(words)) for name, words in scheme.choices.items()]
        parts.append(table(word_columns("choice", "words, and the numbers that they stand for"), rows, style))
    if wanted := demands(scheme):
        lines = [paragraph(line, style, indent="    ", first="  - ") for line in wanted]
        parts.append("\n".join(["The forward pass has to have:", *lines, paragraph(OWN_CODE, style)]))
    parts += [paragraph(f"{heading}: {text}", style, indent="  ", first="") for heading, text in _facts(scheme)]
    if scheme.notes:
        parts.append("\n".join(paragraph(note, style, indent="  ", first="- ") for note in scheme.notes))
    parts.append(paragraph(NOTATION, style))
    return "\n\n".join(parts) + "\n"


def _rows(scheme: Scheme) -> list[tuple[str, str]]:
    return [(written(draw), ", ".join(roles)) for draw, roles in draws(scheme)]


def _words(words: Mapping[str, str]) -> str:
    told = [f"{word} = {formula}" for word, formula in words.items()]
    return "; ".join([f"{told[0]} (default)", *told[1:]])


def _facts(scheme: Scheme) -> Iterator[tuple[str, str]]:
    yield "family", scheme.family
    if scheme.aliases:
        yield "also found as", ", ".join(scheme.aliases)
    if cuts := truncations(scheme):
        yield "truncation", "; ".join(cuts)
    if scheme.calibration:
        yield "calibration", calibration(scheme)
    if scheme.depth:
        yield "with depth", scheme.depth
    if scheme.used_by:
        yield "used by", scheme.used_by
    yield "source", scheme.source


def schemes_markdown() -> str:
    """docs/schemes.md, without its first lines: an index, then a section for each scheme."""
    index = "| family | scheme | what it draws |\n| :-- | :-- | :-- |\n"
    for family, schemes in families(SCHEMES.values()).items():
        for scheme in schemes:
            link = f"[{scheme.name}](#{_anchor(scheme.name)})"
            index += f"| {family if scheme is schemes[0] else ''} | {link} | `{'; '.join(in_short(scheme))}` |\n"
    sections = [_section(scheme) for schemes in families(SCHEMES.values()).values() for scheme in schemes]
    return "\n".join([f"{plain(NOTATION)}\n", index, *sections])


def _section(scheme: Scheme) -> str:
    parts = [f"## {scheme.name}", f"{plain(scheme.summary)}."]
    parts.append(
        "| drawn from | roles |\n| :-- | :-- |\n"
        + "\n".join(f"| `{drawn}` | {roles} |" for drawn, roles in _rows(scheme))
    )
    settings = [f"- `{name}`: default `{default}`" for name, default in scheme.parameters.items()]
    settings += [f"- `{name}`: `{_words(words)}`" for name, words in scheme.choices.items()]
    if settings:
        parts.append("Parameters, under `init:` in a config:\n\n" + "\n".join(settings))
    if wanted := demands(scheme):
        parts.append("The forward pass has to have:\n\n" + "\n".join(f"- {plain(line)}" for line in wanted))
        parts.append(OWN_CODE)
    parts += [f"**{heading.capitalize()}.** {plain(text)}" for heading, text in _facts(scheme)]
    parts.append("\n".join(f"- {plain(note)}" for note in scheme.notes))
    return "\n\n".join(filter(None, parts)) + "\n"


def _anchor(name: str) -> str:
    """Return the anchor that GitHub gives to a heading."""
    return "".join(c for c in name.lower() if c.isalnum() or c in "-_")
