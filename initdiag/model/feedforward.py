"""What a block does to each token by itself: an MLP, or a mixture of experts."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initdiag.model.architecture import Architecture
from initdiag.model.layers import Linear, norm

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "silu": F.silu,
}


def hidden(shape: Architecture, gate: Tensor | None, value: Tensor) -> Tensor:
    """Return act(value), or act(gate) · value; with a limit act(min(gate, limit)) · (clamp(value, ±limit) + 1)."""
    act, limit = ACTIVATIONS[shape.activation], shape.gate_limit
    if gate is None:
        return act(value)
    if limit is None:
        return act(gate) * value
    return act(gate.clamp(max=limit)) * (value.clamp(-limit, limit) + 1)


class MLP(nn.Module):
    """out(act(in(x))), or out(act(gate(x)) * in(x)) when gated."""

    def __init__(self, shape: Architecture, width: int) -> None:
        super().__init__()
        self.shape = shape
        self.gate = Linear(shape.d_model, width, shape.biases.mlp) if shape.gated else None
        self.input = Linear(shape.d_model, width, shape.biases.mlp)
        self.inner_norm = norm(shape, width, shape.inner_norm)
        self.out = Linear(width, shape.d_model, shape.biases.mlp)

    def forward(self, x: Tensor) -> Tensor:
        inside = hidden(self.shape, None if self.gate is None else self.gate(x), self.input(x))
        out: Tensor = self.out(self.inner_norm(inside))
        return out


class PerExpert(nn.Module):
    """The matrices of all experts in one tensor, (experts, outputs, inputs)."""

    def __init__(self, experts: int, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(experts, outputs)) if bias else None

    def forward(self, x: Tensor, expert: int) -> Tensor:
        return F.linear(x, self.weight[expert], None if self.bias is None else self.bias[expert])


class ChoiceBias(nn.Module):
    """Added to the scores by which experts are chosen; moved by a rule, not by a gradient (arXiv 2408.15664)."""

    def __init__(self, experts: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(experts), requires_grad=False)

    def forward(self, scores: Tensor) -> Tensor:
        return scores + self.bias


class Experts(nn.Module):
    """A mixture of experts: each token gets top_k of them, weighted by the router's scores, and the shared ones."""

    def __init__(self, shape: Architecture) -> None:
        super().__init__()
        assert shape.moe is not None
        self.shape, self.moe = shape, shape.moe
        width, count, bias = self.moe.d_ff or shape.d_ff, self.moe.experts, shape.biases.mlp
        self.router = Linear(shape.d_model, count, shape.biases.router)
        self.choice = ChoiceBias(count) if self.moe.choice_bias else nn.Identity()
        self.gate = PerExpert(count, shape.d_model, width, bias) if shape.gated else None
        self.input = PerExpert(count, shape.d_model, width, bias)
        self.out = PerExpert(count, width, shape.d_model, bias)
        self.shared = MLP(shape, self.moe.shared * width) if self.moe.shared else None

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, 1)  # (B·T, d_model)
        scores, chosen = self._route(self.router(tokens))  # both (B·T, top_k)
        mixed = torch.zeros_like(tokens)
        for expert in chosen.unique().tolist():
            who, which = torch.where(chosen == expert)
            read = tokens[who]
            gate = None if self.gate is None else self.gate(read, expert)
            given = self.out(hidden(self.shape, gate, self.input(read, expert)), expert)
            mixed = mixed.index_add(0, who, given * scores[who, which, None])
        mixed = mixed.view_as(x)
        return mixed if self.shared is None else mixed + self.shared(x)

    def _route(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        moe = self.moe
        scores = torch.sigmoid(logits) if moe.score == "sigmoid" else torch.softmax(logits, dim=-1)
        chosen = _within_groups(self.choice(scores), moe.groups, moe.top_groups).topk(moe.top_k, dim=-1).indices
        scores = scores.gather(-1, chosen)
        if moe.normalized:
            scores = scores / scores.sum(dim=-1, keepdim=True)
        return scores * moe.route_scale, chosen


def _within_groups(scores: Tensor, groups: int, top: int) -> Tensor:
    """Put the scores of all but the best groups, by the sum of their two best, to −inf: arXiv 2412.19437, 2.1.2."""
    if top == groups:
        return scores
    grouped = scores.unflatten(-1, (groups, -1))
    best = grouped.topk(2, dim=-1).values.sum(dim=-1).topk(top, dim=-1).indices
    out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
    return grouped.masked_fill(out[..., None], -math.inf).flatten(-2)
