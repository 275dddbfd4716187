"""What the rows of a parameter are drawn from, out of what its storage was seen to hold. No torch."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import replace

from initdiag.schemes import Constant, Distribution, Normal, Truncated, Uniform
from initdiag.subjects.contents import REPEATED, Content, Part, unknown_after
from initdiag.weightless.law import Law, Piece

UNWRITTEN = "memory that nothing wrote"


def with_parts(
    before: Content,
    after: Content,
    total: int,
    spans: Iterable[tuple[int, int]] | None,
    change: Callable[[Content], Content],
) -> Content:
    """Return `after` with the parts that it has once some entries of `before` have changed.

    Args:
        total: entries of the storage. spans: ranges of them that were written; None where they are no ranges.
        change: what a content becomes there.
    """
    parts = before.parts or (Part(0, total, before),)
    if spans is None:
        unknown = unknown_after("written in parts that are no whole rows, such as columns")
        return replace(after, parts=(Part(0, total, unknown),))
    for start, stop in spans:
        parts = _changed(parts, start, stop, change)
    return replace(after, parts=parts)


def _changed(parts: tuple[Part, ...], start: int, stop: int, change: Callable[[Content], Content]) -> tuple[Part, ...]:
    first = bisect_right(parts, start, key=lambda part: part.start) - 1
    last = bisect_left(parts, stop, key=lambda part: part.start)
    middle: list[Part] = []
    for part in parts[first:last]:
        low, high = max(part.start, start), min(part.stop, stop)
        if part.start < low:
            middle.append(part._replace(stop=low))
        made = change(part.content)
        if made.parts:  # a copy of what has parts itself, into the range that begins at start
            middle += [Part(start + a, start + b, content) for a, b, content in made.parts if low <= start + a < high]
        elif middle and middle[-1].stop == low > start and middle[-1].content == made:
            middle[-1] = middle[-1]._replace(stop=high)
        else:
            middle.append(Part(low, high, made))
        if high < part.stop:
            middle.append(part._replace(start=high))
    if first and (parts[first - 1].stop, parts[first - 1].content) == (middle[0].start, middle[0].content):
        first -= 1  # a loop over rows leaves one part, not one a row
        middle[0] = middle[0]._replace(start=parts[first].start)
    return (*parts[:first], *middle, *parts[last:])


def law_of(content: Content, shape: tuple[int, ...], offset: int | None) -> Law | str:
    """Return what the rows of a parameter are drawn from, or why that can't be said, in words.

    Args:
        shape: of the parameter; rows are those of all its axes but the last. offset: of its first entry in its
            storage; None where its entries are no range of the storage in order.
    """
    columns = shape[-1]
    rows = math.prod(shape[:-1])
    if not content.parts:
        found = _distribution(content)
        return found if isinstance(found, str) else Law((Piece(0, rows, *found),))
    end = None if offset is None else offset + rows * columns
    pieces: list[Piece] = []
    for part in content.parts:
        start, stop = part.start, part.stop
        if offset is not None and end is not None:
            start, stop = max(start, offset) - offset, min(stop, end) - offset
        if stop <= start:
            continue
        found = _distribution(part.content)
        if isinstance(found, str):
            return found
        if pieces and (pieces[-1].distribution, pieces[-1].mean) == found:
            pieces[-1] = replace(pieces[-1], stop=stop)
        else:
            pieces.append(Piece(start, stop, *found))
    if len(pieces) == 1:
        return Law((replace(pieces[0], start=0, stop=rows),))
    if offset is None or any(piece.stop % columns for piece in pieces):
        return "written in parts that are no whole rows"
    return Law(tuple(replace(piece, start=piece.start // columns, stop=piece.stop // columns) for piece in pieces))


def draws_of(content: Content) -> frozenset[int]:
    """Return the numbers of the copied draws that a storage holds."""
    return frozenset({content.draw, *(part.content.draw for part in content.parts)} - {0, REPEATED})


def unwritten(content: Content) -> bool:
    """Whether there is memory that nothing wrote, as far as the writes say."""
    if content.parts:
        return any(part.content.base == "nothing" for part in content.parts)
    return content.base == "nothing" or (content.base == "unknown" and content.fresh)


def _distribution(content: Content) -> tuple[Distribution, float] | str:
    """Return a distribution around 0 and the mean, or the reason why there is none."""
    if content.draw == REPEATED:
        return "the same draw several times"
    scale = abs(content.scale)
    if content.base == "nothing" or (content.base == "unknown" and content.fresh):
        return UNWRITTEN
    if content.base not in ("constant", "normal", "uniform", "truncated"):
        return content.why or "computed in a way that gives it no distribution with a name"
    if not (math.isfinite(content.mean) and math.isfinite(content.scale)):
        return "not finite"
    if content.base == "constant" or not scale:
        return Constant(content.mean), 0.0
    mean = content.mean if abs(content.mean) > 1e-9 * scale else 0.0  # rounding of 2·u − 1 and the like
    match content.base:
        case "normal":
            return Normal(scale), mean
        case "uniform":
            return Uniform(scale), mean
    return Truncated(scale, content.cut), mean
