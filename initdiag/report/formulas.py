"""Formulas of schemes as text for people: with names replaced by what they stand for."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import lru_cache

from initdiag.schemes import Scheme
from initdiag.schemes.formula import FUNCTIONS


@lru_cache(maxsize=1024)  # a scheme has the same few formulas for all its roles, and schemes share many
def names_in(formula: str) -> tuple[str, ...]:
    """Return the names that a formula uses, functions left out, each once; of what is no formula, none."""
    try:
        tree = ast.parse(formula, mode="eval")
    except SyntaxError:
        return ()
    found = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    return tuple(dict.fromkeys(name for name in found if name not in FUNCTIONS))


def substituted(formula: str, meanings: Mapping[str, str]) -> str:
    """Replace names by formulas, with parentheses where they are needed; a formula without these names stays as it is.

    >>> substituted("std / sqrt(2 * depth)", {"depth": "layer + 1"})
    'std / sqrt(2 * (layer + 1))'
    """
    used = [name for name in names_in(formula) if name in meanings]
    if not used:
        return formula
    tree = ast.parse(formula, mode="eval")
    return ast.unparse(_Replace({name: ast.parse(meanings[name], mode="eval").body for name in used}).visit(tree))


def unparsed(tree: ast.AST) -> str:
    """Write a formula: as ast.unparse, but without its parentheses in `x ** (-0.5)`."""
    return re.sub(r"\*\* \((-[\d.]+)\)", r"** \1", ast.unparse(tree))


class _Replace(ast.NodeTransformer):
    def __init__(self, meanings: Mapping[str, ast.expr]) -> None:
        self.meanings = meanings

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.meanings.get(node.id, node)


def is_number(text: str) -> bool:
    return re.fullmatch(r"-?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", text) is not None


def spelled_out(formula: str, scheme: Scheme, numbers: bool = False) -> str:
    """Replace a scheme's parameters by their defaults, and a choice by the number that its first word stands for.

    Parameters whose default is a number or a size, such as base_width, stay names, but for `numbers`.
    """
    meanings: dict[str, str] = {}
    for name, words in scheme.choices.items():
        meanings[name] = next(iter(words.values()))
    for name, default in scheme.parameters.items():  # in order: a default may use the ones before it
        plain = is_number(default) or (default.isidentifier() and default not in scheme.settable)
        if numbers or not plain:
            meanings[name] = substituted(default, meanings)
    return simplified(substituted(formula, meanings))


@lru_cache(maxsize=1024)
def simplified(formula: str) -> str:
    """Leave out factors of 1 and 0, powers of 0, and min and max of numbers, as defaults leave them behind.

    >>> simplified("std / max(1, 0.034)")
    'std'
    """
    return unparsed(_Simplify().visit(ast.parse(formula, mode="eval")))


class _Simplify(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        numbers = [one.value for one in node.args if isinstance(one, ast.Constant)]
        if isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and len(numbers) == len(node.args):
            return ast.Constant(FUNCTIONS[node.func.id](*numbers))
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        left, right = (one.value if isinstance(one, ast.Constant) else None for one in (node.left, node.right))
        match node.op:
            case ast.Mult() if left == 1:
                return node.right
            case ast.Mult() | ast.Div() if right == 1:
                return node.left
            case ast.Mult() | ast.Div() if left == 0:
                return ast.Constant(0)
            case ast.Mult() if right == 0:
                return ast.Constant(0)
            case ast.Pow() if right == 0:
                return ast.Constant(1)
            case _:
                return node
