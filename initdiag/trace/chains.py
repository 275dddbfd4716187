"""How values are cut out of the output of a product, step by step: what packing.py walks afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from initdiag.trace.calls import Call
from initdiag.trace.lineage import MOST_CHAINS, Chain, Lineage

ENTRYWISE = frozenset("add sub rsub mul div clamp clamp_min clamp_max neg".split())
SWAPS = frozenset("t transpose permute mT numpy_T swapaxes swapdims adjoint".split())


def viewed(call: Call, first: Lineage) -> Lineage:
    if first.parameter and not first.from_ids:
        return replace(first, flipped=not first.flipped) if call.operation in SWAPS else first
    if not first.chains:
        return first
    step = (call.function, frozen(call.args[1:]), tuple(call.kwargs.items()), None)
    return replace(first, chains=tuple(cut(chain, step) for chain in first.chains))


def frozen(values: Any) -> tuple[Any, ...]:
    return tuple(frozen(value) if isinstance(value, list | tuple) else value for value in values)


def cut(chain: Chain, step: Any) -> Chain:
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


def closed(lineage: Lineage) -> Lineage:
    if not lineage.chains or all(chain.closed for chain in lineage.chains):
        return lineage
    return replace(lineage, chains=tuple(replace(chain, closed=True) for chain in lineage.chains))


def joined(operation: str, main: Lineage, left: Sequence[Lineage]) -> tuple[Chain, ...]:
    own = [parent for parent in left if parent.projection == main.projection]
    if len(left) == 1 and operation in ENTRYWISE:
        return main.chains  # every entry stays where it is: a bias, a clamp, a number
    chains = tuple(dict.fromkeys(chain for parent in own for chain in closed(parent).chains))
    return chains if len(chains) <= MOST_CHAINS else ()
