"""The reference Transformer, written to be read. It draws nothing, measures nothing and knows no hooks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initdiag.model.architecture import Architecture, of_branch
from initdiag.model.attention import Attention, LatentAttention
from initdiag.model.feedforward import MLP, Experts
from initdiag.model.layers import Embedding, Linear, gain, norm, softcapped, times
from initdiag.model.positions import Rotation, mask, rotation, sinusoids


class Block(nn.Module):
    """Attention and MLP, each added to the residual stream; `placement` says where the norms stand."""

    def __init__(self, shape: Architecture, layer: int) -> None:
        super().__init__()
        width = shape.d_model
        self.placement = shape.placement
        self.attention_norm = norm(shape, width, shape.normed_before)
        self.attention = LatentAttention(shape) if shape.mla else Attention(shape)
        self.attention_post_norm = norm(shape, width, shape.normed_after)
        self.attention_gain = gain(shape)
        self.mlp_norm = norm(shape, width, shape.normed_before and shape.placement != "parallel_shared")
        self.mlp = Experts(shape) if shape.has_experts(layer) else MLP(shape, shape.d_ff)
        self.mlp_post_norm = norm(shape, width, shape.normed_after)
        self.mlp_gain = gain(shape)
        branches = (2 * layer + 1, 2 * layer + 2)
        self.kept = [of_branch(shape.stream_multiplier, k) for k in branches]
        self.added = [of_branch(shape.residual_multiplier, k) for k in branches]

    def forward(self, x: Tensor, turn: Rotation, mask: Tensor | None) -> Tensor:
        stream = times(x, self.kept[0])
        if self.placement in ("parallel", "parallel_shared"):
            read = self.attention_norm(x)
            other = read if self.placement == "parallel_shared" else self.mlp_norm(x)
            return stream + (self._attended(read, turn, mask) + self._fed(other))
        if self.placement == "post":
            x = self.attention_norm(stream + self._attended(x, turn, mask))
            normed: Tensor = self.mlp_norm(times(x, self.kept[1]) + self._fed(x))
            return normed
        x = stream + self._attended(self.attention_norm(x), turn, mask)
        return times(x, self.kept[1]) + self._fed(self.mlp_norm(x))

    def _attended(self, x: Tensor, turn: Rotation, mask: Tensor | None) -> Tensor:
        return times(self.attention_gain(self.attention_post_norm(self.attention(x, turn, mask))), self.added[0])

    def _fed(self, x: Tensor) -> Tensor:
        return times(self.mlp_gain(self.mlp_post_norm(self.mlp(x))), self.added[1])


class Transformer(nn.Module):
    """Token ids (B, T) to logits (B, T, V)."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        self.shape = shape
        self.token_embedding = Embedding(shape.vocab_size, shape.d_model)
        if shape.position == "learned":
            self.position_embedding = Embedding(shape.context + shape.position_offset, shape.d_model)
        self.embedding_norm = norm(shape, shape.d_model, shape.embedding_norm)
        self.blocks = nn.ModuleList(Block(shape, layer) for layer in range(shape.n_layers))
        self.final_norm = norm(shape, shape.d_model, shape.final_norm)
        if not shape.tied:
            self.head = Linear(shape.d_model, shape.vocab_size, shape.biases.head)

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.states(ids))

    def states(self, ids: Tensor) -> Tensor:
        """Return what the head reads: (B, T, d_model)."""
        shape, length = self.shape, ids.shape[1]
        x = self.embedding_norm(self._embedded(ids))
        kinds = {
            window: (self._turn(length, x, window is not None), mask(length, shape, window, like=x))
            for window in {*shape.windows} or {None}
        }
        for layer, block in enumerate(self.blocks):
            x = block(x, *kinds[shape.window(layer)])
        final: Tensor = self.final_norm(x)
        return final

    def _embedded(self, ids: Tensor) -> Tensor:
        shape, length = self.shape, ids.shape[1]
        x = times(self.token_embedding(ids), shape.embedding_multiplier)
        if shape.position == "learned":
            first = shape.position_offset
            return x + self.position_embedding(torch.arange(first, first + length, device=ids.device))
        return x + sinusoids(length, shape.d_model, like=x) if shape.position == "sinusoidal" else x

    def _turn(self, length: int, like: Tensor, local: bool) -> Rotation:
        return rotation(length, self.shape, like, local) if self.shape.position == "rotary" else None

    def logits(self, states: Tensor, rows: slice = slice(None)) -> Tensor:
        """Return the logits of a range of the vocabulary: (…, d_model) -> (…, number of rows)."""
        bias = None if self.head_bias is None else self.head_bias[rows]
        logits = times(F.linear(states, self.head_weight[rows], bias), self.shape.logit_multiplier)
        return softcapped(logits, self.shape.logit_softcap)

    @property
    def head_weight(self) -> Tensor:
        return self.token_embedding.weight if self.shape.tied else self.head.weight

    @property
    def head_bias(self) -> Tensor | None:
        return None if self.shape.tied else self.head.bias
