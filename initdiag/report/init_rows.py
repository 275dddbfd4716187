"""Rules of an init function as lines of code: numbers as the scheme's formulas, rows of a dict, loops over layers."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator

from initdiag.report.formulas import is_number
from initdiag.report.init_names import NamePattern
from initdiag.report.init_numbers import Numbers, value_of
from initdiag.schemes import (
    AsFound,
    Constant,
    Distribution,
    Normal,
    Orthogonal,
    Parameter,
    PlannedParameter,
    Role,
    Truncated,
    Uniform,
)

WIDTH = 88  # ruff's default; lines that fit there need no breaks at a greater width either


def rule_for(entry: PlannedParameter, numbers: Numbers) -> tuple[str, str]:
    """Return what draws a parameter, and the comment on it."""
    roles = _roles_of(entry.parameter)
    if isinstance(entry.distribution, AsFound):
        return "None", f"{roles}: left as it is"
    number, cut = numbers_of(entry.distribution, entry.parameter, entry.parameter.role, numbers)
    told = number in numbers.settings or is_number(number)
    comment = roles if told else f"{roles}, {value_of(entry.distribution):.4g}"
    if numbers.corrected(entry.parameter.role) and isinstance(entry.distribution, Truncated):
        comment += f", cut to std {entry.distribution.std:.4g}"
    return _maker(entry.distribution, number, cut), comment


def numbers_of(
    distribution: Distribution, parameter: Parameter, role: Role, numbers: Numbers, each: bool = False
) -> tuple[str, str]:
    """Write the number of a distribution and, of a truncated normal, its cut."""
    cut = numbers.cut(distribution, parameter, role, each) if isinstance(distribution, Truncated) else ""
    return numbers.of(distribution, parameter, role, each), cut


def _maker(distribution: Distribution, number: str, cut: str) -> str:
    """Write the function that draws a whole tensor."""
    match distribution:
        case Normal():
            return f"normal({number})"
        case Uniform():
            return f"uniform({number})"
        case Truncated():
            return f"truncated({number}, {cut})"
        case Orthogonal():
            return f"orthogonal({number})"
        case Constant(value=0):
            return "nn.init.zeros_"
        case Constant(value=1):
            return "nn.init.ones_"
        case Constant():
            return f"constant({number})"
        case _:
            raise ValueError(f"{distribution} is not drawn")


def call_for(distribution: Distribution, tensor: str, number: str, cut: str) -> str:
    """Write the statement that draws a part of a tensor."""
    maker = _maker(distribution, number, cut)
    if maker.startswith("normal("):
        return f"nn.init.normal_({tensor}, std={number})"
    if maker.startswith("constant("):
        return f"nn.init.constant_({tensor}, {number})"
    return f"{maker}({tensor})"


def _roles_of(parameter: Parameter) -> str:
    return role_names([part.role for part in parameter.parts] or [parameter.role])


def role_names(roles: Iterable[Role]) -> str:
    """Name roles in short: attention_query/key/value."""
    first, *others = dict.fromkeys(str(role) for role in roles)
    family = first.partition("_")[0] + "_"
    return "/".join([first, *(role.removeprefix(family) for role in others)])


def row_for(pattern: str, rule: str, comment: str) -> Iterator[str]:
    head = f"        {quoted(pattern)}: "
    if len(f"{head}{rule},  # {comment}") <= WIDTH:
        yield f"{head}{rule},  # {comment}"
    else:
        yield f"        # {comment}"
        yield from broken(f"{head}{rule},", " " * 8)


def broken(line: str, indent: str) -> Iterator[str]:
    """Yield a line that ends with a call, broken as ruff does if it is too long."""
    match = re.fullmatch(r"(.*?\b(?:normal_?|uniform|truncated|orthogonal|constant_?)\()(.+)(\),?)", line)
    if len(line) <= WIDTH or match is None:
        yield line
        return
    arguments = [match[2]]
    if len(f"{indent}    {match[2]}") > WIDTH:
        call = ast.parse(f"call({match[2]})", mode="eval").body
        assert isinstance(call, ast.Call)
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        ends = [(value.end_col_offset or 0) - len("call(") for value in values]
        starts = [0, *(end + len(", ") for end in ends)]
        arguments = [f"{match[2][a:b]}," for a, b in zip(starts, ends, strict=False)]
    yield from (match[1], *(f"{indent}    {argument}" for argument in arguments), f"{indent}{match[3]}")


def quoted(text: str) -> str:
    return repr(text) if '"' in text else f'"{repr(text + chr(39))[1:-2]}"'  # repr takes double quotes for a '


def loop_for(pattern: NamePattern, numbers: Numbers) -> Iterator[str]:
    """Yield a loop over layers whose numbers differ: over the scheme's formula, or over a table."""
    first = pattern.entries[0]
    values: dict[int, PlannedParameter] = {}
    for entry in pattern.entries:
        values.setdefault(int(re.findall(r"\d+", entry.parameter.name)[pattern.each or 0]), entry)
    role = first.parameter.role
    written = {numbers_of(entry.distribution, entry.parameter, role, numbers, True) for entry in values.values()}
    counted = list(values) == list(range(len(values)))
    # a constant of the first layer may be 0 or 1, which have functions of their own
    kind = Constant(math.pi) if isinstance(first.distribution, Constant) else first.distribution
    yield f"    # {_roles_of(first.parameter)}"
    if len(written) == 1 and all(layer == entry.parameter.layer for layer, entry in values.items()):
        yield f"    for layer in {f'range({len(values)})' if counted else tuple(values)}:"
        yield from _assignment(pattern.text, _maker(kind, *written.pop()))
        return
    cuts = {entry.distribution.cut for entry in values.values() if isinstance(entry.distribution, Truncated)}
    yield f"    {'values = (' if counted else 'values = {'}"
    for layer, entry in values.items():
        value = repr(value_of(entry.distribution))
        if len(cuts) > 1 and isinstance(entry.distribution, Truncated):
            value = f"({value}, {entry.distribution.cut!r})"
        yield f"        {'' if counted else f'{layer}: '}{value},"
    yield f"    {')' if counted else '}'}"
    names = "(value, sigmas)" if len(cuts) > 1 else "value"
    yield f"    for layer, {names} in {'enumerate(values)' if counted else 'values.items()'}:"
    yield from _assignment(pattern.text, _maker(kind, "value", "sigmas" if len(cuts) > 1 else "".join(map(repr, cuts))))


def _assignment(text: str, rule: str) -> Iterator[str]:
    line = f"        rules[f{quoted(text)}] = {rule}"
    if len(line) <= WIDTH:
        yield line
    else:
        yield f"        name = f{quoted(text)}"
        yield from broken(f"        rules[name] = {rule}", " " * 8)
