"""Arithmetic formulas as text, such as "std / sqrt(2 * n_layers)": shown to people as written, and computed.

The text is parsed by Python's own parser and then walked; only numbers, the given names, + - * / ** and the
functions below are understood, so a formula from a config file can do nothing but arithmetic.
"""

from __future__ import annotations

import ast
import math
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from initdiag.errors import PlanError, did_you_mean, printable

FUNCTIONS: dict[str, Callable[..., float]] = {"sqrt": math.sqrt, "log": math.log, "min": min, "max": max}
MOST_PARENTHESES = 100  # in each other; Python's parser takes 200

_COUNTS = {  # how many arguments they take
    "sqrt": (range(1, 2), "one number"),
    "log": (range(1, 3), "one number, or a number and a base"),
    "min": (range(2, 1000), "two numbers or more"),
    "max": (range(2, 1000), "two numbers or more"),
}
_OPERATORS: dict[type[ast.operator] | type[ast.unaryop], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}
_DEEP = "it is nested too deeply"
_SHOWN = 60  # characters of a part of a formula in a message


class _WrongError(Exception):
    """What is wrong with a formula, in words for people."""


def evaluate(formula: str, names: Mapping[str, float]) -> float:
    """Compute a formula.

    Raises:
        PlanError: the formula is no arithmetic, uses a name that isn't given, or has no finite real value.
    """
    try:
        value = _value(_parsed(formula), names)
    except _WrongError as wrong:
        raise PlanError(f"can't compute the formula '{formula}': {wrong}") from None
    except RecursionError:
        raise PlanError(f"can't compute the formula '{formula}': {_DEEP}") from None
    if not math.isfinite(value):
        raise PlanError(f"the formula '{formula}' gives {value}; expected a finite number")
    return value


def require_names(formula: str, names: Mapping[str, object]) -> None:
    """Check a formula whose names have no numbers yet.

    Raises:
        PlanError: the formula is no arithmetic, or uses another name.
    """
    try:
        for _ in _parts(_parsed(formula), names):
            pass
    except _WrongError as wrong:
        raise PlanError(f"can't compute the formula '{formula}': {wrong}") from None
    except RecursionError:
        raise PlanError(f"can't compute the formula '{formula}': {_DEEP}") from None


@lru_cache(maxsize=4096)  # every layer asks for the same ones
def _parsed(formula: str) -> ast.expr:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of "1if 2else 3"
            return ast.parse(formula.strip(), mode="eval").body
    except MemoryError:  # what the parser raises of its own limit
        raise _WrongError(_DEEP) from None
    except (SyntaxError, ValueError):  # in Python's words, with a file and a line that nobody wrote
        raise _WrongError(_syntax(formula)) from None


def _syntax(formula: str) -> str:
    """Say what is wrong with a text that Python can't parse."""
    if not formula.strip():
        return "there is nothing in it"
    if odd := re.search(r"[^\w\s.,()+*/-]", formula) or re.search(r"[^\x00-\x7f]", formula):
        return f"'{printable(odd[0].encode(errors='backslashreplace').decode())}' is not arithmetic"
    if re.search(r"\d{400}", formula):
        return "a number has too many digits"
    depth = deepest = 0
    for character in formula:
        depth += (character == "(") - (character == ")")
        deepest = max(deepest, depth)
        if depth < 0:
            return "a ')' closes nothing"
    if deepest > MOST_PARENTHESES:
        return _DEEP
    return "a '(' is never closed" if depth else "it is not arithmetic"


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _result(node, float, number)  # as floats: 9**9**9 overflows at once instead of running for ever
        case ast.Name(id=name):
            return float(names[_known(name, names)])
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _result(node, _OPERATORS[type(op)], _value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            numbers = [_value(argument, names) for argument in args]
            return _result(node, FUNCTIONS[_called(name, len(args))], *numbers)
        case _:
            raise _WrongError(f"'{_shown(node)}' is not arithmetic")


def _parts(node: ast.expr, names: Mapping[str, object]) -> Iterator[None]:
    """Walk a formula as `_value` does, without computing it."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            _result(node, float, number)
        case ast.Name(id=name):
            _known(name, names)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            yield from _parts(operand, names)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            yield from _parts(left, names)
            yield from _parts(right, names)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            _called(name, len(args))
            for argument in args:
                yield from _parts(argument, names)
        case _:
            raise _WrongError(f"'{_shown(node)}' is not arithmetic")


def _known(name: str, names: Mapping[str, object]) -> str:
    if name not in names:
        raise PlanError(
            f"a formula uses '{name}'; expected one of {', '.join(sorted(names))}{did_you_mean(name, names)}"
        )
    return name


def _called(name: str, given: int) -> str:
    counts, expected = _COUNTS[name]
    if given not in counts:
        raise _WrongError(f"{name} of {given or 'no'} number{'' if given == 1 else 's'}; expected {expected}")
    return name


def _result(node: ast.expr, operation: Callable[..., float], *numbers: float) -> float:
    """Compute a part of a formula."""
    try:
        result = operation(*numbers)
    except ZeroDivisionError:
        raise _WrongError("float division by zero") from None
    except OverflowError:
        raise _WrongError(f"'{_shown(node)}' is too large") from None
    except ValueError:  # sqrt and log of what they aren't defined for
        given = ", ".join(f"{number:g}" for number in numbers)
        raise _WrongError(f"'{_shown(node)}' is not defined for {given}") from None
    if isinstance(result, complex):
        raise _WrongError(f"'{_shown(node)}' is no real number")
    return result


def _shown(node: ast.expr) -> str:
    try:
        text = printable(ast.unparse(node))
    except ValueError:  # a whole number of more than 4300 digits
        text = "a number"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
