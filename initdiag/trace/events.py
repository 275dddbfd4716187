"""What the tracer reports while a forward runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from initdiag.trace.calls import Call


@dataclass(frozen=True)
class Addition:
    """One residual addition: after = before + the sum of all addends (each of the stream's shape, (B, T, d_model)).

    projection: the weight that wrote the branch. kind: attention, cross_attention, mlp, moe or other.
    part, parts: it is one of several addends that were summed before (parallel blocks); `branch` is its own share, and
    `whole` the sum of all.
    stream: mask of the streams. carried: what happened to the stream since the addition before: same, scaled, normed;
    carried_by: the gain of the norm that it passed. keep: the factor that this operation itself has on the stream.
    normed: the branch passed a norm after its last product. reads: indices of what it read (see Reading).
    module, source: whose code ran, and the line of it.
    """

    projection: str | None
    kind: str
    before: Tensor
    branch: Tensor
    after: Tensor
    whole: Tensor
    part: int = 0
    parts: int = 1
    stream: int = 1
    carried: str = "same"
    carried_by: str | None = None
    keep: float = 1.0
    normed: bool = False
    reads: frozenset[int] = frozenset()
    module: str = ""
    source: str | None = None


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


@dataclass(frozen=True)
class Reading:
    """A matrix product that reads the stream: what it reads, through which norm, and whether it was scaled too."""

    index: int
    reader: str
    normed: bool
    gain: str | None
    scaled: bool
    value: Tensor


@dataclass(frozen=True)
class Routing:
    """Experts chosen by a router, or looked up in a table: their ids (any shape), out of `experts`."""

    router: str
    experts: int
    chosen: Tensor


def ignore(_: Any) -> None:
    return None


def ignore_product(_: str, __: Tensor, ___: Tensor) -> None:
    return None


@dataclass(frozen=True)
class Callbacks:
    """What is called as things happen; the tensors in an event are only good during the call."""

    addition: Callable[[Addition], None] = ignore
    attention: Callable[[Attention], None] = ignore
    reading: Callable[[Reading], None] = ignore
    routing: Callable[[Routing], None] = ignore
    product: Callable[[str, Tensor, Tensor], None] = ignore_product  # weight, input, output
    between: Callable[[], None] = lambda: None


def fused_attention(call: Call) -> FusedAttention:
    """Read a fused attention's arguments."""
    names = [argument.name for argument in call.function._schema.arguments]
    given = dict(zip(names, call.args, strict=False)) | call.kwargs
    scale = given.get("scale")
    mask = given.get("attn_mask", given.get("attn_bias"))
    return FusedAttention(
        query=call.inputs[0],
        key=call.inputs[1],
        causal=bool(given.get("is_causal", False)),
        scale=float(scale) if scale is not None else call.inputs[0].shape[-1] ** -0.5,
        mask=mask if isinstance(mask, Tensor) else None,
        source=call.parents[0].projection,
    )
