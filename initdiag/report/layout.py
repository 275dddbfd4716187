"""Tables and paragraphs as text, for a given width. The one place that knows rich."""

from __future__ import annotations

import io
import random
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from initdiag.report.style import Style

_STATE = random.getstate()  # importing rich takes a number from the caller's random generator
from rich.box import ASCII2, SIMPLE_HEAD, Box  # noqa: E402
from rich.cells import cell_len  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from rich.text import Text  # noqa: E402

random.setstate(_STATE)

DEFAULT_WIDTH = 80
WORDS = 10  # the least width of a column of words
GAP = 2  # a space of padding, and the box's own
SEVERITY_COLORS = {"error": "bold red", "warning": "yellow", "info": "cyan", "pass": "bold green", "fail": "bold red"}


@dataclass(frozen=True)
class Column:
    """A column of a table: numbers stand to the right and are never cut; `optional` ones go first on a narrow
    terminal, the highest number first."""

    heading: str
    number: bool = True
    optional: int = 0


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], style: Style) -> str:
    """Lay out a table.

    Where the width is not enough, optional columns go; after them words wrap, numbers never.
    """
    kept = list(range(len(columns)))
    while style.width is not None and _width(columns, rows, kept) > style.width:
        optional = max(kept, key=lambda i: columns[i].optional)
        if not columns[optional].optional:
            break
        kept.remove(optional)
    box: Box = ASCII2 if style.ascii else SIMPLE_HEAD
    grid = Table(box=box, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="bold")
    for i in kept:
        column = columns[i]
        grid.add_column(
            Text(style.text(column.heading)),
            justify="right" if column.number else "left",
            no_wrap=column.number,
            overflow="fold",
            min_width=_widest(columns, rows, i) if column.number else None,
        )
    for row in rows:
        grid.add_row(*(Text(style.text(row[i])) for i in kept))
    least = sum((_widest(columns, rows, i) if columns[i].number else WORDS) + GAP for i in kept)
    return _print(grid, style, _width(columns, rows, kept), least)


def _widest(columns: Sequence[Column], rows: Sequence[Sequence[str]], i: int) -> int:
    return max(cell_len(text) for text in [columns[i].heading, *(row[i] for row in rows)])


def _width(columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Iterable[int]) -> int:
    return sum(_widest(columns, rows, i) + GAP for i in kept)


def _print(renderable: Table | Text, style: Style, natural: int, least: int = 1) -> str:
    """Print at the style's width, but never so narrow that a number would be cut: better a line that wraps."""
    width = max(natural, DEFAULT_WIDTH) if style.width is None else max(style.width, min(natural, least))
    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=style.color,
        color_system="standard" if style.color else None,
        no_color=not style.color,
        highlight=False,
        emoji=False,
        markup=False,
        legacy_windows=False,
        _environ={},
    )
    console.print(renderable, soft_wrap=False)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def colored(words: str, color: str, style: Style) -> str:
    """Return the words, in a colour where colours are wanted."""
    words = style.text(words)
    return _print(Text(words, style=color), Style(width=10_000, color=True), 0) if style.color else words


def paragraph(words: str, style: Style, indent: str = "", first: str | None = None) -> str:
    """Wrap a sentence; long words (paths, code) are not broken."""
    return textwrap.fill(
        style.text(words),
        width=max(style.width or DEFAULT_WIDTH, len(indent) + 20),
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
