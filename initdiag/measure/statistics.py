"""Moments of tensors, accumulated in float32 or wider whatever the tensor's own dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from initdiag.measure.values import total

BLOCK = 2**15 - 64  # entries per partial sum, which are added in Python's float64; below torch's grain of 2**15 there
# are no threads to wait for: one core is as fast as memory, and a busy machine doesn't make it a hundred times slower

SQUARES_FIT = 1e-30  # below this variance the squares of float32 begin to vanish

CANCELS = 1e-3  # a squared mean beyond this part of the variance takes a second pass; float32 keeps 1e-7 of the larger


def widened(x: Tensor) -> Tensor:
    """Return x in float32, or in its own dtype if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def moments(x: Tensor) -> tuple[float, float, int]:
    """Return mean, population variance and the number of entries that are not finite.

    One pass where the mean is small beside the spread. Else a second one, since the difference of two nearly equal
    sums would cancel: the variance of 1 + 1e-4·z is 1e-8, that of an untouched norm gain exactly 0. Where float32
    can't hold the squares, float64 does.
    """
    if not x.numel():
        return math.nan, math.nan, 0
    blocks = x.detach().reshape(-1).split(BLOCK)
    mean, variance = _moments(blocks, x.numel(), widened)
    if not SQUARES_FIT <= variance < math.inf and x.device.type != "mps":  # which has no float64
        mean, variance = _moments(blocks, x.numel(), Tensor.double)
    if math.isfinite(variance):
        return mean, variance, 0
    return mean, variance, sum(int((~block.isfinite()).sum()) for block in blocks)


def _moments(blocks: Sequence[Tensor], count: int, widen: Callable[[Tensor], Tensor]) -> tuple[float, float]:
    sums, squares = [], []
    for block in map(widen, blocks):
        sums.append(float(block.sum()))
        squares.append(_square_sum(block))
    mean = total(sums) / count
    variance = total(squares) / count - mean * mean
    if mean * mean > CANCELS * variance:
        variance = total([_square_sum(widen(block) - mean) for block in blocks]) / count
    return mean, variance


def _square_sum(block: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(block))  # dot would bring BLAS threads
    return norm * norm


def largest(x: Tensor) -> float:
    """Return the largest |entry|; nan where one is nan. (The norm with p = inf takes 18 times as long.)"""
    low, high = x.aminmax()
    return math.nan if math.isnan(float(low)) else max(-float(low), float(high))


def variance(x: Tensor) -> float:
    """Return the population variance over all entries."""
    return moments(x)[1]


def as_sequences(stream: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return a stream as (B, T, d) where it is (T, B, d) or (B·T, d); `shape` is (B, T). Others stay as they are."""
    batch, length = shape
    if stream.dim() == 3 and stream.shape[:2] == (length, batch) and batch != length:
        return stream.transpose(0, 1)
    if stream.dim() == 2 and stream.shape[0] == batch * length:
        return stream.view(batch, length, -1) if stream.is_contiguous() else stream.reshape(batch, length, -1)
    return stream
