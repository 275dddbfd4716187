"""Causal self-attention: with heads of their own or shared keys and values, and with latents (DeepSeek's MLA)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initdiag.model.architecture import Architecture
from initdiag.model.layers import Gain, Linear, norm, softcapped
from initdiag.model.positions import Rotation, rotate


class Attention(nn.Module):
    """Causal self-attention; several query heads may share one key and value head."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.head_dim, self.per_head = shape.head_dim, shape.qk_norm == "per_head"
        queries, keys = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
        self.query = Linear(shape.d_model, queries, shape.biases.qkv)
        self.key = Linear(shape.d_model, keys, shape.biases.qkv)
        self.value = Linear(shape.d_model, keys, shape.biases.qkv)
        normed = shape.qk_norm != "none"
        self.query_norm = norm(shape, shape.head_dim if self.per_head else queries, normed)
        self.key_norm = norm(shape, shape.head_dim if self.per_head else keys, normed)
        self.mix = Mix(shape)
        self.inner_norm = norm(shape, queries, shape.inner_norm)
        self.out = Linear(queries, shape.d_model, shape.biases.out)

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor | None) -> Tensor:
        q, k = self._normed(self.query(x), self.query_norm), self._normed(self.key(x), self.key_norm)
        mixed = self.mix(rotate(q, turn), rotate(k, turn), self._heads(self.value(x)), mask)
        out: Tensor = self.out(self.inner_norm(mixed))  # (B, T, d_model)
        return out

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)  # (B, H, T, head_dim)

    def _normed(self, x: Tensor, norm: nn.Module) -> Tensor:
        heads: Tensor = norm(self._heads(x)) if self.per_head else self._heads(norm(x))
        return heads


class LatentAttention(nn.Module):
    """Multi-head latent attention: keys and values are made of one narrow latent (arXiv 2405.04434, section 2.1)."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        assert shape.mla is not None
        latent, heads, bias = shape.mla, shape.n_heads, shape.biases.qkv
        self.latent, self.heads = latent, heads
        self.query_down: nn.Module = nn.Identity()
        self.query_norm: nn.Module = nn.Identity()
        read = shape.d_model
        if latent.query_rank:
            self.query_down, self.query_norm = Linear(read, latent.query_rank, bias), norm(shape, latent.query_rank)
            read, bias = latent.query_rank, False
        self.query = Linear(read, heads * shape.head_dim, bias)
        bias = shape.biases.qkv
        self.latent_down = Linear(shape.d_model, latent.kv_rank, bias)
        self.latent_norm = norm(shape, latent.kv_rank)
        self.rotary_key = Linear(shape.d_model, latent.rope_dim, bias)
        self.key = Linear(latent.kv_rank, heads * latent.nope_dim, bias=False)
        self.value = Linear(latent.kv_rank, heads * latent.value_dim, bias=False)
        self.mix = Mix(shape)
        self.inner_norm = norm(shape, heads * latent.value_dim, shape.inner_norm)
        self.out = Linear(heads * latent.value_dim, shape.d_model, shape.biases.out)

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor | None) -> Tensor:
        narrow = self.latent_norm(self.latent_down(x))  # (B, T, kv_rank)
        q, k, v = (self._heads(part) for part in (self._query(x), self.key(narrow), self.value(narrow)))
        still, turning = q.split((self.latent.nope_dim, self.latent.rope_dim), dim=-1)
        shared = rotate(self.rotary_key(x)[:, None], turn).expand(-1, self.heads, -1, -1)
        q = torch.cat((still, rotate(turning, turn)), dim=-1)
        mixed = self.mix(q, torch.cat((k, shared), dim=-1), v, mask)
        out: Tensor = self.out(self.inner_norm(mixed))  # (B, T, d_model)
        return out

    def _query(self, x: Tensor) -> Tensor:
        query: Tensor = self.query(self.query_norm(self.query_down(x)))
        return query

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Mix(nn.Module):
    """softmax(q kᵀ · scale) v, causal, with what some models do to the logits on the way."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.scale, self.cap = shape.attention_scale, shape.attention_softcap
        self.groups = shape.n_heads // shape.n_kv_heads
        self.sinks = Gain(shape.n_heads) if shape.attention_sinks else None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Mix v (B, H / groups, T, value_dim) by q (B, H, T, h) and k (B, H / groups, T, h): (B, T, H · value_dim)."""
        if self.cap is None and self.sinks is None:
            mixed = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale, enable_gqa=self.groups > 1
            )
        else:
            mixed = self._by_hand(q, k, v, mask)
        return mixed.transpose(1, 2).flatten(2)

    def _by_hand(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        if self.groups > 1:
            k, v = k.repeat_interleave(self.groups, dim=1), v.repeat_interleave(self.groups, dim=1)
        logits = softcapped(q @ k.transpose(-1, -2) * self.scale, self.cap)  # (B, H, T, T)
        logits = logits + (_later(logits) if mask is None else mask)
        if self.sinks is None:
            return torch.softmax(logits, dim=-1) @ v
        sinks = self.sinks.weight[:, None, None].expand(len(q), -1, q.shape[2], 1)
        weights = torch.softmax(torch.cat((logits, sinks), dim=-1), dim=-1)
        return weights[..., :-1] @ v


def _later(logits: Tensor) -> Tensor:
    length = logits.shape[-1]
    return torch.full((length, length), -math.inf, dtype=logits.dtype, device=logits.device).triu(1)
