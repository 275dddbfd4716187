"""The reference Transformer, written to be read. It draws nothing, measures nothing and knows no hooks."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initdiag.model.architecture import Architecture
from initdiag.model.layers import Embedding, LayerNorm, Linear, RMSNorm
from initdiag.model.positions import rotate, rotation, sinusoids

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}

Rotation = tuple[Tensor, Tensor] | None


def _norm(shape: Architecture) -> nn.Module:
    if shape.norm == "rmsnorm":
        return RMSNorm(shape.d_model, shape.eps)
    return LayerNorm(shape.d_model, shape.eps, shape.biases)


class Attention(nn.Module):
    """Causal self-attention; several query heads may share one key and value head."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.head_dim = shape.head_dim
        self.grouped = shape.n_kv_heads < shape.n_heads
        queries, keys = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        self.query = Linear(shape.d_model, queries, shape.biases)
        self.key = Linear(shape.d_model, keys, shape.biases)
        self.value = Linear(shape.d_model, keys, shape.biases)
        self.out = Linear(queries, shape.d_model, shape.biases)

    def forward(self, x: Tensor, turn: Rotation) -> Tensor:
        q, k, v = (self._heads(project(x)) for project in (self.query, self.key, self.value))  # (B, H, T, head_dim)
        if turn is not None:
            q, k = rotate(q, *turn), rotate(k, *turn)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.out(mixed.transpose(1, 2).flatten(2))  # (B, T, d_model)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class MLP(nn.Module):
    """out(act(in(x))), or out(act(gate(x)) * in(x)) when gated."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.act = ACTIVATIONS[shape.activation]
        self.gate = Linear(shape.d_model, shape.d_ff, shape.biases) if shape.gated else None
        self.input = Linear(shape.d_model, shape.d_ff, shape.biases)
        self.out = Linear(shape.d_ff, shape.d_model, shape.biases)

    def forward(self, x: Tensor) -> Tensor:
        if self.gate is None:
            return self.out(self.act(self.input(x)))
        return self.out(self.act(self.gate(x)) * self.input(x))


class Block(nn.Module):
    """Attention, then MLP, each added to the residual stream."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.post_norm = shape.placement == "post"
        self.attention_norm = _norm(shape)
        self.attention = Attention(shape)
        self.mlp_norm = _norm(shape)
        self.mlp = MLP(shape)

    def forward(self, x: Tensor, turn: Rotation) -> Tensor:
        if self.post_norm:
            x = self.attention_norm(x + self.attention(x, turn))
            return self.mlp_norm(x + self.mlp(x))
        x = x + self.attention(self.attention_norm(x), turn)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Token ids (B, T) to logits (B, T, V)."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.shape = shape
        self.token_embedding = Embedding(shape.vocab_size, shape.d_model)
        if shape.position == "learned":
            self.position_embedding = Embedding(shape.context, shape.d_model)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.final_norm = _norm(shape) if shape.final_norm else nn.Identity()
        if not shape.tied:
            self.head = Linear(shape.d_model, shape.vocab_size, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.states(ids))

    def states(self, ids: Tensor) -> Tensor:
        """Return what the head reads: (B, T, d_model)."""
        length = ids.shape[1]
        x = self.token_embedding(ids)
        if self.shape.embedding_multiplier != 1:
            x = x * self.shape.embedding_multiplier
        if self.shape.position == "learned":
            x = x + self.position_embedding(torch.arange(length, device=ids.device))
        elif self.shape.position == "sinusoidal":
            x = x + sinusoids(length, self.shape.d_model, like=x)
        turn = self._rotation(length, like=x) if self.shape.position == "rotary" else None
        for block in self.blocks:
            x = block(x, turn)
        final: Tensor = self.final_norm(x)
        return final

    def _rotation(self, length: int, like: Tensor) -> Rotation:
        return rotation(length, self.shape.head_dim, like, self.shape.rotary_base, self.shape.rotary_scaling)

    def logits(self, states: Tensor, rows: slice = slice(None)) -> Tensor:
        """Return the logits of a range of the vocabulary: (…, d_model) -> (…, number of rows)."""
        return F.linear(states, self.head_weight[rows])

    @property
    def head_weight(self) -> Tensor:
        return self.token_embedding.weight if self.shape.tied else self.head.weight
