"""Parameters grouped by patterns of their names: numbers that tell nothing apart are replaced."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, count

from initdiag.schemes import AsFound, PlannedParameter


@dataclass(frozen=True)
class NamePattern:
    """Parameters that one rule draws: '*' in `text` is a number. `each`: the number, '{layer}', that it depends on."""

    text: str
    entries: tuple[PlannedParameter, ...]
    each: int | None = None


def name_patterns(entries: Iterable[PlannedParameter], pieces: Mapping[str, object]) -> list[NamePattern]:
    """Group parameters whose names differ in numbers only and which are drawn alike, in the order of the model."""
    entries = tuple(entries)
    alike: dict[str, list[PlannedParameter]] = {}
    for entry in entries:
        alike.setdefault(_starred(entry.parameter.name, ()), []).append(entry)
    patterns = [pattern for group in alike.values() for pattern in _split(group, pieces)]
    order = {entry.parameter.name: index for index, entry in enumerate(entries)}
    return sorted(patterns, key=lambda pattern: order[pattern.entries[0].parameter.name])


def _split(group: list[PlannedParameter], pieces: Mapping[str, object]) -> Iterator[NamePattern]:
    """Write out as few numbers as it takes to tell parameters apart that are drawn differently."""
    names = [entry.parameter.name for entry in group]
    layers = [str(entry.parameter.layer) for entry in group]
    columns = list(zip(*(re.findall(r"\d+", name) for name in names), strict=True))
    spans = [match.span() for match in re.finditer(r"\d+", names[0])]
    whole = [names[0][:a].endswith(".") and names[0][b : b + 1] in (".", "") for a, b in spans]
    free = [
        position  # '.0.' or 'layer_0': a number that is constant or part of a word, like ln_1, is part of the name
        for position, column in enumerate(columns)
        if len(set(column)) > 1 and (whole[position] or list(column) == layers)
    ]
    by_layer = next((position for position in free if list(columns[position]) == layers), free[0] if free else None)
    fixed = [position for position in range(len(columns)) if position not in free]

    def exactly(entry: PlannedParameter) -> object:
        found = isinstance(entry.distribution, AsFound)
        return entry.parameter.role, found or entry.distribution, pieces[entry.parameter.name]

    def roughly(entry: PlannedParameter) -> object:
        return entry.parameter.role, type(entry.distribution), pieces[entry.parameter.name]

    others = [position for position in free if position != by_layer]
    choices: list[tuple[list[int], Callable[[PlannedParameter], object]]] = [(others, exactly), (free, roughly)]
    for positions, drawn in choices:
        for size in range(len(positions) + 1):
            for literal in combinations(reversed(positions), size):
                buckets: dict[str, list[PlannedParameter]] = {}
                for entry in group:
                    buckets.setdefault(_starred(entry.parameter.name, (*fixed, *literal)), []).append(entry)
                if all(len({drawn(entry) for entry in bucket}) == 1 for bucket in buckets.values()):
                    for text, bucket in buckets.items():
                        yield from _by_number(text, bucket, [*fixed, *literal], exactly)
                    return
    for entry in group:  # rows of packed matrices that differ without a pattern
        yield NamePattern(entry.parameter.name, (entry,))


def _by_number(
    text: str, bucket: list[PlannedParameter], literal: list[int], drawn: Callable[[PlannedParameter], object]
) -> Iterator[NamePattern]:
    """Yield one pattern, or one that depends on a number, or the names themselves."""
    if len({drawn(entry) for entry in bucket}) == 1:
        yield NamePattern(text, tuple(bucket))
        return
    numbers = [re.findall(r"\d+", entry.parameter.name) for entry in bucket]
    for position in range(len(numbers[0])):
        pairs = {(found[position], drawn(entry)) for found, entry in zip(numbers, bucket, strict=True)}
        if position not in literal and len({number for number, _ in pairs}) == len(pairs):
            yield NamePattern(_starred(bucket[0].parameter.name, literal, position), tuple(bucket), position)
            return
    for entry in bucket:
        yield NamePattern(entry.parameter.name, (entry,))


def _starred(name: str, literal: Collection[int], each: int | None = None) -> str:
    position = count()

    def written(match: re.Match[str]) -> str:
        at = next(position)
        return "{layer}" if at == each else match[0] if at in literal else "*"

    if each is not None:
        name = name.replace("{", "{{").replace("}", "}}")
    return re.sub(r"\d+", written, name)
