"""How a matrix product uses a weight: which way round, and which rows of it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from initdiag.trace.calls import Call
from initdiag.weightless.lazy import is_lazy, source_of


@dataclass(frozen=True, slots=True)
class Product:
    """A weight as a matrix product used it: inputs that one output sums over, outputs of the whole weight, and whether
    it is stored (inputs, outputs)."""

    fan_in: int
    outputs: int
    transposed: bool


def product_of(call: Call, x: int, w: int, result: Tensor, whole: Tensor) -> Product:
    """Describe a product of activation x and weight w (places among the inputs); `whole` is the weight's parameter."""
    weight = call.inputs[w]
    if call.operation == "convolution":
        return Product(int(weight[0].numel()), int(weight.shape[0]), False)
    outputs = result.shape[-1] if w > x else result.shape[-2] if result.dim() > 1 else 1
    fan_in = call.inputs[x].shape[-1] if w > x else weight.shape[-1]
    flipped = call.parents[w].flipped
    transposed = not flipped if w > x else flipped
    if whole.dim() == 2 and not transposed and whole.shape[1] == fan_in:
        outputs = whole.shape[0]  # of the weight; this product may use a slice of it
    return Product(int(fan_in), int(outputs), bool(transposed))


def first_row(used: Tensor, whole: Tensor) -> int:
    """The row at which a slice of a weight begins, told by where its memory begins."""
    if whole.dim() != 2 or used.numel() >= whole.numel() or whole.stride(0) < max(1, whole.stride(1)):
        return 0
    if not _shared(used, whole):
        return 0
    return (used.storage_offset() - whole.storage_offset()) // whole.stride(0)


def _shared(one: Tensor, two: Tensor) -> bool:
    if is_lazy(one) or is_lazy(two):
        return source_of(one) is source_of(two)
    return one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
