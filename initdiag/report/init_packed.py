"""Packed matrices as code: a function that draws each range of rows by its role."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import pairwise

from initdiag.report.init_numbers import Numbers
from initdiag.report.init_rows import WIDTH, broken, call_for, numbers_of
from initdiag.schemes import AsFound, Orthogonal, Parameter, Part
from initdiag.schemes.distributions import Piece

Ranges = tuple[tuple[int, int], ...]


def function_name(parts: tuple[Piece, ...], functions: list[str]) -> str:
    words = dict.fromkeys(str(part.role).removeprefix("attention_").removeprefix("mlp_") for part in parts)
    name = "draw_" + "_".join(words)
    taken = sum(line.startswith(f"    def {name}") for line in functions)
    return f"{name}_{taken + 1}" if taken else name


def packed_function(function: str, parameter: Parameter, parts: tuple[Piece, ...], numbers: Numbers) -> Iterator[str]:
    """Yield the function that draws a packed matrix, part by part."""
    dims, axis = len(parameter.shape), parameter.axis
    outputs = parameter.shape[axis]
    before = "" if axis == -dims else ":, " if dims == 2 else "..., "
    after = ", :" if dims > 2 and axis == -2 else ""
    yield f"    def {function}(weight: torch.Tensor) -> None:"
    if parameter.transposed and dims > 1:
        yield "        # columns, since it is stored as (inputs, outputs)"
    for part in parts:
        if isinstance(part.distribution, AsFound):
            rows = ", ".join(f"{start}:{stop}" for start, stop in part.rows)
            yield from textwrap.wrap(f"{part.role} is left as it is: {rows}", WIDTH - 10, initial_indent="        # ")
            continue
        written = numbers_of(part.distribution, parameter.alone(Part(part.role, part.rows)), part.role, numbers)
        stride = _stride(part.rows)
        start, stop = part.rows[0]
        end = outputs if stride and len(range(start, outputs, stride)) == len(part.rows) else part.rows[-1][1]
        if (
            isinstance(part.distribution, Orthogonal) and len(part.rows) > 1
        ):  # orthogonal as a whole, not range by range
            if stride:
                yield f"        starts = range({start}, {end}, {stride})  # {part.role}"
                yield f"        rows = [row for start in starts for row in range(start, start + {stop - start})]"
            else:
                yield f"        # {part.role}"
                ranges = ", ".join(f"*range({first}, {last})" for first, last in part.rows)
                yield from broken(f"        rows = [{ranges}]", " " * 8)
            tensor = f"weight[{before}rows{after}]"
            yield f"        part = torch.empty_like({tensor})"
            yield from broken(f"        {call_for(part.distribution, 'part', *written)}", " " * 8)
            yield f"        {tensor} = part"
            continue
        if stride:
            yield f"        for start in range({start}, {end}, {stride}):  # {part.role}"
            tensor = f"weight[{before}start : start + {stop - start}{after}]"
            yield from broken(f"            {call_for(part.distribution, tensor, *written)}", " " * 12)
            continue
        for start, stop in part.rows:
            tensor = f"weight[{before}{start or ''}:{stop if stop < outputs else ''}{after}]"
            line = f"        {call_for(part.distribution, tensor, *written)}"
            if len(f"{line}  # {part.role}") <= WIDTH:
                yield f"{line}  # {part.role}"
            else:
                yield f"        # {part.role}"
                yield from broken(line, " " * 8)


def _stride(rows: Ranges) -> int:
    """Return the step between rows that repeat, as in heads of interleaved q, k and v; 0 where they don't."""
    steps = {after[0] - before[0] for before, after in pairwise(rows)}
    lengths = {stop - start for start, stop in rows}
    return steps.pop() if len(rows) > 2 and len(steps) == len(lengths) == 1 else 0
