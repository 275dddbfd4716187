"""Moments of tensors, accumulated in float32 or wider whatever the tensor's own dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 2**15 - 64  # entries per partial sum, which are added in Python's float64; below torch's grain of 2**15 there
# are no threads to wait for: one core is as fast as memory, and a busy machine doesn't make it a hundred times slower

CANCELS = 1e-3  # a squared mean beyond this part of the variance takes a second pass; float32 keeps 1e-7 of the larger


def widened(x: Tensor) -> Tensor:
    """Return x in float32, or in its own dtype if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def moments(x: Tensor) -> tuple[float, float, int]:
    """Return mean, population variance and the number of entries that are not finite.

    One pass where the mean is small beside the spread. Else a second one, since the difference of two nearly equal
    sums would cancel: the variance of 1 + 1e-4·z is 1e-8, that of an untouched norm gain exactly 0.
    """
    count = x.numel()
    if not count:
        return math.nan, math.nan, 0
    blocks = x.detach().reshape(-1).split(BLOCK)
    sums, squares = [], []
    for block in map(widened, blocks):
        sums.append(float(block.sum()))
        squares.append(float(torch.linalg.vector_norm(block)) ** 2)  # dot would bring BLAS threads
    mean = math.fsum(sums) / count
    variance = math.fsum(squares) / count - mean**2
    if mean**2 > CANCELS * variance:
        variance = math.fsum(float(torch.linalg.vector_norm(widened(block) - mean)) ** 2 for block in blocks) / count
    if math.isfinite(variance):
        return mean, variance, 0
    return mean, variance, sum(int((~block.isfinite()).sum()) for block in blocks)


def variance(x: Tensor) -> float:
    """Return the population variance over all entries."""
    return moments(x)[1]
