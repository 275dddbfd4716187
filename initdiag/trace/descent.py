"""The lineage of what an operation makes of its inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from operator import or_

from initdiag.trace.calls import CHOICES, Call, wide
from initdiag.trace.chains import closed, cut, frozen, joined, viewed
from initdiag.trace.lineage import (
    ACTIVATIONS,
    ARITHMETIC,
    COPIES,
    LOOKUPS,
    NORMS,
    NOTHING,
    SOFTMAXES,
    STATISTICS,
    VIEWS,
    Lineage,
    Term,
)

SUMS = frozenset("add sub rsub stack cat index_add index_put copy scatter_add scatter where addcmul sum".split())
RESHAPES = frozenset("roll flip triu tril constant_pad_nd repeat repeat_interleave tile".split())
REWRITES = frozenset(
    "clamp clamp_min clamp_max where masked_fill index_put scatter copy remainder fmod add sub".split()
)
FORGETS = frozenset("fill zero bernoulli uniform normal scalar_tensor arange size".split())


def descend(call: Call) -> Lineage:
    """Return the lineage of the result of anything but a look-up by token ids, a product or a residual addition."""
    operation, parents = call.operation, call.parents
    if not parents or operation.endswith("_like") or operation.startswith("new_") or operation in FORGETS:
        return NOTHING  # zeros_like, new_empty, … take a shape, and none of the values
    first = parents[0]
    if operation in VIEWS:
        return viewed(call, first)
    if operation in COPIES:
        return closed(first) if operation in RESHAPES else first
    if operation in LOOKUPS and (first.from_ids or first.parameter):
        found = replace(first, routed=first.routed or any(parent.routed for parent in parents))
        if not first.chains or operation != "index" or any(parent.from_ids for parent in parents[1:]):
            return closed(found)
        step = (call.function, frozen(call.args[1:]), (), None)
        return replace(found, chains=tuple(cut(chain, step) for chain in first.chains))
    if not any(parent.from_ids for parent in parents):
        parameter = next((parent for parent in parents if parent.parameter), None)
        return Lineage(parameter=parameter.parameter, flipped=parameter.flipped) if parameter else NOTHING
    on_stream = [parent for parent in parents if parent.stream]
    if on_stream and not any(parent.left for parent in parents) and operation in ARITHMETIC:
        return _on_stream(call, on_stream)
    return _off_stream(call)


def _statistic(call: Call) -> bool:
    """A statistic over features: one number where there were many."""
    return call.operation in STATISTICS and _over_features(call)


def _over_features(call: Call) -> bool:
    axes = call.args[1] if len(call.args) > 1 else call.kwargs.get("dim")
    if call.operation.startswith("linalg_vector_norm") or call.operation == "norm":
        axes = call.args[2] if len(call.args) > 2 else call.kwargs.get("dim")
    axes = (axes,) if isinstance(axes, int) else axes
    last = call.inputs[0].dim() - 1
    return isinstance(axes, list | tuple) and any(axis in (-1, last) for axis in axes)


def _still_ids(call: Call) -> bool:
    """Whether token ids are still token ids: clamped, wrapped, with some replaced or put before them."""
    if call.operation == "cat":
        return any(parent.ids for parent in call.parents)
    at = 1 if call.operation == "where" else 0
    return call.operation in REWRITES and any(parent.ids for parent in call.parents[at : 3 if at else 1])


def _on_stream(call: Call, on: Sequence[Lineage]) -> Lineage:
    operation = call.operation
    bodies = [parent for parent in on if not parent.stat]
    body = (bodies or on)[0]
    stat = not bodies or _statistic(call)
    normed, gain, scaled = body.normed, body.gain, body.scaled
    parameter = next((parent.parameter for parent in call.parents if parent.parameter and not parent.from_ids), None)
    if operation in NORMS:
        normed, gain = True, parameter
    elif operation in ("mul", "div") and not stat:
        if any(parent.stat for parent in on):
            normed = True  # a gain that came before the division, g·(x − μ)/σ, is a gain as well
        elif parameter and gain is None and wide(call, parameter):
            gain, scaled = parameter, scaled or not normed
        else:
            scaled = True  # before a norm or, as T5's d_model^-0.5 before a tied head, after it
    elif operation == "add" and len(bodies) > 1 and any(other.stream & body.stream for other in bodies[1:]):
        scaled = True  # a shortcut from an earlier state of the same stream
    return Lineage(
        from_ids=True,
        stream=reduce(or_, (parent.stream for parent in on)),
        roots=reduce(or_, (parent.roots for parent in on)),
        stat=stat,
        normed=normed and not stat,
        gain=gain,
        scaled=scaled and not (normed and not body.normed),
        routed=any(parent.routed for parent in call.parents),
    )


def _off_stream(call: Call) -> Lineage:
    operation, parents = call.operation, call.parents
    left = [parent for parent in parents if parent.left]
    bodies = [parent for parent in left if not parent.stat] or left or [one for one in parents if one.from_ids]
    main = max(bodies, key=lambda parent: (parent.mixes, parent.products))
    if not left and not any(parent.roots for parent in parents):  # masks and positions made of token ids
        return Lineage(from_ids=True, ids=_still_ids(call))
    softmax = operation in SOFTMAXES
    stat = bool(left) and (all(parent.stat for parent in left) or _statistic(call))
    normed = main.normed or operation in NORMS
    if operation in ("mul", "div") and any(parent.stat for parent in left) and not stat:
        normed = True
    peers = [one for one in left if one is not main and one.projection and one.products == main.products]
    return Lineage(
        from_ids=True,
        roots=reduce(or_, (parent.roots for parent in parents)),
        stat=stat,
        normed=normed and not stat,
        projection=main.projection,
        also=main.also.union(*(one.also | {one.projection} for one in peers)) - {main.projection}  # type: ignore[arg-type]
        if operation in SUMS
        else main.also,
        inner=main.inner,
        products=main.products,
        mixes=main.mixes,
        scores=None if softmax else main.scores,
        weights=(softmax and main.scores is not None and main.mixes > 0) or (main.weights and not softmax),
        cross=any(parent.cross for parent in left),
        activated=operation in ACTIVATIONS or any(parent.activated for parent in left),
        convolved=any(parent.convolved for parent in left),
        routed=any(parent.routed for parent in parents) or (operation in CHOICES and not main.mixes),
        chains=joined(operation, main, left),
        terms=_scaled_terms(call, main),
        reads=frozenset().union(*(parent.reads for parent in left)),
    )


def _scaled_terms(call: Call, main: Lineage) -> tuple[Term, ...]:
    """Keep a sum's addends through a multiplication by a number."""
    if not main.terms or call.operation not in ("mul", "div") or len(call.inputs) != 1 or len(call.args) != 2:
        return ()
    factor = float(call.args[1])
    if call.operation == "div":
        factor = 1 / factor if factor else math.inf
    return tuple(replace(term, factor=term.factor * factor) for term in main.terms)
