"""Positions that need no parameters. Computed in every forward, so that no buffer has to be kept true."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from initdiag.model.architecture import Architecture
from initdiag.model.frequencies import SINUSOID_BASE, alibi_slopes, frequencies, rotary_frequencies

Rotation = tuple[Tensor, Tensor] | None


def _angles(length: int, frequencies: Sequence[float], like: Tensor) -> Tensor:
    """Return the angle of every position and feature pair: (T, pairs), float32 or wider."""
    wide = torch.promote_types(like.dtype, torch.float32)
    at = torch.arange(length, device=like.device, dtype=wide)
    return torch.outer(at, torch.tensor(frequencies, device=like.device, dtype=wide))


def sinusoids(length: int, width: int, like: Tensor) -> Tensor:
    """Return the position encodings of the original Transformer (arXiv 1706.03762, section 3.5): (T, width)."""
    angles = _angles(length, frequencies(width // 2, SINUSOID_BASE), like)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(like.dtype)  # sin, cos, sin, cos, …


def rotation(length: int, shape: Architecture, like: Tensor, local: bool = False) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the rotary angles, each (T, rotary_dims), the two halves alike.

    Args:
        local: for a layer with a window, where `local_rotary_base` is another.
    """
    angles = _angles(length, rotary_frequencies(shape, local), like).repeat(1, 2)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)


def rotate(x: Tensor, turn: Rotation) -> Tensor:
    """Turn feature i with feature i + dims/2 by the angle of the position; x is (B, H, T, head_dim), dims the first."""
    if turn is None:
        return x
    cos, sin = turn
    dims = cos.shape[-1]
    turning, rest = (x, None) if dims == x.shape[-1] else (x[..., :dims], x[..., dims:])
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos + torch.cat((-second, first), dim=-1) * sin
    return turned if rest is None else torch.cat((turned, rest), dim=-1)


def mask(length: int, shape: Architecture, window: int | None, like: Tensor) -> Tensor | None:
    """Return what is added to attention logits, (T, T) or with ALiBi (H, T, T); None where that is but causal."""
    reach = min(window or length, length)
    if reach == length and shape.position != "alibi":
        return None
    at = torch.arange(length, device=like.device)
    ago = at[:, None] - at[None, :]  # (T, T): how many tokens before the query the key is
    seen = (ago >= 0) & (ago < reach)
    hidden = torch.zeros(length, length, dtype=like.dtype, device=like.device).masked_fill(~seen, -math.inf)
    if shape.position != "alibi":
        return hidden
    slopes = torch.tensor(alibi_slopes(shape.n_heads), dtype=like.dtype, device=like.device)
    return hidden - slopes[:, None, None] * ago.clamp(min=0).to(like.dtype)
