"""Moments of tensors, accumulated in float32 or wider whatever the tensor's own dtype."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BLOCK = 2**20  # entries per partial sum; the partial sums are added in Python's float64


def widened(x: Tensor) -> Tensor:
    """Return x in float32, or in its own dtype if that is wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def moments(x: Tensor) -> tuple[float, float, int]:
    """Return mean, population variance and the number of entries that are not finite.

    Two passes, because one would cancel: the variance of 1 + 1e-4·z is 1e-8.
    """
    blocks = x.detach().reshape(-1).split(BLOCK)
    count = x.numel()
    mean = math.fsum(float(widened(block).sum()) for block in blocks) / count
    variance = math.fsum(float((widened(block) - mean).square_().sum()) for block in blocks) / count
    if math.isfinite(variance):
        return mean, variance, 0
    return mean, variance, sum(int((~block.isfinite()).sum()) for block in blocks)


def variance(x: Tensor) -> float:
    """Return the population variance over all entries."""
    return moments(x)[1]
