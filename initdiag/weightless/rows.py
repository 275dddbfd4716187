"""Rows of weights that have no entries, and their entries where nothing else will do."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from initdiag.weightless.joined import Joined, picked
from initdiag.weightless.lazy import Lazy
from initdiag.weightless.located import Located, located
from initdiag.weightless.weight import Weight


def embedding(table: Tensor, ids: Tensor, *_: Any, **__: Any) -> Any:
    return index_select(table, 0, ids.reshape(-1), shape=ids.shape)


def index_select(table: Tensor, dim: int, ids: Tensor, shape: Any = None) -> Any:
    if dim != 0 or isinstance(ids, Lazy) or not isinstance(table, Lazy) or table.dim() != 2:
        return NotImplemented
    found = _rows(table, ids)
    return found if found is NotImplemented or shape is None else found.view(*shape, table.shape[1])


def index(table: Tensor, places: Any) -> Any:
    """weight[ids] with one tensor of integers: rows of a table."""
    ids = places[0]
    if len(places) != 1 or ids is None or isinstance(ids, Lazy) or ids.dtype.is_floating_point:
        return NotImplemented
    if ids.dtype == torch.bool:
        ids = ids.nonzero()[:, 0] if ids.dim() == 1 else None
    if ids is None or not isinstance(table, Lazy) or not isinstance(table.value, Weight):
        return NotImplemented
    ids = torch.where(ids < 0, ids + len(table), ids)
    if table.dim() == 3 and ids.dim() == 1:
        return Lazy(picked(table.value, ids.tolist()), table.dtype)
    if table.dim() != 2:
        return NotImplemented
    return index_select(table, 0, ids.reshape(-1), shape=ids.shape)


def _rows(table: Lazy, ids: Tensor) -> Any:
    value = table.value
    if not isinstance(value, Weight):
        return NotImplemented
    place = located(value.layout, value.source.m, value.source.n)
    if place is None or place.transposed:
        return NotImplemented
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < len(table):
        raise IndexError(f"index out of range in self: {len(table)} rows, ids {int(ids.min())} to {int(ids.max())}")
    first, step = place.matrix * value.source.m + place.rows.start, place.rows.step
    found = value.source.look_up([first + step * row for row in ids.tolist()])
    found = found[:, place.columns.start : place.columns.stop : place.columns.step] * value.scale
    found = found if value.plus is None else found + value.plus[ids]
    return found.to(table.dtype)


def entries(value: Weight | Joined, why: str) -> Tensor:
    """Return a view of a weight as a real tensor; a few rows of a table are looked up.

    Raises:
        RunError: it doesn't fit in memory.
    """
    if isinstance(value, Joined):
        parts = [entries(part, why) for part in value.parts]
        whole = torch.stack(parts) if value.axis < 0 else torch.cat(parts, dim=value.axis)
        return whole.view(value.layout.shape)
    layout, source = value.layout, value.source
    if layout.dim() == 1:  # one row
        plus = None if value.plus is None else value.plus.unsqueeze(0)
        return entries(replace(value, layout=layout.unsqueeze(0), plus=plus), why)[0]
    if layout.dim() > 2 and layout.shape[:-2].numel() == 1:
        return entries(value.viewed(torch.squeeze, tuple(range(layout.dim() - 2))), why).view(layout.shape)
    place = located(layout, source.m, source.n) if layout.dim() == 2 else None
    found = gathered(value, why) if place is None else _located_entries(value, place, why)
    found = found * value.scale
    return found if value.plus is None else found + value.plus


FEW = 8  # of a matrix's rows, a part that is looked up row by row rather than made real as a whole


def _located_entries(value: Weight, place: Located, why: str) -> Tensor:
    source, columns = value.source, slice(place.columns.start, place.columns.stop, place.columns.step)
    first = place.matrix * source.m
    if FEW * len(place.rows) <= source.m or (len(place.rows) < source.m and not source.met(place.matrix)):
        found = source.look_up([first + row for row in place.rows])
    else:
        rows = range(place.rows.start, place.rows.stop)
        source.need(rows, place.matrix, why)
        found = source.entries(rows, place.matrix)[:: place.rows.step]
    found = found[:, columns]
    return found.t() if place.transposed else found


def gathered(value: Weight, why: str) -> Tensor:
    """Entries of any view: made real as a whole, then viewed."""
    source, layout = value.source, value.layout
    matrices = range(math.prod(source.shape[:-2]))
    for at in matrices:
        source.need(range(source.m), at, why)
    whole = torch.stack([source.entries(range(source.m), at) for at in matrices])
    return whole.as_strided(layout.shape, layout.stride(), layout.storage_offset())
