"""Which rows of a packed matrix made a value: the way its outputs were cut up is walked with their indices."""

from __future__ import annotations

from typing import Any

import torch

from initdiag.trace.lineage import Chain

Rows = tuple[tuple[int, int], ...]

Walked = dict[Any, Rows | None]  # layers cut their projections alike: each way is walked once


def rows_of(chains: tuple[Chain, ...], outputs: int, walked: Walked) -> Rows | None:
    """Return the (start, stop) ranges of a projection's outputs that a value draws on; None for all of them."""
    if not chains:
        return None
    used = torch.zeros(outputs, dtype=torch.bool)
    for chain in chains:
        rows = _walk(chain, outputs, walked)
        if rows is None:
            return None
        for start, stop in rows:
            used[chain.first + start : chain.first + stop] = True
    return None if bool(used.all()) else _ranges(used)


def _walk(chain: Chain, outputs: int, walked: Walked) -> Rows | None:
    width = chain.shape[-1]
    if width == outputs and not chain.steps:
        return None
    if not chain.steps:
        return ((0, width),)
    key = (chain.shape, tuple((str(function), repr(rest), at) for function, rest, _, at in chain.steps))
    if key not in walked:
        walked[key] = _replay(chain, width)
    return walked[key]


def _replay(chain: Chain, outputs: int) -> Rows | None:
    value: Any = torch.arange(outputs, dtype=torch.int32).expand(chain.shape)
    try:
        for function, rest, keywords, at in chain.steps:
            try:
                value = function(value, *rest, **dict(keywords))
            except RuntimeError:  # a view that only a contiguous tensor allows
                value = function(value.contiguous(), *rest, **dict(keywords))
            value = value if at is None else value[at]
    except (RuntimeError, IndexError):  # something between the views has changed the shape
        return None
    used = torch.zeros(outputs, dtype=torch.bool)
    used[value.reshape(-1).long()] = True
    return _ranges(used)


def _ranges(used: torch.Tensor) -> Rows:
    edges = torch.nn.functional.pad(used.int(), (1, 1)).diff()
    starts, stops = (edges == 1).nonzero().flatten().tolist(), (edges == -1).nonzero().flatten().tolist()
    return tuple(zip(starts, stops, strict=True))
