"""A hand-written GPT in plain torch, and the ways in which its branches may be joined with the residual stream.

It runs on random tokens in well below half a second at the default `Shape`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.gpt_parts import STD, Attention, Mixture, Mlp, RMSNorm, Shape

Join = Callable[["Block", Tensor, nn.Module, Callable[[Tensor], Tensor]], Tensor]
Step = Callable[["GPT"], None]


class Block(nn.Module):
    def __init__(self, shape: Shape, index: int, join: Join) -> None:
        super().__init__()
        self.index, self.join = index, join
        self.attention = Attention(shape, index)
        self.mlp = Mixture(shape) if shape.experts else Mlp(shape, 4 * shape.d_model)
        self.attention_norm, self.mlp_norm, self.attention_out_norm, self.mlp_out_norm = (
            RMSNorm(shape.d_model, shape.norm_offset) if join is sandwich or i < 2 else None for i in range(4)
        )
        if shape.extra:  # as many write it: memory first, numbers in the init function
            self.scale = nn.Parameter(torch.empty(shape.d_model if shape.extra == "vector" else 1))
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        x = self.join(self, x, self.attention_norm, lambda y: self.dropout(self.attention(y)))
        return self.join(self, x, self.mlp_norm, lambda y: self.dropout(self.mlp(y, ids)))


class GPT(nn.Module):
    """ids (B, T) -> logits (B, T, V); `init_weights()` is its init function, `steps` are what that does in turn."""

    def __init__(self, shape: Shape, join: Join, steps: tuple[Step, ...]) -> None:
        super().__init__()
        rows = shape.vocab_size + shape.padded_rows
        self.shape, self.steps = shape, steps
        self.config = SimpleNamespace(vocab_size=rows, max_position_embeddings=shape.context)
        if shape.tied:  # the others say nothing, as hand-written models do
            self.config.tie_word_embeddings = True
        if shape.embedding_multiplier != 1:
            self.config.embedding_multiplier = shape.embedding_multiplier
        if shape.declares_std:
            self.config.initializer_range = STD
        self.tokens = nn.Embedding(rows, shape.d_model)
        self.positions = nn.Embedding(shape.context, shape.d_model) if shape.positions == "learned" else None
        blocks = [Block(shape, i, join) for i in range(1 if shape.shared else shape.n_layers)]
        self.blocks = nn.ModuleList(blocks * shape.n_layers if shape.shared else blocks)
        self.norm = RMSNorm(shape.d_model, shape.norm_offset) if shape.final_norm else nn.Identity()
        self.head = nn.Linear(shape.d_model, rows, bias=shape.head_bias)
        self.tie_weights()
        self.init_weights()

    def tie_weights(self) -> None:
        if self.shape.tied:
            self.head.weight = self.tokens.weight

    @torch.no_grad()
    def init_weights(self) -> None:
        for step in self.steps:
            step(self)

    def embed(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) * self.shape.embedding_multiplier
        return x if self.positions is None else x + self.positions(torch.arange(ids.shape[1], device=ids.device))

    def states(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, ids)
        return self.norm(x)

    def logits(self, states: Tensor) -> Tensor:
        logits = self.head(states) * self.shape.logit_multiplier
        if self.shape.softcap:
            logits = self.shape.softcap * torch.tanh(logits / self.shape.softcap)
        if self.shape.masked:
            logits = logits.index_fill(-1, torch.arange(self.shape.vocab_size, logits.shape[-1]), -math.inf)
        return logits

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.states(ids))


class WithLabels(GPT):
    """As in Hugging Face: `labels` are the ids themselves, and the model moves them by one."""

    loss: Callable[[Tensor, Tensor], Tensor]

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(ids)
        return (logits, None if labels is None else self.loss(logits, labels))


class WithTargets(GPT):
    """As in nanoGPT: `targets` have been moved by one already."""

    loss: Callable[[Tensor, Tensor], Tensor]

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits = super().forward(ids)
        return (logits, None if targets is None else self.loss(logits, targets))


# --- ways to join a branch with the stream


def pre_norm(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return x + f(norm(x))


def normed_stream(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    x = norm(x)  # K12: the stream itself is overwritten
    return x + f(x)


def lost_skip(block: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    skipped = block.index == 3 and norm is block.mlp_norm
    return f(norm(x)) if skipped else x + f(norm(x))


def detached_skip(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return x.detach() + f(norm(x))


def post_norm(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return norm(x + f(x))


def deep_norm(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return norm((2 * 6) ** 0.25 * x + f(x))  # arXiv 2203.00555, decoder-only


def sandwich(block: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    after = block.attention_out_norm if norm is block.attention_norm else block.mlp_out_norm
    return x + after(f(norm(x)))


def reordered_norm(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return x + norm(f(x))


def scaled_branch(block: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return x + block.scale * f(norm(x))


class Amplify(torch.autograd.Function):
    """The identity, whose backward multiplies: as an all-reduce does that runs once too often."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.factor, None


def amplified_everywhere(block: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return pre_norm(block, Amplify.apply(x, 4.0) if norm is block.attention_norm else x, norm, f)


def amplified_once(block: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return pre_norm(block, Amplify.apply(x, 10.0) if block.index == 4 and norm is block.mlp_norm else x, norm, f)
