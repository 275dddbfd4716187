"""Tables and paragraphs as text, for a given width. The one place that knows rich."""

from __future__ import annotations

import io
import random
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from initdiag.report.style import Style

DEFAULT_WIDTH = 80
WORDS = 10  # the least width of a column of words
GAP = 2  # a space of padding, and the box's own
SEVERITY_COLORS = {"error": "bold red", "warning": "yellow", "info": "cyan", "pass": "bold green", "fail": "bold red"}
_CODES = {"bold": "1", "bold red": "1;31", "bold green": "1;32", "yellow": "33", "cyan": "36"}  # ECMA-48, 8.3.117


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
    if not kept:
        return ""
    cells = [[style.text(columns[i].heading) for i in kept], *([style.text(row[i]) for i in kept] for row in rows)]
    shown = [columns[i] for i in kept]
    natural, least = (
        _width(columns, rows, kept),
        sum((_widest(columns, rows, i) if columns[i].number else WORDS) + GAP for i in kept),
    )
    # never so narrow that a number would be cut: better a line that wraps
    width = max(natural, DEFAULT_WIDTH) if style.width is None else max(style.width, min(natural, least))
    widths = [
        max(*map(cell_len, column), _widest(columns, rows, i) if columns[i].number else 0)
        for i, column in zip(kept, zip(*cells, strict=True), strict=True)
    ]
    if sum(widths) + GAP * (len(kept) - 1) <= width and all(text.isprintable() for row in cells for text in row):
        return _plain(shown, cells, widths, style)
    return _wrapped(shown, cells, widths, width, style)


def tables(columns: Sequence[Column], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """Break into as many tables as the width asks for; each begins with the first column, and no column is dropped."""
    room, found, left = style.width or DEFAULT_WIDTH, [], list(range(1, len(columns)))
    headings = [column.heading for column in columns]
    widths = [max(map(cell_len, map(style.text, column))) + GAP for column in zip(headings, *rows, strict=True)]
    while left:
        kept = [0, left.pop(0)]
        while left and sum(widths[i] for i in (*kept, left[0])) <= room:
            kept.append(left.pop(0))
        found.append(table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows], style))
    return found


def _plain(columns: Sequence[Column], cells: Sequence[Sequence[str]], widths: Sequence[int], style: Style) -> str:
    """Write a table that fits as it is; rich gives the same, at half a millisecond a row."""
    wall, cross, rule = ("|", "+", "-") if style.ascii else (" ", "─", "─")
    head = (cross).join(rule * (width + GAP - 1) for width in widths)[: sum(widths) + GAP * (len(widths) - 1)]
    lines = [_row(columns, row, widths, wall) for row in cells[1:]]
    return "\n".join([_head(columns, cells[0], widths, wall, style), head, *lines])


def _row(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], wall: str) -> str:
    return (" " * (GAP - 1) + wall).join(map(_padded, columns, cells, widths)).rstrip()


def _head(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int], wall: str, style: Style) -> str:
    if not style.color:
        return _row(columns, cells, widths, wall)
    gap = colored(" " * (GAP - 1), "bold", style) + wall
    return gap.join(colored(text, "bold", style) for text in map(_padded, columns, cells, widths))


def _padded(column: Column, text: str, width: int) -> str:
    text = text.rstrip()
    blank = " " * (width - cell_len(text))
    return blank + text if column.number else text + blank


def _wrapped(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], widths: Sequence[int], width: int, style: Style
) -> str:
    """Let rich wrap the words of a table that doesn't fit."""
    state = random.getstate()  # importing rich takes a number from the caller's random generator
    from rich.box import ASCII2, SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    random.setstate(state)
    box = ASCII2 if style.ascii else SIMPLE_HEAD
    grid = Table(box=box, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0), header_style="bold")
    for column, heading, least in zip(columns, cells[0], widths, strict=True):
        grid.add_column(
            Text(heading),
            justify="right" if column.number else "left",
            no_wrap=column.number,
            overflow="fold",
            min_width=least if column.number else None,
        )
    for row in cells[1:]:
        grid.add_row(*map(Text, row))
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
    console.print(grid, soft_wrap=False)
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines())


def _widest(columns: Sequence[Column], rows: Sequence[Sequence[str]], i: int) -> int:
    return max(cell_len(text) for text in [columns[i].heading, *(row[i] for row in rows)])


def _width(columns: Sequence[Column], rows: Sequence[Sequence[str]], kept: Iterable[int]) -> int:
    return sum(_widest(columns, rows, i) + GAP for i in kept)


def colored(words: str, color: str, style: Style) -> str:
    """Return the words, in a colour where colours are wanted."""
    words = style.text(words)
    return f"\x1b[{_CODES[color]}m{words}\x1b[0m" if style.color else words


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
