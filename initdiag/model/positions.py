"""Positions that need no parameters. Computed in every forward, so that no buffer has to be kept true."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from initdiag.model.architecture import Architecture
from initdiag.model.sections import RotaryScaling

SINUSOID_BASE = 10_000.0  # arXiv 1706.03762, section 3.5; RoFormer (arXiv 2104.09864, section 3.2.2) has it from there

Rotation = tuple[Tensor, Tensor] | None


def frequencies(pairs: int, base: float, like: Tensor) -> Tensor:
    """Return by how much the angle of each feature pair grows a token: (pairs,), in radians, float32 or wider."""
    wide = torch.promote_types(like.dtype, torch.float32)
    powers: Tensor = base ** (torch.arange(pairs, device=like.device, dtype=wide) / pairs)
    return 1 / powers  # rounded as in most code that has them


def scaled(unscaled: Tensor, scaling: RotaryScaling, base: float) -> Tensor:
    """Return slower frequencies for a longer context; both (pairs,), in radians a token.

    linear: all are divided by `factor`. llama3: a pair that turns at most `low` times within the original context is,
    one that turns at least `high` times stays as it is, and between them the share of the old frequency grows linearly
    with the number of turns: meta-llama/llama-models, models/llama3/model.py, apply_scaling (there by wavelengths,
    context / turns). yarn: the same borders, but the share grows linearly with the index of the pair: arXiv 2309.00071,
    section 3.2, in the form of jquesnelle/yarn, find_correction_range, where `rounded` borders are at whole pairs.
    """
    if scaling.kind == "linear":
        return unscaled / scaling.factor
    assert scaling.context is not None
    if scaling.kind == "llama3":
        turns = scaling.context * unscaled / (2 * math.pi)
        kept = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    else:
        kept = 1 - _ramp(len(unscaled), scaling, scaling.context, base).to(unscaled)
    return unscaled * (kept + (1 - kept) / scaling.factor)


def _ramp(pairs: int, scaling: RotaryScaling, context: int, base: float) -> Tensor:
    """Return 0 for pairs that turn often, 1 for those that turn seldom: (pairs,)."""

    def pair(turns: float) -> float:  # the index of the pair that turns so often within the context
        return pairs * math.log(context / (turns * 2 * math.pi)) / math.log(base)

    first, last = pair(scaling.high), pair(scaling.low)
    if scaling.rounded:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    return ((torch.arange(pairs, dtype=torch.float64) - first) / max(last - first, 0.001)).clamp(0, 1)


def _angles(length: int, frequency: Tensor) -> Tensor:
    """Return the angle of every position and feature pair: (T, pairs)."""
    return torch.outer(torch.arange(length, device=frequency.device, dtype=frequency.dtype), frequency)


def sinusoids(length: int, width: int, like: Tensor) -> Tensor:
    """Return the position encodings of the original Transformer (arXiv 1706.03762, section 3.5): (T, width)."""
    angles = _angles(length, frequencies(width // 2, SINUSOID_BASE, like))
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1).to(like.dtype)  # sin, cos, sin, cos, …


def rotation(length: int, shape: Architecture, like: Tensor, local: bool = False) -> tuple[Tensor, Tensor]:
    """Return cos and sin of the rotary angles, each (T, rotary_dims), the two halves alike.

    Args:
        local: for a layer with a window, where `local_rotary_base` is another.
    """
    own = shape.local_rotary_base if local else None
    base = own or shape.rotary_base
    frequency = frequencies(shape.rotary_dims // 2, base, like)
    if shape.rotary_scaling is not None and own is None:
        frequency = scaled(frequency, shape.rotary_scaling, base)
    angles = _angles(length, frequency).repeat(1, 2)
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


def alibi_slopes(heads: int, like: Tensor) -> Tensor:
    """Return by how much each head's attention logits fall a token: (H,).

    2^(−8k/n), k = 1 … n, for n a power of two; for others those of the power below and, for what is missing, every
    other one of the power above: ofirpress/attention_with_linear_biases, get_slopes (arXiv 2108.12409, section 3).
    """
    below = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * k / below) for k in range(1, below + 1)]
    slopes += [2 ** (-8 * k / (2 * below)) for k in range(1, 2 * (heads - below) + 1, 2)]
    return torch.tensor(slopes, dtype=like.dtype, device=like.device)


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
    return hidden - alibi_slopes(shape.n_heads, like)[:, None, None] * ago.clamp(min=0).to(like.dtype)
