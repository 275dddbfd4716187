"""What the plain implementation does to each token by itself: norms, linear maps, MLPs, experts."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from initdiag.model import Architecture

Named = Mapping[str, Tensor]


def norm(shape: Architecture, w: Named, name: str, x: Tensor) -> Tensor:
    width = x.shape[1]
    if shape.norm == "layernorm":
        x = x - x.sum(1, keepdim=True) / width
    x = x / ((x * x).sum(1, keepdim=True) / width + shape.eps) ** 0.5
    if shape.norm_scale == "none":
        return x
    x = x * w[f"{name}.weight"] + (x if shape.norm_scale == "one_plus" else 0)
    return x + w[f"{name}.bias"] if shape.norm == "layernorm" and shape.biases.norm else x


def linear(w: Named, name: str, x: Tensor, bias: bool) -> Tensor:
    y = torch.einsum("ti,oi->to", x, w[f"{name}.weight"])
    return y + w[f"{name}.bias"] if bias else y


def capped(x: Tensor, cap: float) -> Tensor:
    return cap * (1 - 2 / ((2 * x / cap).exp() + 1))  # tanh(u) = 1 − 2 / (e^2u + 1)


def mlp(shape: Architecture, w: Named, name: str, x: Tensor) -> Tensor:
    bias = shape.biases.mlp
    hidden = inside(
        shape, linear(w, f"{name}.gate", x, bias) if shape.gated else None, linear(w, f"{name}.input", x, bias)
    )
    if shape.inner_norm:
        hidden = norm(shape, w, f"{name}.inner_norm", hidden)
    return linear(w, f"{name}.out", hidden, bias)


def inside(shape: Architecture, gate: Tensor | None, value: Tensor) -> Tensor:
    if gate is None:
        return phi(shape, value)
    if shape.gate_limit is None:
        return phi(shape, gate) * value
    top = torch.tensor(shape.gate_limit, dtype=torch.float64)
    return phi(shape, torch.minimum(gate, top)) * (torch.maximum(torch.minimum(value, top), -top) + 1)


def phi(shape: Architecture, u: Tensor) -> Tensor:
    match shape.activation:
        case "gelu":
            return u * (1 + (u / math.sqrt(2)).erf()) / 2
        case "gelu_tanh":
            return u * (1 + (math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)).tanh()) / 2
        case "quick_gelu":
            return u / (1 + (-1.702 * u).exp())
        case "relu":
            return u * (u > 0)
        case "relu2":
            return u * u * (u > 0)
        case "silu":
            return u / (1 + (-u).exp())


def experts(shape: Architecture, w: Named, name: str, x: Tensor) -> Tensor:
    """Each token by itself: choose, weigh, add; then the shared experts."""
    assert shape.moe is not None
    out = []
    for token in x:
        routed = w[f"{name}.router.weight"] @ token
        if shape.biases.router:
            routed = routed + w[f"{name}.router.bias"]
        favour = w[f"{name}.choice.bias"] if shape.moe.choice_bias else torch.zeros(shape.moe.experts)
        y = torch.zeros_like(token)
        for expert, weight in routing(shape, routed.tolist(), favour.tolist()).items():
            y = y + weight * one_expert(shape, w, name, expert, token)
        out.append(y)
    every = torch.stack(out)
    return every + mlp(shape, w, f"{name}.shared", x) if shape.moe.shared else every


def routing(shape: Architecture, routed: list[float], favour: list[float]) -> dict[int, float]:
    """The chosen experts of a token and their weights: arXiv 2412.19437, 2.1.2; a bias counts for the choice alone."""
    moe = shape.moe
    assert moe is not None
    if moe.score == "sigmoid":
        score = [1 / (1 + math.exp(-logit)) for logit in routed]
    else:
        total = math.fsum(math.exp(logit) for logit in routed)
        score = [math.exp(logit) / total for logit in routed]
    wanted = [score[e] + favour[e] for e in range(moe.experts)]
    size = moe.experts // moe.groups
    groups = [range(g * size, (g + 1) * size) for g in range(moe.groups)]
    if moe.top_groups < moe.groups:
        groups.sort(key=lambda group: sum(sorted(wanted[e] for e in group)[-2:]), reverse=True)
        groups = groups[: moe.top_groups]
    candidates = sorted((e for group in groups for e in group), key=lambda e: wanted[e], reverse=True)
    chosen = candidates[: moe.top_k]
    divisor = sum(score[e] for e in chosen) if moe.normalized else 1.0
    return {e: score[e] / divisor * moe.route_scale for e in chosen}


def one_expert(shape: Architecture, w: Named, name: str, expert: int, token: Tensor) -> Tensor:
    def layer(part: str, y: Tensor) -> Tensor:
        z = w[f"{name}.{part}.weight"][expert] @ y
        return z + w[f"{name}.{part}.bias"][expert] if shape.biases.mlp else z

    return layer("out", inside(shape, layer("gate", token) if shape.gated else None, layer("input", token)))
