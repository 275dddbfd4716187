"""One operation as the tracer sees it, and what can be said of it without a history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from initdiag.trace.lineage import FUSED_BIAS, Lineage

CHOICES = frozenset("topk argmax sort".split())


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


def wide(call: Call, parameter: str) -> bool:
    """Whether a parameter has a number for each feature, as gains do; one number is a multiplier."""
    return any(
        parent.parameter == parameter and value.numel() > 1
        for parent, value in zip(call.parents, call.inputs, strict=True)
    )
