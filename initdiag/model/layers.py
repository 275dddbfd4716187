"""Linear maps, embeddings, norms and gains that hold memory and never draw: initialization is the engine's work."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initdiag.model.architecture import Architecture


class Linear(nn.Module):
    """y = x Wᵀ + b, with W of shape (outputs, inputs)."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


class Embedding(nn.Module):
    """Row look-up in a table of shape (rows, width)."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


class Norm(nn.Module):
    """LayerNorm or RMSNorm, times a learned vector, 1 + a learned vector, or nothing."""

    def __init__(self, shape: Architecture, width: int) -> None:
        super().__init__()
        self.width, self.eps, self.centred = (width,), shape.eps, shape.norm == "layernorm"
        self.one = shape.norm_scale == "one_plus"
        self.weight = None if shape.norm_scale == "none" else nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if shape.norm_biases else None

    def forward(self, x: Tensor) -> Tensor:
        weight = 1 + self.weight if self.one and self.weight is not None else self.weight
        if self.centred:
            return F.layer_norm(x, self.width, weight, self.bias, self.eps)
        return F.rms_norm(x, self.width, weight, self.eps)


class Gain(nn.Module):
    """A learned multiplier: one number, or one for each feature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def norm(shape: Architecture, width: int, wanted: bool = True) -> nn.Module:
    """Return a norm, or what stands in its place."""
    return Norm(shape, width) if wanted else nn.Identity()


def gain(shape: Architecture) -> nn.Module:
    """Return the learned multiplier at the end of a branch, or what stands in its place."""
    if shape.branch_gain == "none":
        return nn.Identity()
    return Gain(1 if shape.branch_gain == "scalar" else shape.d_model)


def times(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1 else x * factor


def softcapped(x: Tensor, cap: float | None) -> Tensor:
    """Keep values within ±cap, smoothly: cap·tanh(x/cap)."""
    return x if cap is None else cap * torch.tanh(x / cap)
