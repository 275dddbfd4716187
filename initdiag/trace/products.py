"""The lineages of what matrix products, attention and residual additions make."""

from __future__ import annotations

from initdiag.trace.calls import Call, operands, over_positions
from initdiag.trace.lineage import Lineage


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
