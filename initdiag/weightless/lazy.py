"""A tensor without entries: what a large parameter is replaced by, and what every view of it is.

It says that it lies on the CPU, has a shape, strides and an autograd history like any other, and holds a value instead
of memory: a Weight (a view of a random parameter) or a Gradient (a sum of thin products). Its layout is a tensor on
the meta device, so that views are made by torch itself. Products are answered; what needs entries gets them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from initdiag.weightless.factors import Gradient
from initdiag.weightless.joined import Joined
from initdiag.weightless.source import Source
from initdiag.weightless.weight import Weight

Value = Weight | Joined | Gradient


class Lazy(Tensor):
    """See above. `value` is what it stands for; in-place writes are refused."""

    value: Value

    @staticmethod
    def __new__(cls, value: Value, dtype: torch.dtype) -> Lazy:
        layout = value.layout
        made: Lazy = torch.Tensor._make_wrapper_subclass(
            cls,
            layout.shape,
            strides=layout.stride(),
            storage_offset=layout.storage_offset(),
            dtype=dtype,
            device=torch.device("cpu"),
        )
        made.value = value
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Lazy({tuple(self.shape)}, {type(self.value).__name__})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        from initdiag.weightless.operations import answer  # it makes tensors of this class

        return answer(func, args, kwargs or {})


def lazy_parameter(
    source: Source, shape: tuple[int, ...], dtype: torch.dtype, requires_grad: bool = True
) -> nn.Parameter:
    """Return a parameter of a shape that a source stands behind; axes of size 1 may follow the source's own."""
    layout = torch.empty(shape, device="meta")
    made: Any = Lazy(Weight(source, layout), dtype).requires_grad_(requires_grad)
    made._is_param = True  # all that nn.Parameter does for a subclass, without its import of torch.distributed, 1.5 s
    return made  # type: ignore[no-any-return]


def is_lazy(tensor: Tensor) -> bool:
    """Whether a tensor has no entries."""
    return isinstance(tensor, Lazy)


def source_of(tensor: Tensor) -> Source | None:
    """Return the source that a parameter, or a view of one, belongs to."""
    return tensor.value.source if isinstance(tensor, Lazy) and isinstance(tensor.value, Weight) else None
