"""Rules of an init function as lines of code: numbers as the scheme's formulas, rows of a dict, loops over layers."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from initdiag.errors import PlanError
from initdiag.report.init_names import NamePattern
from initdiag.schemes import (
    AsFound,
    Constant,
    Distribution,
    Normal,
    Parameter,
    PlannedParameter,
    Role,
    Scheme,
    Uniform,
)
from initdiag.schemes.distributions import Truncated
from initdiag.schemes.formula import evaluate

WIDTH = 88  # ruff's default; lines that fit there need no breaks at a greater width either


@dataclass(frozen=True)
class Numbers:
    """Writes numbers as the scheme's formulas, where those give exactly that number."""

    scheme: Scheme | None
    settings: Mapping[str, float]
    sizes: Mapping[str, float]

    def of(self, distribution: Distribution, parameter: Parameter, role: Role, each: bool = False) -> str:
        """`each`: the code has a variable `layer`."""
        value = _value(distribution)
        draw = self.scheme.roles.get(role) if self.scheme else None
        layer = -1 if parameter.layer is None else parameter.layer
        known = {**self.sizes, **self.settings, **({"layer": float(layer)} if each else {})}
        inlined = {"fan_in": parameter.fan_in, **({} if each else {"layer": layer})}
        return (_expression(draw.formula, value, known, inlined) if draw else "") or repr(value)

    def setting(self, name: str) -> str:
        """Write the line that sets a parameter of the scheme: as its default's formula where it has that value."""
        value = self.settings[name]
        formula = self.scheme.parameters.get(name, "") if self.scheme else ""
        before = list(self.settings)[: list(self.settings).index(name)]
        known = {**self.sizes, **{other: self.settings[other] for other in before}}
        number = _expression(formula, value, known, {}) or repr(value)
        return f"    {name} = {number}" + ("" if _is_number(number) else f"  # {value:.4g}")


def _value(distribution: Distribution) -> float:
    match distribution:
        case Uniform(bound=bound):
            return bound
        case Truncated(sigma=sigma):
            return sigma
        case Constant(value=value):
            return value
        case _:
            return distribution.std


def _expression(formula: str, value: float, known: Mapping[str, float], inlined: Mapping[str, int]) -> str:
    """Return a formula as Python code over the known names, or '' where that would not give the value."""
    try:
        if not math.isclose(evaluate(formula, {**known, **inlined}), value, rel_tol=1e-12):
            return ""
    except PlanError:  # it uses sizes that nobody told us
        return ""
    tree = ast.parse(formula, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = f"math.{node.id}" if node.id in ("sqrt", "log") else str(inlined.get(node.id, node.id))
    # as ruff writes it: powers of simple operands have no spaces around the operator
    return re.sub(r"(?<=[\w.]) \*\* (?=-?[\w.]+(?![\w.(]))", "**", ast.unparse(tree))


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-?[\d.]+(e[-+]?\d+)?", text) is not None


def rule_for(entry: PlannedParameter, numbers: Numbers) -> tuple[str, str]:
    """Return what draws a parameter, and the comment on it."""
    roles = _roles_of(entry.parameter)
    if isinstance(entry.distribution, AsFound):
        return "None", f"{roles}: left as it is"
    number = numbers.of(entry.distribution, entry.parameter, entry.parameter.role)
    told = number in numbers.settings or _is_number(number)
    return _maker(entry.distribution, number), roles if told else f"{roles}, {_value(entry.distribution):.4g}"


def _maker(distribution: Distribution, number: str) -> str:
    """Write the function that draws a whole tensor."""
    match distribution:
        case Normal():
            return f"normal({number})"
        case Uniform():
            return f"uniform({number})"
        case Truncated(cut=cut):
            return f"truncated({number}, {cut!r})"
        case Constant(value=0):
            return "nn.init.zeros_"
        case Constant(value=1):
            return "nn.init.ones_"
        case Constant():
            return f"constant({number})"
        case _:
            raise ValueError(f"{distribution} is not drawn")


def call_for(distribution: Distribution, tensor: str, number: str) -> str:
    """Write the statement that draws a part of a tensor."""
    maker = _maker(distribution, number)
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
    match = re.fullmatch(r"(.*?\b(?:normal_?|uniform|truncated|constant_?)\()(.+)(\),?)", line)
    if len(line) <= WIDTH or match is None:
        yield line
    else:
        yield from (match[1], f"{indent}    {match[2]}", f"{indent}{match[3]}")


def quoted(text: str) -> str:
    return repr(text) if '"' in text else f'"{repr(text + chr(39))[1:-2]}"'  # repr takes double quotes for a '


def loop_for(pattern: NamePattern, numbers: Numbers) -> Iterator[str]:
    """Yield a loop over layers whose numbers differ: over the scheme's formula, or over a table."""
    first = pattern.entries[0]
    values: dict[int, PlannedParameter] = {}
    for entry in pattern.entries:
        values.setdefault(int(re.findall(r"\d+", entry.parameter.name)[pattern.each or 0]), entry)
    written = {numbers.of(entry.distribution, entry.parameter, first.parameter.role, True) for entry in values.values()}
    counted = list(values) == list(range(len(values)))
    yield f"    # {_roles_of(first.parameter)}"
    if len(written) == 1 and all(layer == entry.parameter.layer for layer, entry in values.items()):
        yield f"    for layer in {f'range({len(values)})' if counted else tuple(values)}:"
        yield from _assignment(pattern.text, _maker(first.distribution, written.pop()))
        return
    yield f"    {'values = (' if counted else 'values = {'}"
    for layer, entry in values.items():
        yield f"        {'' if counted else f'{layer}: '}{_value(entry.distribution)!r},"
    yield f"    {')' if counted else '}'}"
    yield f"    for layer, value in {'enumerate(values)' if counted else 'values.items()'}:"
    one = Constant(math.pi) if isinstance(first.distribution, Constant) else first.distribution
    yield from _assignment(pattern.text, _maker(one, "value"))


def _assignment(text: str, rule: str) -> Iterator[str]:
    line = f"        rules[f{quoted(text)}] = {rule}"
    if len(line) <= WIDTH:
        yield line
    else:
        yield f"        name = f{quoted(text)}"
        yield from broken(f"        rules[name] = {rule}", " " * 8)
