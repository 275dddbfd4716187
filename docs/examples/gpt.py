"""A small GPT as people write it, and one with a fault that its loss doesn't show."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.proj = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, d_model = x.shape
        heads = self.qkv(x).view(batch, length, 3 * self.n_heads, -1).transpose(1, 2)
        q, k, v = heads.chunk(3, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, d_model))


class MLP(nn.Module):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.fc = nn.Linear(d_model, 4 * d_model)
        self.proj = nn.Linear(4 * d_model, d_model)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(F.gelu(self.fc(x)))


class Block(nn.Module):
    def __init__(self, d_model: int, n_heads: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(d_model), Attention(d_model, n_heads)
        self.norm2, self.mlp = nn.LayerNorm(d_model), MLP(d_model)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Token ids (B, T) to logits (B, T, vocab_size), and the loss where targets (B, T) are given."""

    def __init__(
        self, vocab_size: int = 512, context: int = 64, n_layers: int = 4, d_model: int = 64, n_heads: int = 4
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, d_model)
        self.positions = nn.Embedding(context, d_model)
        self.blocks = nn.ModuleList(Block(d_model, n_heads) for _ in range(n_layers))
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, vocab_size, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self.init)

    def init(self, module: nn.Module) -> None:
        """Draw with std 0.02, and what is added to the residual stream with 0.02/√(2·n_layers), as GPT-2."""
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
        if isinstance(module, Attention | MLP):
            nn.init.normal_(module.proj.weight, std=0.02 / math.sqrt(2 * len(self.blocks)))

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def copied() -> GPT:
    """The same, but every block is a copy of the first one, as nn.TransformerEncoder makes them."""
    model = GPT()
    for i in range(1, len(model.blocks)):
        model.blocks[i] = copy.deepcopy(model.blocks[0])
    return model


class Unscaled(Attention):
    """Without the division by √head_dim, as where the scale of a fused kernel was set for another model."""

    def forward(self, x: Tensor) -> Tensor:
        batch, length, d_model = x.shape
        heads = self.qkv(x).view(batch, length, 3 * self.n_heads, -1).transpose(1, 2)
        q, k, v = heads.chunk(3, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, d_model))


def unscaled() -> GPT:
    """The same, but one block forgets the division by √head_dim."""
    model = GPT()
    model.blocks[2].attn.__class__ = Unscaled
    return model
