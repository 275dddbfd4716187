"""Watches the operations of one forward, of any module, and reports residual additions and attention as they run.

A TorchDispatchMode sees every operation below autograd, whether a module was called, its `.forward` was called, or
no module is there at all; the model itself carries nothing of ours. Nothing is kept alive: lineages hang on tensors
by weak reference, and numbers are taken on the spot by the two callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from initdiag.trace.lineage import ADDITIONS, STREAM, TOKEN_IDS, Lineage, descend


@dataclass(frozen=True)
class Addition:
    """One residual addition: after = before + branch (all of the stream's shape, (B, T, d_model))."""

    projection: str | None
    kind: str
    before: Tensor
    branch: Tensor
    after: Tensor


@dataclass(frozen=True)
class FusedAttention:
    """Queries (B, H, T, head_dim) and keys (B, H or fewer, T, head_dim) as they enter fused attention."""

    query: Tensor
    key: Tensor
    causal: bool
    scale: float
    mask: Tensor | None
    source: str | None


@dataclass(frozen=True)
class SoftmaxAttention:
    """Attention logits (B, H, T, T), masked, as they enter a plain softmax."""

    logits: Tensor
    source: str | None


Attention = FusedAttention | SoftmaxAttention


class Tracer(TorchDispatchMode):
    """Use as a context manager around a forward; `ids` is the tensor of token ids that the forward gets."""

    def __init__(
        self,
        module: nn.Module,
        ids: Tensor,
        on_addition: Callable[[Addition], None],
        on_attention: Callable[[Attention], None],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._on_addition = on_addition
        self._on_attention = on_attention
        self._lineages: Any = WeakTensorKeyDictionary()
        for name, parameter in module.named_parameters():
            self._lineages[parameter] = Lineage(parameter=name)
        self._lineages[ids] = TOKEN_IDS

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping the method below for torch.compile: that alone imports torch._dynamo, 1.2 s."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        inputs = [*_tensors(args), *_tensors(kwargs.values())]
        parents = [self._of(tensor) for tensor in inputs]  # before the call: an in-place one changes its own history
        operation = func._schema.name.removeprefix("aten::")
        before = _overwritten(operation, inputs, parents)
        result = func(*args, **kwargs)
        lineage = descend(operation, parents)
        if operation.startswith("_scaled_dot_product"):
            lineage = replace(lineage, attention=True)
            self._on_attention(_fused(func, args, kwargs, inputs, parents))
        elif operation in ("_softmax", "_safe_softmax") and _is_attention(inputs[0], parents[0]):
            lineage = replace(lineage, attention=True)
            self._on_attention(SoftmaxAttention(inputs[0], parents[0].projection))
        elif operation in ADDITIONS and (addition := _residual(args, kwargs, parents, result, before)):
            lineage = STREAM
            self._on_addition(addition)
        for tensor in _tensors((result,)):
            self._lineages[tensor] = lineage
        return result

    def _of(self, tensor: Tensor) -> Lineage:
        return self._lineages.get(tensor, Lineage())  # type: ignore[no-any-return]


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _overwritten(operation: str, inputs: list[Tensor], parents: list[Lineage]) -> Tensor | None:
    """Keep what an in-place residual addition is about to overwrite."""
    if operation == "add_" and len(inputs) == 2 and parents[0].from_ids and inputs[0].shape == inputs[1].shape:
        return inputs[0].clone()
    return None


def _residual(args: Any, kwargs: Any, parents: list[Lineage], result: Tensor, before: Tensor | None) -> Addition | None:
    """Tell whether `left + alpha·right` adds a branch to the stream; the branch is what left the stream."""
    if len(parents) != 2 or args[0].shape != args[1].shape:
        return None
    left, right = args[0] if before is None else before, args[1]
    right = right * kwargs["alpha"] if kwargs.get("alpha", 1) != 1 else right
    for stream, branch, at in ((left, right, 0), (right, left, 1)):
        leaver = parents[1 - at]
        if parents[at].on_stream and leaver.from_ids and not leaver.on_stream:
            return Addition(leaver.projection, leaver.kind, stream, branch, result)
    return None


def _is_attention(logits: Tensor, lineage: Lineage) -> bool:
    """A softmax over the last of four axes of something that left the stream: (B, H, T, T), not a router's (N, E)."""
    return logits.dim() == 4 and lineage.from_ids and logits.shape[-1] > 1


def _fused(func: Any, args: Any, kwargs: Any, inputs: list[Tensor], parents: list[Lineage]) -> FusedAttention:
    names = [argument.name for argument in func._schema.arguments]
    given = dict(zip(names, args, strict=False)) | kwargs
    scale = given.get("scale")
    mask = given.get("attn_mask", given.get("attn_bias"))
    return FusedAttention(
        query=inputs[0],
        key=inputs[1],
        causal=bool(given.get("is_causal", False)),
        scale=float(scale) if scale is not None else inputs[0].shape[-1] ** -0.5,
        mask=mask if isinstance(mask, torch.Tensor) else None,
        source=parents[0].projection,
    )
