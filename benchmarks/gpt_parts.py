"""Parts of the small GPT of which fault and trap models are made: norm, rotary positions, attention, MLP, experts.

All are plain torch, and a `Shape` has the switches that the models differ in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STD = 0.02
VOCAB_SIZE = 1000


@dataclass(frozen=True)
class Shape:
    """Sizes and switches of the model; the defaults are the healthy pre-norm decoder that most twins start from."""

    vocab_size: int = VOCAB_SIZE
    context: int = 256
    d_model: int = 64
    n_heads: int = 4
    n_layers: int = 6
    tied: bool = False
    positions: str = "learned"  # or "rotary", "none"
    causal: bool = True
    diagonal: int = 0  # of the causal mask: 1 lets every token see the next one
    unmasked_layer: int | None = None
    attention_scale: float | None = None
    norm_offset: float = 0.0  # 1 for gains that are stored as w and used as 1 + w
    final_norm: bool = True
    gated: bool = False
    squared_relu: bool = False
    experts: int = 0
    routed_by_table: bool = False
    extra: str = ""  # learned factors of the branches: "vector" (LayerScale) or "scalar" (ReZero)
    shared: bool = False
    dropout: float = 0.0
    head_bias: bool = False
    padded_rows: int = 0
    masked: bool = False  # the padded rows get logits of −inf
    embedding_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    softcap: float = 0.0
    low_rank: int = 0  # LoRA on queries and values
    declares_std: bool = False


class RMSNorm(nn.Module):
    def __init__(self, size: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.0 - offset))
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return normed.to(x.dtype) * (self.offset + self.weight)


class Rotary(nn.Module):
    inv_freq: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.register_buffer("inv_freq", self.frequencies(), persistent=False)

    def frequencies(self) -> Tensor:
        return 10_000.0 ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[-2], device=x.device)[:, None] * self.inv_freq
        (first, second), cos, sin = x.chunk(2, -1), angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class LowRank(nn.Linear):
    """LoRA: a frozen matrix and a product of two thin ones, the second of which starts at zero."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.weight.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, inputs) / math.sqrt(inputs))
        self.lora_b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.lora_a.T @ self.lora_b.T


class Attention(nn.Module):
    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        d = shape.d_model
        linear = partial(LowRank, rank=shape.low_rank) if shape.low_rank else partial(nn.Linear, bias=False)
        self.query, self.value = linear(d, d), linear(d, d)
        self.key, self.out = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.shape = shape
        self.causal = shape.causal and index != shape.unmasked_layer
        self.rotary = Rotary(d // shape.n_heads) if shape.positions == "rotary" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        shape, (length, width) = self.shape, x.shape[-2:]
        query, key, value = (
            project(x).unflatten(-1, (shape.n_heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        query, key = self.rotary(query), self.rotary(key)
        ones = torch.ones(length, length, dtype=torch.bool, device=x.device)
        mask = ones.tril(shape.diagonal) if self.causal and shape.diagonal else None
        mixed = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=self.causal and mask is None, scale=shape.attention_scale
        )
        return self.out(mixed.transpose(1, 2).reshape(-1, length, width))


class Mlp(nn.Module):
    def __init__(self, shape: Shape, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(shape.d_model, hidden, bias=False)
        self.out = nn.Linear(hidden, shape.d_model, bias=False)
        self.gate = nn.Linear(shape.d_model, hidden, bias=False) if shape.gated else None
        self.act = (lambda u: F.relu(u).square()) if shape.squared_relu else F.gelu

    def forward(self, x: Tensor, _: Tensor | None = None) -> Tensor:
        hidden = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        return self.out(hidden)


class Mixture(nn.Module):
    """Experts of which each token takes two by a learned router, or one by a table of its id (hash routing)."""

    table: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Mlp(shape, shape.d_model) for _ in range(shape.experts))
        self.router = None if shape.routed_by_table else nn.Linear(shape.d_model, shape.experts, bias=False)
        if self.router is None:
            self.register_buffer("table", torch.arange(shape.vocab_size) % shape.experts)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        if self.router is None:
            chosen = self.table[ids].flatten()[:, None]
            weights = torch.ones_like(chosen, dtype=x.dtype)
        else:
            weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
            weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            tokens, rank = torch.where(chosen == number)
            mixed.index_add_(0, tokens, expert(flat[tokens]) * weights[tokens, rank, None])
        return mixed.view_as(x)
