"""How values, keys and faults of a config are put into words: always on one line, and never longer than a line."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from initdiag.errors import printable

WIDTH = 80  # characters of the user's own text in one message
MOST = 4  # entries of a list or a mapping in one message

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = WIDTH - 20

_SYNTAX = {  # PyYAML's words, which are for people who know its grammar -> ours
    "found character '\\t' that cannot start any token": "found a tab, expected spaces",
    "mapping values are not allowed here": (
        "found a ':' that can't stand here, expected one 'key: value' a line and quotes around text that holds ': '"
    ),
    "expected <block end>, but found '<scalar>'": "found text that belongs to nothing before it, expected 'key: value'",
    "could not find expected ':'": "found a line without ':', expected 'key: value'",
    "found unexpected end of stream": "found a quote that is never closed",
    "found unexpected document separator": "found a quote that is never closed",
    "expected <block end>, but found '<block mapping start>'": (
        "found an indentation that fits no line above, expected keys of one section in one column"
    ),
    "expected <block end>, but found '<block sequence start>'": (
        "found an indentation that fits no line above, expected entries of one list in one column"
    ),
    "expected <block end>, but found '-'": "found a '-' among keys, expected 'key: value'",
    "expected <block end>, but found '?'": "found a key among list entries, expected '- value'",
    "expected ',' or ']', but got '<stream end>'": "found a '[' that is never closed",
    "expected ',' or '}', but got '<stream end>'": "found a '{' that is never closed",
}

AT_ITS_START = (  # faults that are understood where the construct begins, not where PyYAML gave up
    "could not find expected ':'",
    "found unexpected end of stream",
    "found unexpected document separator",
    "expected ',' or ']', but got '<stream end>'",
    "expected ',' or '}', but got '<stream end>'",
)


def one_line(text: str, width: int = WIDTH) -> str:
    """Return text with what can't be printed escaped, cut to a width."""
    shown = printable(text[: width + 1])
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def dotted(path: Sequence[str | int]) -> str:
    """Return ("gate", "ignore", 0) as 'gate.ignore[0]'."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + one_line(part, 40)
    return text


def show(value: object) -> str:
    """Return a value as YAML has it where that is short, else as Python's repr, cut to a width."""
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case int() if value.bit_length() > 200:  # Python refuses to print integers of more than 4300 digits
            return f"a number of about {round(value.bit_length() * math.log10(2))} digits"
        case float() if not math.isfinite(value):
            return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
        case str():
            return repr(value) if len(value) <= WIDTH - 20 else f"{value[: WIDTH - 20]!r}…"
        case list() | tuple() | Mapping():
            return one_line(_nested(value))
        case _:
            return one_line(_SHORT.repr(value))


def _nested(value: object, levels: int = 2) -> str:
    """Return a list or a mapping as YAML has it in one line, with the first entries and levels of a large one."""
    match value:
        case list() | tuple():
            inside = [_nested(item, levels - 1) for item in value[:MOST]] if levels else []
            return f"[{', '.join([*inside, *(['...'] if len(value) > len(inside) else [])])}]"
        case Mapping():
            pairs = islice(value.items(), MOST if levels else 0)
            inside = [f"{show(key)}: {_nested(item, levels - 1)}" for key, item in pairs]
            return f"{{{', '.join([*inside, *(['...'] if len(value) > len(inside) else [])])}}}"
        case _:
            return show(value)


def found(value: object) -> str:
    """Return "found '12' (a string)": a value and its kind, for one that has the wrong kind."""
    match value:
        case None:
            return "found nothing (null)"
        case bool():
            kind = "a boolean"
        case int():
            kind = "a whole number"
        case float():
            kind = "a number with a decimal point or an exponent"
        case str():
            kind = "a string"
        case Mapping():
            kind = "a mapping"
        case list() | tuple():
            kind = "a list"
        case _:
            kind = f"of type {type(value).__name__}"
    return f"found {show(value)} ({kind})"


def syntax_sentence(problem: str | None, context: str | None) -> str:
    """Return one sentence for a syntax error of PyYAML, from the two halves that it gives."""
    problem = (problem or "a syntax error").strip()
    if problem in _SYNTAX:
        return _SYNTAX[problem]
    if problem.startswith("found character") and problem.endswith("that cannot start any token"):
        return f"found {one_line(problem.split()[2])} at the start of a value, expected quotes around it"
    return one_line(f"not valid YAML: {problem}" + (f" {context}" if context else ""), 2 * WIDTH)


def listed(choices: Any) -> str:
    """Return 'a, b, c', or 'none'."""
    return ", ".join(map(str, choices)) or "none"
