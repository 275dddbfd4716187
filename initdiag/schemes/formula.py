"""Arithmetic formulas as text, such as "std / sqrt(2 * n_layers)": shown to people as written, and computed.

The text is parsed by Python's own parser and then walked; only numbers, the given names, + - * / ** and the
functions below are understood, so a formula from a config file can do nothing but arithmetic.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping

from initdiag.errors import PlanError, did_you_mean

FUNCTIONS: dict[str, Callable[..., float]] = {"sqrt": math.sqrt, "log": math.log, "min": min, "max": max}

_OPERATORS: dict[type[ast.operator] | type[ast.unaryop], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
}


def evaluate(formula: str, names: Mapping[str, float]) -> float:
    """Compute a formula.

    Raises:
        PlanError: the formula is no arithmetic, uses a name that isn't given, or has no finite real value.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of "1if 2else 3"
            tree = ast.parse(formula, mode="eval")
        value = float(_value(tree.body, names))
    except (SyntaxError, ArithmeticError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise PlanError(f"can't compute the formula '{formula}': {error}") from error
    if not math.isfinite(value):
        raise PlanError(f"the formula '{formula}' gives {value}; expected a finite number")
    return value


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)  # as floats, so that 9**9**9 overflows at once instead of running for ever
        case ast.Name(id=name):
            if name not in names:
                raise PlanError(
                    f"a formula uses '{name}'; expected one of {', '.join(sorted(names))}{did_you_mean(name, names)}"
                )
            return float(names[name])
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(operand, names))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_value(left, names), _value(right, names))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(argument, names) for argument in args))
        case _:
            raise ValueError(f"'{ast.unparse(node)}' is not arithmetic")
