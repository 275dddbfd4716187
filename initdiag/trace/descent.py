"""The lineage of what an operation makes of its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_
from typing import Any

from torch import Tensor

from initdiag.trace.lineage import (
    ACTIVATIONS,
    ARITHMETIC,
    COPIES,
    FUSED_BIAS,
    LOOKUPS,
    MOST_CHAINS,
    NORMS,
    NOTHING,
    SOFTMAXES,
    STATISTICS,
    VIEWS,
    Chain,
    Lineage,
    Term,
)

SUMS = frozenset("add sub rsub stack cat index_add index_put copy scatter_add scatter where addcmul sum".split())
RESHAPES = frozenset("roll flip triu tril constant_pad_nd repeat repeat_interleave tile".split())
CHOICES = frozenset("topk argmax sort".split())
ENTRYWISE = frozenset("add sub rsub mul div clamp clamp_min clamp_max neg".split())
FORGETS = frozenset("fill zero bernoulli uniform normal scalar_tensor arange size".split())


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: its name without the in-place underscore, its tensor inputs in order, and their lineages."""

    function: Any
    operation: str
    args: Any
    kwargs: Any
    inputs: Sequence[Tensor]
    parents: Sequence[Lineage]


def operands(call: Call) -> tuple[int, int]:
    """The places of the two factors of a matrix product among the inputs."""
    return (1, 2) if call.operation in FUSED_BIAS and len(call.inputs) > 2 else (0, 1)


def weight_of(call: Call) -> tuple[int, int] | None:
    """The places of (activation, weight) in a product with a weight; None for a product of two activations."""
    left, right = operands(call)
    if len(call.parents) <= right:
        return None
    for x, w in ((left, right), (right, left)):
        if call.parents[w].parameter and not call.parents[w].from_ids and call.parents[x].from_ids:
            return x, w
    return None


def descend(call: Call) -> Lineage:
    """Return the lineage of the result of anything but a look-up by token ids, a product or a residual addition."""
    operation, parents = call.operation, call.parents
    if not parents or operation.endswith("_like") or operation.startswith("new_") or operation in FORGETS:
        return NOTHING  # zeros_like, new_empty, … take a shape, and none of the values
    first = parents[0]
    if operation in VIEWS:
        return _viewed(call, first)
    if operation in COPIES:
        return _closed(first) if operation in RESHAPES else first
    if operation in LOOKUPS and (first.from_ids or first.parameter):
        found = replace(first, routed=first.routed or any(parent.routed for parent in parents), ids=False)
        if not first.chains or operation != "index" or any(parent.from_ids for parent in parents[1:]):
            return _closed(found)
        step = (call.function, _frozen(call.args[1:]), (), None)
        return replace(found, chains=tuple(_cut(chain, step) for chain in first.chains))
    if not any(parent.from_ids for parent in parents):
        parameter = next((parent for parent in parents if parent.parameter), None)
        return Lineage(parameter=parameter.parameter, flipped=parameter.flipped) if parameter else NOTHING
    on_stream = [parent for parent in parents if parent.stream]
    if on_stream and not any(parent.left for parent in parents) and operation in ARITHMETIC:
        return _on_stream(call, on_stream)
    return _off_stream(call)


def over_positions(call: Call, w: int) -> bool:
    """Whether a product is a convolution over more than one position; one of width 1 is a linear layer."""
    return call.operation == "convolution" and any(size > 1 for size in call.inputs[w].shape[2:])


def chooses(call: Call) -> bool:
    """Whether an operation picks the largest outputs of one product, as routers do.

    The ids that were picked may be sorted again, and a maximum of what passed arithmetic is a quantizer's.
    """
    first = call.parents[0]
    if not first.left or first.mixes or first.products != 1 or not call.inputs[0].is_floating_point():
        return False
    bare = bool(first.chains) and not any(chain.closed for chain in first.chains)
    return call.operation in CHOICES or (call.operation == "max" and len(call.args) > 1 and bare)


def product(call: Call, x: int, w: int, reads: frozenset[int]) -> Lineage:
    """A product with a weight: what comes out has left the stream."""
    source, weight = call.parents[x], call.parents[w]
    left = source.left
    return Lineage(
        from_ids=True,
        roots=source.roots,
        projection=weight.parameter,
        inner=source.projection if left else None,
        products=(source.products if left else 0) + 1,
        mixes=source.mixes if left else 0,
        cross=source.cross and left,
        routed=source.routed or weight.routed,
        convolved=over_positions(call, w) or (source.convolved and left),
        reads=reads,
    )


def mixture(call: Call) -> Lineage:
    """A product of two activations: attention logits, or attention weights with values."""
    left, right = operands(call)
    a, b = call.parents[left], call.parents[right]
    main = b if a.weights else a
    return Lineage(
        from_ids=True,
        roots=a.roots | b.roots,
        projection=main.projection,
        products=max(a.products, b.products),
        mixes=max(a.mixes, b.mixes) + 1,
        scores=None if a.weights or b.weights else (a, b),
        cross=a.cross or b.cross or (a.roots != b.roots and bool(a.roots and b.roots)),
        routed=a.routed or b.routed,
        reads=a.reads | b.reads,
    )


def attended(query: Lineage, key: Lineage, value: Lineage) -> Lineage:
    """What fused attention makes of its operands."""
    return Lineage(
        from_ids=query.from_ids or key.from_ids or value.from_ids,
        roots=query.roots | key.roots | value.roots,
        projection=value.projection,
        products=max(query.products, value.products),
        mixes=2 + max(query.mixes, key.mixes, value.mixes),
        cross=query.roots != key.roots,
        routed=query.routed,
        reads=query.reads | key.reads | value.reads,
    )


def after_addition(stream: Lineage) -> Lineage:
    return Lineage(from_ids=True, stream=stream.stream, roots=stream.stream)


def _viewed(call: Call, first: Lineage) -> Lineage:
    if first.parameter and not first.from_ids:
        swaps = call.operation in ("t", "transpose", "permute", "mT", "numpy_T", "swapaxes", "swapdims", "adjoint")
        return replace(first, flipped=not first.flipped) if swaps else first
    if not first.chains:
        return first
    step = (call.function, _frozen(call.args[1:]), tuple(call.kwargs.items()), None)
    return replace(first, chains=tuple(_cut(chain, step) for chain in first.chains))


def _frozen(values: Any) -> tuple[Any, ...]:
    return tuple(_frozen(value) if isinstance(value, list | tuple) else value for value in values)


def _cut(chain: Chain, step: Any) -> Chain:
    return chain if chain.closed else replace(chain, steps=(*chain.steps, step))


def chosen(lineage: Lineage, at: int) -> Lineage:
    """The lineage of one of several results of a view, such as split."""
    if not lineage.chains:
        return lineage
    return replace(lineage, chains=tuple(_pick(chain, at) for chain in lineage.chains))


def _pick(chain: Chain, at: int) -> Chain:
    if chain.closed or not chain.steps:
        return chain
    function, rest, keywords, _ = chain.steps[-1]
    return replace(chain, steps=(*chain.steps[:-1], (function, rest, keywords, at)))


def _closed(lineage: Lineage) -> Lineage:
    if not lineage.chains or all(chain.closed for chain in lineage.chains):
        return lineage
    return replace(lineage, chains=tuple(replace(chain, closed=True) for chain in lineage.chains))


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


def wide(call: Call, parameter: str) -> bool:
    """Whether a parameter has a number for each feature, as gains do; one number is a multiplier."""
    return any(
        parent.parameter == parameter and value.numel() > 1
        for parent, value in zip(call.parents, call.inputs, strict=True)
    )


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
        return Lineage(from_ids=True)
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
        chains=_joined(operation, main, left),
        terms=_scaled_terms(call, main),
        reads=frozenset().union(*(parent.reads for parent in left)),
    )


def _joined(operation: str, main: Lineage, left: Sequence[Lineage]) -> tuple[Chain, ...]:
    own = [parent for parent in left if parent.projection == main.projection]
    if len(left) == 1 and operation in ENTRYWISE:
        return main.chains  # every entry stays where it is: a bias, a clamp, a number
    chains = tuple(dict.fromkeys(chain for parent in own for chain in _closed(parent).chains))
    return chains if len(chains) <= MOST_CHAINS else ()


def _scaled_terms(call: Call, main: Lineage) -> tuple[Term, ...]:
    """Keep a sum's addends through a multiplication by a number."""
    if not main.terms or call.operation not in ("mul", "div") or len(call.inputs) != 1 or len(call.args) != 2:
        return ()
    factor = float(call.args[1])
    factor = factor if call.operation == "mul" else 1 / factor
    return tuple(replace(term, factor=term.factor * factor) for term in main.terms)
