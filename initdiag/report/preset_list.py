"""The shipped configs as a table: name, size, init, and what model it is."""

from __future__ import annotations

from collections.abc import Iterable

from initdiag.config.presets import Shipped
from initdiag.report.layout import Column, paragraph, table
from initdiag.report.numbers import abridged
from initdiag.report.style import Style

COLUMNS = (
    Column("name", number=False),
    Column("parameters"),
    Column("init", number=False, optional=1),
    Column("what it is", number=False),
)
USE = "`initdiag check NAME` checks one; `initdiag new FILE --from NAME` copies it, to be changed."


def preset_list(shipped: Iterable[Shipped], style: Style) -> str:
    rows = [(one.name, _size(one.parameters), one.scheme, one.summary) for one in shipped]
    return f"{table(COLUMNS, rows, style)}\n\n{paragraph(USE, style)}\n"


def _size(parameters: int | None) -> str:
    return abridged(parameters) if parameters else "–"
