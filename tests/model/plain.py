"""The Transformer again, written another way: float64, one head at a time, complex rotations, explicit softmax.

Independent of initdiag.model: it shares with it nothing but the names of the weights.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Mapping

import torch
from torch import Tensor

from initdiag.model import Architecture
from initdiag.model.architecture import RotaryScaling

Named = Mapping[str, Tensor]


def logits(shape: Architecture, w: Named, ids: Tensor) -> Tensor:
    """Return (B, T, V) for ids (B, T)."""
    return torch.stack([_sequence(shape, w, row) for row in ids])


def _sequence(shape: Architecture, w: Named, ids: Tensor) -> Tensor:
    length = len(ids)
    x = torch.stack([w["token_embedding.weight"][int(token)] for token in ids]) * shape.embedding_multiplier
    if shape.position == "learned":
        x = x + w["position_embedding.weight"][:length]
    if shape.position == "sinusoidal":
        x = x + paper_sinusoids(length, shape.d_model)
    for layer in range(shape.n_layers):
        block = f"blocks.{layer}"
        if shape.placement == "pre":
            x = x + attention(shape, w, f"{block}.attention", norm(shape, w, f"{block}.attention_norm", x))
            x = x + mlp(shape, w, f"{block}.mlp", norm(shape, w, f"{block}.mlp_norm", x))
        else:
            x = norm(shape, w, f"{block}.attention_norm", x + attention(shape, w, f"{block}.attention", x))
            x = norm(shape, w, f"{block}.mlp_norm", x + mlp(shape, w, f"{block}.mlp", x))
    if shape.final_norm:
        x = norm(shape, w, "final_norm", x)
    head = w["token_embedding.weight"] if shape.tied else w["head.weight"]
    return torch.einsum("td,vd->tv", x, head)


def paper_sinusoids(length: int, width: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(…): arXiv 1706.03762, section 3.5."""
    table = torch.zeros(length, width, dtype=torch.float64)
    for position in range(length):
        for i in range(width // 2):
            angle = position / 10_000 ** (2 * i / width)
            table[position, 2 * i], table[position, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def turned(x: Tensor, base: float = 10_000, scaling: RotaryScaling | None = None) -> Tensor:
    """Rotary positions of x (T, h): z_j · exp(i·t·base^(−2j/h)) of the complex numbers z_j = x_j + i·x_(j + h/2)."""
    half = x.shape[1] // 2
    z = torch.complex(x[:, :half], x[:, half:])
    speeds = [scaled_speed(base ** (-2 * j / x.shape[1]), scaling) for j in range(half)]
    turn = [[cmath.exp(1j * t * speed) for speed in speeds] for t in range(len(x))]
    z = z * torch.tensor(turn, dtype=torch.complex128)
    return torch.cat((z.real, z.imag), dim=1)


def scaled_speed(speed: float, scaling: RotaryScaling | None) -> float:
    """The three cases of Llama 3.1 by the wavelength, as its reference code tells them apart."""
    if scaling is None:
        return speed
    wavelength = 2 * math.pi / speed
    if wavelength < scaling.context / scaling.high:
        return speed
    if wavelength > scaling.context / scaling.low:
        return speed / scaling.factor
    smooth = (scaling.context / wavelength - scaling.low) / (scaling.high - scaling.low)
    return (1 - smooth) * speed / scaling.factor + smooth * speed


def norm(shape: Architecture, w: Named, name: str, x: Tensor) -> Tensor:
    if shape.norm == "layernorm":
        x = x - x.sum(1, keepdim=True) / shape.d_model
    mean_square = (x * x).sum(1, keepdim=True) / shape.d_model
    x = x / (mean_square + shape.eps) ** 0.5 * w[f"{name}.weight"]
    return x + w[f"{name}.bias"] if f"{name}.bias" in w else x


def linear(w: Named, name: str, x: Tensor) -> Tensor:
    y = torch.einsum("ti,oi->to", x, w[f"{name}.weight"])
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def attention(shape: Architecture, w: Named, name: str, x: Tensor) -> Tensor:
    queries, keys, values = (linear(w, f"{name}.{part}", x) for part in ("query", "key", "value"))
    h, share = shape.head_dim, shape.n_heads // shape.n_kv_heads
    mixed = []
    for head in range(shape.n_heads):
        mine, theirs = slice(head * h, (head + 1) * h), slice(head // share * h, (head // share + 1) * h)
        q, k = queries[:, mine], keys[:, theirs]
        if shape.position == "rotary":
            q, k = (turned(part, shape.rotary_base, shape.rotary_scaling) for part in (q, k))
        scores = (q @ k.T / math.sqrt(h)).exp().tril()  # small numbers: no maximum to subtract
        mixed.append(scores / scores.sum(1, keepdim=True) @ values[:, theirs])
    return linear(w, f"{name}.out", torch.cat(mixed, dim=1))


def mlp(shape: Architecture, w: Named, name: str, x: Tensor) -> Tensor:
    inner = linear(w, f"{name}.input", x)
    hidden = phi(shape, linear(w, f"{name}.gate", x)) * inner if shape.gated else phi(shape, inner)
    return linear(w, f"{name}.out", hidden)


def phi(shape: Architecture, u: Tensor) -> Tensor:
    match shape.activation:
        case "gelu":
            return u * (1 + (u / math.sqrt(2)).erf()) / 2
        case "gelu_tanh":
            return u * (1 + (math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)).tanh()) / 2
        case "relu":
            return u * (u > 0)
        case "silu":
            return u / (1 + (-u).exp())
