"""Positions that need no parameters. Computed in every forward, so that no buffer has to be kept true."""

from __future__ import annotations

import torch
from torch import Tensor

ROTARY_BASE = 10_000.0  # RoFormer (arXiv 2104.09864), section 3.2.2; also the base of the original sinusoids


def _angles(length: int, pairs: int, device: torch.device) -> Tensor:
    """Return the angle of every position and feature pair: (T, pairs), in float32."""
    frequencies = ROTARY_BASE ** (-torch.arange(pairs, device=device, dtype=torch.float32) / pairs)
    return torch.outer(torch.arange(length, device=device, dtype=torch.float32), frequencies)


def sinusoids(length: int, width: int, like: Tensor) -> Tensor:
    """Return the position encodings of the original Transformer (arXiv 1706.03762, section 3.5): (T, width)."""
    angles = _angles(length, width // 2, like.device)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(like.dtype)  # sin, cos, sin, cos, …


def rotation(length: int, head_dim: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the rotary angles, each (T, head_dim), the two halves alike."""
    angles = _angles(length, head_dim // 2, like.device).repeat(1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn feature i with feature i + head_dim/2 by the angle of the position; x is (B, H, T, head_dim)."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
