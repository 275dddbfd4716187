"""Positions that need no parameters. Computed in every forward, so that no buffer has to be kept true."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from initdiag.model.architecture import RotaryScaling

SINUSOID_BASE = 10_000.0  # arXiv 1706.03762, section 3.5; RoFormer (arXiv 2104.09864, section 3.2.2) has it from there


def frequencies(pairs: int, base: float, device: torch.device) -> Tensor:
    """Return by how much the angle of each feature pair grows a token: (pairs,), in radians, float32."""
    powers: Tensor = base ** (-torch.arange(pairs, device=device, dtype=torch.float32) / pairs)
    return powers


def scaled(unscaled: Tensor, scaling: RotaryScaling) -> Tensor:
    """Return the frequencies of Llama 3.1 for those of Llama 3; both (pairs,), in radians a token.

    A pair that turns at most `low` times within the original context turns `factor` times slower, one that turns at
    least `high` times stays as it is, and between them the share of the old frequency grows linearly with the number
    of turns: meta-llama/llama-models, models/llama3/model.py, apply_scaling (there by wavelengths, context / turns).
    """
    turns = scaling.context * unscaled / (2 * math.pi)
    kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return unscaled * (kept + (1 - kept) / scaling.factor)


def _angles(length: int, frequency: Tensor) -> Tensor:
    """Return the angle of every position and feature pair: (T, pairs), in float32."""
    return torch.outer(torch.arange(length, device=frequency.device, dtype=torch.float32), frequency)


def sinusoids(length: int, width: int, like: Tensor) -> Tensor:
    """Return the position encodings of the original Transformer (arXiv 1706.03762, section 3.5): (T, width)."""
    angles = _angles(length, frequencies(width // 2, SINUSOID_BASE, like.device))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(like.dtype)  # sin, cos, sin, cos, …


def rotation(
    length: int, head_dim: int, like: Tensor, base: float, scaling: RotaryScaling | None = None
) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the rotary angles, each (T, head_dim), the two halves alike."""
    unscaled = frequencies(head_dim // 2, base, like.device)
    angles = _angles(length, unscaled if scaling is None else scaled(unscaled, scaling)).repeat(1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn feature i with feature i + head_dim/2 by the angle of the position; x is (B, H, T, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
