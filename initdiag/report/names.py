"""How parameters and their roles are called in tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from initdiag.schemes import Parameter, Part
from initdiag.subjects.subject import without_layers


def pattern(name: str) -> str:
    """Return a name with its numbers as *: 'blocks.*.attn.c_proj.weight'."""
    return without_layers([name])[0]


def starred(words: str) -> str:
    """Return a sentence with the numbers in the names that it mentions as *.

    >>> starred("added to the outputs of blocks.0.fc.weight"), starred("rows 0–63, std 0.02")
    ('added to the outputs of blocks.*.fc.weight', 'rows 0–63, std 0.02')
    """
    return re.sub(r"\.\d+(?=(\.\d+)*\.[A-Za-z_])", ".*", words)


def role_of(parameter: Parameter) -> str:
    """Return a role in words; of a packed matrix all of them, with what they share said once.

    attention_query/key/value
    """
    roles = list(dict.fromkeys(str(part.role) for part in parameter.parts)) or [str(parameter.role)]
    shared = roles[0].partition("_")[0] + "_"
    return "/".join([roles[0], *(role.removeprefix(shared) for role in roles[1:])])


def parts_in_words(parts: Iterable[Part]) -> str:
    """Return which rows have which role: 'rows 0–63 attention_query, rows 64–127 attention_key'."""
    return ", ".join(f"{_rows(part.rows)} {part.role}" for part in parts)


def _rows(rows: Sequence[tuple[int, int]]) -> str:
    sizes = {stop - start for start, stop in rows}
    if len(rows) == 1:
        (start, stop) = rows[0]
        return f"rows {start}–{stop - 1}" if stop - start > 1 else f"row {start}"
    if len(sizes) == 1:
        return f"{len(rows)} blocks of {sizes.pop()} rows (from row {rows[0][0]})"
    return f"{len(rows)} blocks, {sum(stop - start for start, stop in rows)} rows (from row {rows[0][0]})"
