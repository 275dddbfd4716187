"""One small GPT in the ways in which weights are spelled: tied heads, joined projections, einsum, experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

V, D, HEADS, FF, LAYERS = 200, 48, 4, 96, 2


def _heads(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


def _normal(*shape: int) -> nn.Parameter:
    return nn.Parameter(nn.init.normal_(torch.empty(*shape), std=0.1))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))

    def qkv(self, x: Tensor) -> Any:
        return _heads(self.q(x)), _heads(self.k(x)), _heads(self.v(x))

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = F.scaled_dot_product_attention(*self.qkv(x), is_causal=True)
        return self.o(mixed.transpose(1, 2).flatten(2))


class Joined(Attention):
    def qkv(self, x: Tensor) -> Any:
        weight = torch.cat([self.q.weight, self.k.weight, self.v.weight])
        return map(_heads, F.linear(x, weight).chunk(3, -1))


class OfThreeAxes(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (_normal(D, HEADS, D // HEADS) for _ in range(3))  # type: ignore[assignment]

    def qkv(self, x: Tensor) -> Any:
        return (torch.einsum("btd,dhe->bhte", x, weight) for weight in (self.q, self.k, self.v))


class Strided(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.packed = nn.Linear(D, 3 * D)
        del self.q, self.k, self.v

    def qkv(self, x: Tensor) -> Any:
        return (_heads(F.linear(x, self.packed.weight[at::3])) for at in range(3))


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, FF), nn.Linear(FF, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Turned(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x @ self.up.weight.T) @ self.up.weight


class Convolutions(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Conv1d(D, FF, 1), nn.Conv1d(FF, D, 1)  # type: ignore[assignment]

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mT).mT


class LowRank(Mlp):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = _normal(10, D), _normal(FF, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x) + x @ self.a.T @ self.b.T))


class Again(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(super().forward, x, use_reentrant=False)
        return result


class Overwriting(Mlp):
    """Writes into what it has multiplied."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            asked = x.clone()
            before = self.up(asked)
            after = self.up(asked.mul_(2).add_(1))
        return super().forward(x) + 0.1 * self.down(before + after)


class Experts(nn.Module):
    """Four experts; the first takes every token, so that the others are asked for none."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Mlp() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        flat, chosen = x.flatten(0, 1), torch.zeros(x[..., 0].numel(), dtype=torch.long)
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            (at,) = torch.where(chosen == number)
            mixed = mixed.index_add(0, at, expert(flat[at]))
        return mixed.view_as(x)


class Stacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = _normal(4, D, FF), _normal(4, FF, D)

    def forward(self, x: Tensor) -> Tensor:
        each = torch.bmm(F.gelu(torch.bmm(x.flatten(0, 1).expand(4, -1, -1), self.up)), self.down)
        return each.mean(0).view_as(x)


class Block(nn.Module):
    def __init__(self, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, attention: type[nn.Module] = Attention, mlp: type[nn.Module] = Mlp) -> None:
        super().__init__()
        self.vocab_size = V
        self.tokens, self.positions = nn.Embedding(V, D), nn.Embedding(64, D)
        self.blocks = nn.ModuleList(Block(attention(), mlp()) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.1)

    def embed(self, ids: Tensor) -> Tensor:
        return self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))

    def logits(self, x: Tensor) -> Tensor:
        return self.head(x)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.logits(self.norm(x))


class TiedByHand(GPT):
    def logits(self, x: Tensor) -> Tensor:
        return x @ self.tokens.weight.T * D**-0.5


class InChunks(GPT):
    def logits(self, x: Tensor) -> Tensor:
        return torch.cat([F.linear(x, part) for part in self.head.weight.chunk(4)], -1)


class ByRows(GPT):
    """Rows of both tables without nn.Embedding, and the row of a padding token."""

    def embed(self, ids: Tensor) -> Tensor:
        padding = torch.where((ids == 0)[..., None], self.tokens.weight[0, :], 0.0)
        return self.tokens.weight[ids] + self.positions.weight[None, : ids.shape[1]] + padding


SPELLINGS: dict[str, Callable[[], nn.Module]] = {
    "a head tied by hand": TiedByHand,
    "a head in chunks": InChunks,
    "rows of tables": ByRows,
    "joined projections": lambda: GPT(Joined),
    "projections of three axes": lambda: GPT(OfThreeAxes),
    "strided projections": lambda: GPT(Strided),
    "up is down turned": lambda: GPT(mlp=Turned),
    "convolutions of width 1": lambda: GPT(mlp=Convolutions),
    "low-rank sums": lambda: GPT(mlp=LowRank),
    "checkpoints inside": lambda: GPT(mlp=Again),
    "overwritten questions": lambda: GPT(mlp=Overwriting),
    "experts without tokens": lambda: GPT(mlp=Experts),
    "stacked experts": lambda: GPT(mlp=Stacked),
}
