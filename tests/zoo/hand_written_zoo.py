"""Transformers in the styles of well-known teaching code, written anew, that note what they add to their own stream.

Every model says in `note(…)` what it adds, at the place where it adds it, and as class attributes what is true of it:
the oracle for tests/zoo/test_hand_written_zoo.py. Outside of `taking_notes()` a note does nothing at all, not even an
operation. Weights are N(0, 0.02²) unless the style is about them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

D, HEADS, FF, VOCAB, T, LAYERS = 32, 4, 96, 120, 24, 3
HEAD = D // HEADS
LONGEST = 512  # a table of sinusoids is made longer than any batch

Q, K, VALUE, OUT = "attention_query", "attention_key", "attention_value", "attention_out"
GATE, UP, DOWN, ROUTER = "mlp_gate", "mlp_in", "mlp_out", "router"
TOKENS, POSITIONS, LM_HEAD, MULTIPLIER = "token_embedding", "position_embedding", "lm_head", "multiplier"
Rows = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Note:
    """One addition: after = before + branch. weights: any of them may be named as having written the branch."""

    kind: str
    weights: tuple[Tensor, ...]
    before: Tensor
    branch: Tensor
    after: Tensor
    normed: bool = False
    joined: int = 1
    keep: float = 1.0


_notes: list[Note] | None = None


def note(
    kind: str,
    weights: nn.Module | Tensor | tuple[Tensor, ...],
    before: Tensor,
    branch: Tensor | Callable[[], Tensor],
    after: Tensor,
    **more: Any,
) -> None:
    if _notes is None:
        return
    if isinstance(weights, nn.Module):
        weights = weights.weight
    _notes.append(
        Note(
            kind,
            weights if isinstance(weights, tuple) else (weights,),
            before,
            branch if isinstance(branch, Tensor) else branch(),
            after.clone(),  # the next one may be added in place
            **more,
        )
    )


@contextmanager
def taking_notes() -> Iterator[list[Note]]:
    global _notes  # noqa: PLW0603
    _notes = []
    try:
        yield _notes
    finally:
        _notes = None


class Zoo(nn.Module):
    """What every model says of itself. parts: of packed matrices, rows by role. carried: between branches."""

    placement: ClassVar[str] = "pre"
    tied: ClassVar[bool] = False
    head_name: ClassVar[str] = "head.weight"
    embedding: ClassVar[str] = "tok.weight"
    branches: ClassVar[int] = 2 * LAYERS
    roles: ClassVar[Mapping[str, str]] = {}
    parts: ClassVar[Mapping[str, Mapping[str, Rows]]] = {}
    carried: ClassVar[str] = "same"

    def finish(self, std: float = 0.02) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=std)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


def normal_(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape).normal_(std=0.02))


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def heads(x: Tensor) -> Tensor:
    return x.view(*x.shape[:2], -1, HEAD).transpose(1, 2)


def no_heads(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def in_thirds() -> dict[str, Rows]:
    return {Q: ((0, D),), K: ((D, 2 * D),), VALUE: ((2 * D, 3 * D),)}


# --- parts that several styles share


class PackedAttention(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D, bias=bias), nn.Linear(D, D, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = map(heads, self.qkv(x).split(D, dim=2))
        return self.proj(no_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(D, FF), nn.Linear(FF, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    """Pre-norm; the subclasses add in other ways."""

    def __init__(self) -> None:
        super().__init__()
        self.attn, self.mlp = PackedAttention(), FeedForward()
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)

    def forward(self, x: Tensor) -> Tensor:
        x = self.join(x, self.attn, self.norm1, "attention", self.attn.proj)
        return self.join(x, self.mlp, self.norm2, "mlp", self.mlp.down)

    def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
        branch = f(norm(x))
        after = x + branch
        note(kind, weight, x, branch, after)
        return after


class Stack(Zoo):
    """Token and position tables, blocks, norm, head: what most styles below have."""

    block: ClassVar[type[nn.Module]] = Block
    roles: ClassVar[Mapping[str, str]] = {
        "tok.weight": TOKENS,
        "pos.weight": POSITIONS,
        "head.weight": LM_HEAD,
        "*.qkv.weight": f"{Q}|{K}|{VALUE}|other",
        "*.proj.weight": OUT,
        "*.up.weight": UP,
        "*.down.weight": DOWN,
    }
    parts: ClassVar[Mapping[str, Mapping[str, Rows]]] = {"*.qkv.weight": in_thirds()}

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(T, D)
        self.blocks = nn.ModuleList(self.block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(D), linear(D, VOCAB)
        self.finish()

    def embed(self, ids: Tensor) -> Tensor:
        return self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))

    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


# --- teaching code, each in its manner


class NanoStyle(Zoo):
    """A ModuleDict named transformer, packed q/k/v, tied head, logits and a loss in a tuple."""

    tied, head_name, embedding = True, "lm_head.weight", "transformer.wte.weight"
    roles: ClassVar[Mapping[str, str]] = {
        "*.wte.weight": TOKENS,
        "*.wpe.weight": POSITIONS,
        "*.qkv.weight": f"{Q}|{K}|{VALUE}|other",
        "*.proj.weight": OUT,
        "*.up.weight": UP,
        "*.down.weight": DOWN,
    }
    parts: ClassVar[Mapping[str, Mapping[str, Rows]]] = {"*.qkv.weight": in_thirds()}

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(VOCAB, D),
                "wpe": nn.Embedding(T, D),
                "drop": nn.Dropout(0.1),
                "h": nn.ModuleList(Block() for _ in range(LAYERS)),
                "ln_f": nn.LayerNorm(D),
            }
        )
        self.lm_head = linear(D, VOCAB)
        self.transformer["wte"].weight = self.lm_head.weight
        self.finish()
        for name, parameter in self.named_parameters():
            if name.endswith(("proj.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * LAYERS))

    def forward(self, idx: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        pos = torch.arange(0, idx.size(1), dtype=torch.long, device=idx.device)
        x = self.transformer["drop"](self.transformer["wte"](idx) + self.transformer["wpe"](pos))
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


class MinStyle(Stack):
    """A mask buffer filled in by hand, a softmax of the scores, and an MLP that is a lambda over a ModuleDict."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.proj = (nn.Linear(D, D) for _ in range(4))
            self.register_buffer("bias", torch.tril(torch.ones(T, T)).view(1, 1, T, T))

        def forward(self, x: Tensor) -> Tensor:
            n = x.shape[1]
            scores = (heads(self.q(x)) @ heads(self.k(x)).transpose(-2, -1)) * (1.0 / math.sqrt(HEAD))
            scores = scores.masked_fill(self.bias[:, :, :n, :n] == 0, float("-inf"))
            return self.proj(no_heads(F.softmax(scores, dim=-1) @ heads(self.v(x))))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(D), nn.LayerNorm(D)
            self.attn = MinStyle.Attention()
            self.mlp = nn.ModuleDict({"up": nn.Linear(D, FF), "down": nn.Linear(FF, D), "drop": nn.Dropout(0.1)})

        def forward(self, x: Tensor) -> Tensor:
            m = self.mlp
            mlpf = lambda h: m["drop"](m["down"](F.gelu(m["up"](h))))  # noqa: E731
            branch = self.attn(self.ln_1(x))
            after = x + branch
            note("attention", self.attn.proj, x, branch, after)
            branch = mlpf(self.ln_2(after))
            out = after + branch
            note("mlp", m["down"], after, branch, out)
            return out

    block = Layer
    roles: ClassVar[Mapping[str, str]] = {
        **Stack.roles,
        "*.q.weight": Q,
        "*.k.weight": K,
        "*.v.weight": VALUE,
    }
    parts: ClassVar[Mapping[str, Mapping[str, Rows]]] = {}


class FromScratchStyle(Zoo):
    """Own LayerNorm with scale and shift, own tanh GELU, einsum everywhere, a `shortcut` variable."""

    head_name, embedding = "out_head.weight", "tok_emb.weight"
    roles: ClassVar[Mapping[str, str]] = {
        "tok_emb.weight": TOKENS,
        "pos_emb.weight": POSITIONS,
        "out_head.weight": LM_HEAD,
        "*.W_query": Q,
        "*.W_key": K,
        "*.W_value": VALUE,
        "*.out_proj.weight": OUT,
        "*.layers.0.weight": UP,
        "*.layers.2.weight": DOWN,
    }

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.shift = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

        def forward(self, x: Tensor) -> Tensor:
            centred = x - x.mean(dim=-1, keepdim=True)
            return self.scale * centred / torch.sqrt(x.var(dim=-1, keepdim=True, unbiased=False) + 1e-5) + self.shift

    class Gelu(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 0.5 * x * (1 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3))))

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.W_query, self.W_key, self.W_value = (normal_(D, HEADS, HEAD) for _ in range(3))
            self.out_proj = nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (torch.einsum("btd,dhe->bhte", x, w) for w in (self.W_query, self.W_key, self.W_value))
            scores = torch.einsum("bhqe,bhke->bhqk", q, k)
            later = torch.triu(torch.ones(x.shape[1], x.shape[1], device=x.device), diagonal=1).bool()
            weights = torch.softmax(scores.masked_fill(later, -torch.inf) / HEAD**0.5, dim=-1)
            return self.out_proj(torch.einsum("bhqk,bhke->bqhe", weights, v).reshape(x.shape))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.att = FromScratchStyle.Attention()
            self.ff = nn.Module()
            self.ff.layers = nn.Sequential(nn.Linear(D, FF), FromScratchStyle.Gelu(), nn.Linear(FF, D))
            self.norm1, self.norm2 = FromScratchStyle.Norm(), FromScratchStyle.Norm()
            self.drop_shortcut = nn.Dropout(0.1)

        def forward(self, x: Tensor) -> Tensor:
            shortcut = x
            x = self.drop_shortcut(self.att(self.norm1(x)))
            branch, x = x, x + shortcut
            note("attention", self.att.out_proj, shortcut, branch, x)
            shortcut = x
            x = self.drop_shortcut(self.ff.layers(self.norm2(x)))
            branch, x = x, x + shortcut
            note("mlp", self.ff.layers[2], shortcut, branch, x)
            return x

    def __init__(self) -> None:
        super().__init__()
        self.tok_emb, self.pos_emb = nn.Embedding(VOCAB, D), nn.Embedding(T, D)
        self.trf_blocks = nn.Sequential(*(FromScratchStyle.Layer() for _ in range(LAYERS)))
        self.final_norm, self.out_head = FromScratchStyle.Norm(), linear(D, VOCAB)
        self.finish()

    def forward(self, in_idx: Tensor) -> Tensor:
        x = self.tok_emb(in_idx) + self.pos_emb(torch.arange(in_idx.shape[1], device=in_idx.device))
        return self.out_head(self.final_norm(self.trf_blocks(x)))


class HeadsInAListStyle(Stack):
    """One small module per head, their outputs concatenated."""

    class OneHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.key, self.query, self.value = (linear(D, HEAD) for _ in range(3))
            self.register_buffer("tril", torch.tril(torch.ones(T, T)))

        def forward(self, x: Tensor) -> Tensor:
            n = x.shape[1]
            wei = self.query(x) @ self.key(x).transpose(-2, -1) * HEAD**-0.5
            wei = wei.masked_fill(self.tril[:n, :n] == 0, float("-inf"))
            return F.softmax(wei, dim=-1) @ self.value(x)

    class Heads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.heads = nn.ModuleList(HeadsInAListStyle.OneHead() for _ in range(HEADS))
            self.proj = nn.Linear(D, D)

        def forward(self, x: Tensor) -> Tensor:
            return self.proj(torch.cat([h(x) for h in self.heads], dim=-1))

    class Layer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.attn = HeadsInAListStyle.Heads()  # type: ignore[assignment]

    block = Layer
    roles: ClassVar[Mapping[str, str]] = {
        **Stack.roles,
        "*.query.weight": Q,
        "*.key.weight": K,
        "*.value.weight": VALUE,
    }
    parts: ClassVar[Mapping[str, Mapping[str, Rows]]] = {}


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5)).type_as(x) * self.weight


class ComplexRotaryStyle(Zoo):
    """w1, w2, w3; rotary by complex numbers; grouped queries repeated by hand; everything called as .forward."""

    tied, head_name, embedding = True, "output.weight", "tok_embeddings.weight"
    roles: ClassVar[Mapping[str, str]] = {
        "tok_embeddings.weight": TOKENS,
        "*.wq.weight": Q,
        "*.wk.weight": K,
        "*.wv.weight": VALUE,
        "*.wo.weight": OUT,
        "*.w1.weight": GATE,
        "*.w3.weight": UP,
        "*.w2.weight": DOWN,
    }

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk, self.wv, self.wo = linear(D, D), linear(D, D // 2), linear(D, D // 2), linear(D, D)

        def forward(self, x: Tensor, turns: Tensor) -> Tensor:
            b, n, _ = x.shape
            q, k, v = (w(x).view(b, n, -1, HEAD) for w in (self.wq, self.wk, self.wv))
            q, k = self.turned(q, turns), self.turned(k, turns)
            k, v = (z[:, :, :, None, :].expand(b, n, HEADS // 2, 2, HEAD).reshape(b, n, HEADS, HEAD) for z in (k, v))
            q, k, v = (z.transpose(1, 2) for z in (q, k, v))
            scores = torch.matmul(q, k.transpose(2, 3)) / math.sqrt(HEAD)
            scores = scores + torch.triu(torch.full((1, 1, n, n), float("-inf"), device=x.device), diagonal=1)
            return self.wo(no_heads(torch.matmul(F.softmax(scores.float(), dim=-1).type_as(q), v)))

        @staticmethod
        def turned(x: Tensor, turns: Tensor) -> Tensor:
            pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * turns[None, :, None, :]).flatten(3).type_as(x)

    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w1, self.w2, self.w3 = linear(D, FF), linear(FF, D), linear(D, FF)

        def forward(self, x: Tensor) -> Tensor:
            return self.w2(F.silu(self.w1(x)) * self.w3(x))

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.feed_forward = ComplexRotaryStyle.Attention(), ComplexRotaryStyle.Gated()
            self.attention_norm, self.ffn_norm = RmsNorm(), RmsNorm()

        def forward(self, x: Tensor, turns: Tensor) -> Tensor:
            branch = self.attention.forward(self.attention_norm.forward(x), turns)
            h = x + branch
            note("attention", self.attention.wo, x, branch, h)
            branch = self.feed_forward.forward(self.ffn_norm.forward(h))
            out = h + branch
            note("mlp", self.feed_forward.w2, h, branch, out)
            return out

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings, self.output = nn.Embedding(VOCAB, D), linear(D, VOCAB)
        self.layers = nn.ModuleList(ComplexRotaryStyle.Layer() for _ in range(LAYERS))
        self.norm = RmsNorm()
        self.tok_embeddings.weight = self.output.weight
        self.finish()

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.tok_embeddings(tokens)
        steps = torch.arange(tokens.shape[1], device=tokens.device).float()
        angles = torch.outer(steps, 1e4 ** -(torch.arange(0, HEAD, 2, device=tokens.device) / HEAD))
        turns = torch.polar(torch.ones_like(angles), angles)
        for layer in self.layers:
            h = layer.forward(h, turns)
        return self.output.forward(self.norm.forward(h))


class AnnotatedStyle(Zoo):
    """Post-norm by a SublayerConnection that is given a function; √d, sinusoids; log-probabilities come out."""

    placement, carried = "post", "normed"
    head_name, embedding = "generator.weight", "lut.weight"
    roles: ClassVar[Mapping[str, str]] = {
        "lut.weight": TOKENS,
        "generator.weight": LM_HEAD,
        "*.linears.0.weight": Q,
        "*.linears.1.weight": K,
        "*.linears.2.weight": VALUE,
        "*.linears.3.weight": OUT,
        "*.w_1.weight": UP,
        "*.w_2.weight": DOWN,
    }

    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a_2, self.b_2 = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

        def forward(self, x: Tensor) -> Tensor:
            return self.a_2 * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.b_2

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linears = nn.ModuleList(nn.Linear(D, D) for _ in range(4))

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
            pairs = zip(self.linears, (query, key, value), strict=False)
            query, key, value = (heads(lin(x)) for lin, x in pairs)
            scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(HEAD)
            return self.linears[-1](no_heads(scores.masked_fill(mask == 0, -1e9).softmax(dim=-1) @ value))

    class SublayerConnection(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.dropout = AnnotatedStyle.Norm(), nn.Dropout(0.1)

        def forward(self, x: Tensor, f: Callable[[Tensor], Tensor], kind: str, weight: nn.Module) -> Tensor:
            branch = self.dropout(f(x))
            after = x + branch
            note(kind, weight, x, branch, after)
            return self.norm(after)

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.self_attn = AnnotatedStyle.Attention()
            self.feed_forward = nn.ModuleDict({"w_1": nn.Linear(D, FF), "w_2": nn.Linear(FF, D)})
            self.sublayer = nn.ModuleList(AnnotatedStyle.SublayerConnection() for _ in range(2))

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            w_1, w_2 = self.feed_forward.values()
            x = self.sublayer[0](x, lambda y: self.self_attn(y, y, y, mask), "attention", self.self_attn.linears[3])
            return self.sublayer[1](x, lambda y: w_2(w_1(y).relu()), "mlp", w_2)

    def __init__(self) -> None:
        super().__init__()
        self.lut, self.generator = nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB)
        self.layers = nn.ModuleList(AnnotatedStyle.Layer() for _ in range(LAYERS))
        position, rate = torch.arange(LONGEST).unsqueeze(1), torch.exp(torch.arange(0, D, 2) * -(math.log(1e4) / D))
        pe = torch.zeros(LONGEST, D)
        pe[:, 0::2], pe[:, 1::2] = torch.sin(position * rate), torch.cos(position * rate)
        self.register_buffer("pe", pe.unsqueeze(0))
        self.finish()

    def forward(self, src: Tensor) -> Tensor:
        n = src.shape[1]
        mask = (torch.triu(torch.ones(1, 1, n, n, device=src.device), diagonal=1) == 0).long()
        x = self.lut(src) * math.sqrt(D) + self.pe[:, :n].requires_grad_(False)
        for layer in self.layers:
            x = layer(x, mask)
        return F.log_softmax(self.generator(x), dim=-1)


class ListOfLayersStyle(Zoo):
    """One flat list of (norm, f, residual), walked in a loop; the residual is a module, too."""

    head_name = "to_logits.weight"
    roles: ClassVar[Mapping[str, str]] = {
        "tok.weight": TOKENS,
        "to_logits.weight": LM_HEAD,
        "*.qkv.weight": f"{Q}|{K}|{VALUE}|other",
        "*.proj.weight": OUT,
        "*.up.weight": UP,
        "*.down.weight": DOWN,
    }
    parts: ClassVar[Mapping[str, Mapping[str, Rows]]] = {"*.qkv.weight": in_thirds()}

    class Residual(nn.Module):
        def forward(self, x: Tensor, residual: Tensor) -> Tensor:
            return x + residual

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.to_logits, self.final = nn.Embedding(VOCAB, D), linear(D, VOCAB), nn.LayerNorm(D)
        self.layers = nn.ModuleList(
            nn.ModuleList([nn.ModuleList([nn.LayerNorm(D)]), f(), ListOfLayersStyle.Residual()])
            for _ in range(LAYERS)
            for f in (PackedAttention, FeedForward)
        )
        self.finish()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        x = self.tok(x)
        for norms, f, residual_fn in self.layers:
            inner = x
            out = f(norms[0](x))
            x = residual_fn(out, inner)
            is_attention = isinstance(f, PackedAttention)
            note("attention" if is_attention else "mlp", f.proj if is_attention else f.down, inner, out, x)
        return {"hidden": x, "logits": self.to_logits(self.final(x))}


# --- ways to add


class InPlace(Stack):
    class Layer(Block):
        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            before = x.clone() if _notes is not None else x
            branch = f(norm(x))
            x += branch
            note(kind, weight, before, branch, x)
            return x

    block = Layer


class AddWithAlpha(Stack):
    class Layer(Block):
        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            branch = f(norm(x))
            after = torch.add(x, branch, alpha=0.5)
            note(kind, weight, x, lambda: 0.5 * branch, after)
            return after

    block = Layer


class StreamAsBias(Stack):
    """The last product of each branch adds to the stream itself: addmm(stream, hidden, weight)."""

    class Layer(Block):
        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            h = norm(x)
            if isinstance(f, PackedAttention):
                q, k, v = map(heads, f.qkv(h).split(D, dim=2))
                hidden = no_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True))
            else:
                hidden = F.gelu(f.up(h))
            flat = hidden.reshape(-1, hidden.shape[-1])
            after = torch.addmm(x.reshape(-1, D), flat, weight.weight.t()).view_as(x)
            note(kind, weight, x, lambda: hidden @ weight.weight.t(), after)
            return after

    block = Layer

    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.attn.proj.bias = block.mlp.down.bias = None


class BranchFirst(Stack):
    """f(x)·1 + x, by methods."""

    class Layer(Block):
        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            branch = f(norm(x))
            after = branch.mul(1.0).add(x)
            note(kind, weight, x, branch, after)
            return after

    block = Layer


class Checkpointed(Stack):
    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(self.norm(x))


class InferenceMode(Stack):
    @torch.inference_mode()
    def forward(self, ids: Tensor) -> Any:
        return super().forward(ids)


class ReZero(Stack):
    """No norms; each branch times one number that starts at zero."""

    class Layer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.Identity(), nn.Identity()  # type: ignore[assignment]
            self.gain1, self.gain2 = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))

        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            branch = (self.gain1 if kind == "attention" else self.gain2) * f(x)
            after = x + branch
            note(kind, weight, x, branch, after)
            return after

    block, placement = Layer, "none"
    roles: ClassVar[Mapping[str, str]] = {**Stack.roles, "*.gain1": MULTIPLIER, "*.gain2": MULTIPLIER}

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()  # type: ignore[assignment]


class LayerScale(Stack):
    class Layer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.gamma1, self.gamma2 = nn.Parameter(torch.full((D,), 1e-2)), nn.Parameter(torch.full((D,), 1e-2))

        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            branch = f(norm(x)) * (self.gamma1 if kind == "attention" else self.gamma2)
            after = x + branch
            note(kind, weight, x, branch, after)
            return after

    block = Layer
    roles: ClassVar[Mapping[str, str]] = {**Stack.roles, "*.gamma1": MULTIPLIER, "*.gamma2": MULTIPLIER}


class DeepNorm(Stack):
    """LayerNorm(α·x + f(x)) with α = (2L)^¼."""

    ALPHA: ClassVar[float] = (2 * LAYERS) ** 0.25

    class Layer(Block):
        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            branch = f(x)
            kept = x * DeepNorm.ALPHA
            after = kept + branch
            note(kind, weight, kept, branch, after)
            return norm(after)

    block, placement, carried = Layer, "post", "normed"

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()  # type: ignore[assignment]


class PostNorm(Stack):
    class Layer(Block):
        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            branch = f(x)
            after = x + branch
            note(kind, weight, x, branch, after)
            return norm(after)

    block, placement, carried = Layer, "post", "normed"

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Identity()  # type: ignore[assignment]


class Sandwich(Stack):
    class Layer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.after1, self.after2 = nn.RMSNorm(D), nn.RMSNorm(D)

        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            branch = (self.after1 if kind == "attention" else self.after2)(f(norm(x)))
            after = x + branch
            note(kind, weight, x, branch, after, normed=True)
            return after

    block, placement = Layer, "sandwich"


class ReorderedNorm(Stack):
    class Layer(Block):
        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            branch = norm(f(x))
            after = x + branch
            note(kind, weight, x, branch, after, normed=True)
            return after

    block, placement = Layer, "reordered"


class EmbeddingNorm(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.tok_norm = nn.LayerNorm(D)

    def embed(self, ids: Tensor) -> Tensor:
        return self.tok_norm(super().embed(ids))


class ScaledStream(Stack):
    """x ← 0.9·x + f(norm(x)): the stream decays on its way."""

    class Layer(Block):
        def join(self, x: Tensor, f: nn.Module, norm: nn.Module, kind: str, weight: nn.Module) -> Tensor:
            branch = f(norm(x))
            kept = 0.9 * x
            after = kept + branch
            note(kind, weight, kept, branch, after)
            return after

    block, carried = Layer, "scaled|same"


class ParallelOneNorm(Stack):
    """x + attn(h) + mlp(h), from left to right: two additions, both branches read the same norm."""

    class Layer(Block):
        def forward(self, x: Tensor) -> Tensor:
            h = self.norm1(x)
            a, m = self.attn(h), self.mlp(h)
            middle = x + a
            after = middle + m
            note("attention", self.attn.proj, x, a, middle)
            note("mlp", self.mlp.down, middle, m, after)
            return after

        def __init__(self) -> None:
            super().__init__()
            self.norm2 = nn.Identity()  # type: ignore[assignment]

    block = Layer


class ParallelTwoNorms(Stack):
    """x + (attn(norm1(x)) + mlp(norm2(x))): the branches are summed before they meet the stream."""

    class Layer(Block):
        def forward(self, x: Tensor) -> Tensor:
            a, m = self.attn(self.norm1(x)), self.mlp(self.norm2(x))
            after = x + (a + m)
            note("attention", self.attn.proj, x, a, after, joined=2)
            note("mlp", self.mlp.down, x, m, after, joined=2)
            return after

    block = Layer


class OneProduct(Stack):
    """Queries, keys, values and the MLP's input from one matrix; one norm; summed before the stream (PaLM's way)."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fused = nn.LayerNorm(D), linear(D, 3 * D + 2 * FF)
            self.proj, self.down = linear(D, D), linear(FF, D)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v, gate, up = self.fused(self.norm(x)).split((D, D, D, FF, FF), dim=-1)
            mixed = F.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
            a, m = self.proj(no_heads(mixed)), self.down(F.silu(gate) * up)
            after = a + m + x
            note("attention", self.proj, x, a, after, joined=2)
            note("mlp", self.down, x, m, after, joined=2)
            return after

    block = Layer
    roles: ClassVar[Mapping[str, str]] = {**Stack.roles, "*.fused.weight": f"{Q}|{K}|{VALUE}|{UP}|{GATE}|other"}
    parts: ClassVar[Mapping[str, Mapping[str, Rows]]] = {
        "*.fused.weight": {
            **in_thirds(),
            GATE: ((3 * D, 3 * D + FF),),
            UP: ((3 * D + FF, 3 * D + 2 * FF),),
        }
    }


class InModuleResidual(Stack):
    """The additions are inside the modules that make the branches."""

    class Attention(PackedAttention):
        def forward(self, x: Tensor, residual: Tensor) -> Tensor:  # type: ignore[override]
            branch = super().forward(x)
            after = residual + branch
            note("attention", self.proj, residual, branch, after)
            return after

    class Mlp(FeedForward):
        def forward(self, x: Tensor, residual: Tensor) -> Tensor:  # type: ignore[override]
            branch = super().forward(x)
            after = branch + residual
            note("mlp", self.down, residual, branch, after)
            return after

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn, self.mlp = InModuleResidual.Attention(), InModuleResidual.Mlp()
            self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)

        def forward(self, x: Tensor) -> Tensor:
            x = self.attn(self.norm1(x), x)
            return self.mlp(self.norm2(x), x)

    block = Layer


# --- shortcuts, sharing, experts


def rms(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


class Shortcuts(Zoo):
    """A speedrun's model: x0 mixed into the stream, values of the first layer into the others, normed q and k, relu²,
    learned mixing numbers, norms without parameters, capped logits."""

    head_name, carried = "head.weight", "scaled|same|other"
    roles: ClassVar[Mapping[str, str]] = {
        "tok.weight": TOKENS,
        "head.weight": LM_HEAD,
        "*.c_q.weight": Q,
        "*.c_k.weight": K,
        "*.c_v.weight": VALUE,
        "*.c_proj.weight": OUT,
        "*.c_fc.weight": UP,
        "*.c_back.weight": DOWN,
        "*.lambdas": MULTIPLIER,
        "*.lamb": MULTIPLIER,
    }

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c_q, self.c_k, self.c_v, self.c_proj = (linear(D, D) for _ in range(4))
            self.c_fc, self.c_back = linear(D, FF), linear(FF, D)
            self.lambdas, self.lamb = nn.Parameter(torch.tensor([1.0, 0.3])), nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor, v1: Tensor | None, x0: Tensor) -> tuple[Tensor, Tensor]:
            x = self.lambdas[0] * x + self.lambdas[1] * x0
            h = rms(x)
            v = self.c_v(h)
            v1 = v if v1 is None else v1
            v = (1 - self.lamb) * v + self.lamb * v1.view_as(v)
            q, k = rms(heads(self.c_q(h))), rms(heads(self.c_k(h)))
            branch = self.c_proj(no_heads(F.scaled_dot_product_attention(q, k, heads(v), is_causal=True)))
            middle = x + branch
            note("attention", self.c_proj, x, branch, middle)
            branch = self.c_back(F.relu(self.c_fc(rms(middle))).square())
            after = middle + branch
            note("mlp", self.c_back, middle, branch, after)
            return after, v1

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.head = nn.Embedding(VOCAB, D), linear(D, VOCAB)
        self.layers = nn.ModuleList(Shortcuts.Layer() for _ in range(LAYERS))
        self.finish()

    def forward(self, idx: Tensor) -> Tensor:
        x = x0 = rms(self.tok(idx))
        v1 = None
        for layer in self.layers:
            x, v1 = layer(x, v1, x0)
        return (30 * torch.tanh(self.head(rms(x)) / 30)).float()


class UNetSkips(Stack):
    """The stream of early layers is added, weighted, to that of late ones: stream and stream, no branch."""

    branches, carried = 8, "same|scaled|other"
    roles: ClassVar[Mapping[str, str]] = {**Stack.roles, "skip_weights": MULTIPLIER}

    def __init__(self) -> None:
        super().__init__()
        self.blocks.append(Block())
        self.skip_weights = nn.Parameter(torch.full((2,), 0.5))
        self.finish()

    def forward(self, ids: Tensor) -> Any:
        x, skips = self.embed(ids), []
        for block in self.blocks[:2]:
            x = block(x)
            skips.append(x)
        for weight, block in zip(self.skip_weights, self.blocks[2:], strict=True):
            x = block(x + weight * skips.pop())
        return self.head(self.norm(x))


class SharedLayers(Stack):
    """One layer, used three times: six branches by two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block()])
        self.finish()

    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids)
        for _ in range(LAYERS):
            x = self.blocks[0](x)
        return self.head(self.norm(x))


class Experts(Stack):
    """A router, the best two of four experts, a loop over experts, index_add_ into zeros."""

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.experts = linear(D, 4), nn.ModuleList(ComplexRotaryStyle.Gated() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            flat = x.reshape(-1, D)
            weights, chosen = torch.topk(F.softmax(self.gate(flat), dim=-1), 2, dim=-1)
            weights = weights / weights.sum(-1, keepdim=True)
            out = torch.zeros_like(flat)
            for i, expert in enumerate(self.experts):
                token, rank = torch.where(chosen == i)
                out.index_add_(0, token, expert(flat[token]) * weights[token, rank, None])
            return out.view_as(x)

    class Layer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = Experts.Routed()  # type: ignore[assignment]

        def forward(self, x: Tensor) -> Tensor:
            x = self.join(x, self.attn, self.norm1, "attention", self.attn.proj)
            branch = self.mlp(self.norm2(x))
            after = x + branch
            note("moe", tuple(expert.w2.weight for expert in self.mlp.experts), x, branch, after)
            return after

    block = Layer
    roles: ClassVar[Mapping[str, str]] = {
        **Stack.roles,
        "*.gate.weight": ROUTER,
        "*.w1.weight": GATE,
        "*.w3.weight": UP,
        "*.w2.weight": DOWN,
    }


class SoftExperts(Stack):
    """All experts run, and their outputs are summed by the softmax of a router."""

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router, self.experts = linear(D, 4), nn.ModuleList(FeedForward() for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            weights = self.router(x).softmax(-1)
            return sum(weights[..., i, None] * expert(x) for i, expert in enumerate(self.experts))  # type: ignore[return-value]

    class Layer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = SoftExperts.Routed()  # type: ignore[assignment]

        def forward(self, x: Tensor) -> Tensor:
            x = self.join(x, self.attn, self.norm1, "attention", self.attn.proj)
            branch = self.mlp(self.norm2(x))
            after = x + branch
            note("moe|mlp", tuple(expert.down.weight for expert in self.mlp.experts), x, branch, after)
            return after

    block = Layer
    # a softmax of a product chooses nothing, so that it may stay without a role
    roles: ClassVar[Mapping[str, str]] = {**Stack.roles, "*.router.weight": f"{ROUTER}|{GATE}|other"}


# --- attention and MLP by other means


class SoftmaxByHand(Stack):
    class Attention(PackedAttention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = map(heads, self.qkv(x).split(D, dim=2))
            scores = q @ k.transpose(-1, -2) / math.sqrt(HEAD)
            scores = scores + torch.full(scores.shape[-2:], -1e9, device=x.device).triu(1)
            weights = torch.exp(scores - scores.amax(dim=-1, keepdim=True))
            return self.proj(no_heads(weights / weights.sum(dim=-1, keepdim=True) @ v))

    class Layer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.attn = SoftmaxByHand.Attention()

    block = Layer


class TorchAttention(Stack):
    """nn.MultiheadAttention with an additive mask."""

    class Layer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.attn = nn.MultiheadAttention(D, HEADS, batch_first=True)  # type: ignore[assignment]

        def forward(self, x: Tensor) -> Tensor:
            h = self.norm1(x)
            mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
            branch = self.attn(h, h, h, attn_mask=mask, need_weights=False)[0]
            after = x + branch
            note("attention", self.attn.out_proj, x, branch, after)
            return self.join(after, self.mlp, self.norm2, "mlp", self.mlp.down)

    block = Layer
    roles: ClassVar[Mapping[str, str]] = {
        **Stack.roles,
        "*.in_proj_weight": f"{Q}|{K}|{VALUE}|other",
        "*.out_proj.weight": OUT,
    }
    parts: ClassVar[Mapping[str, Mapping[str, Rows]]] = {"*.in_proj_weight": in_thirds()}


class RawParameters(Stack):
    """Matrices as bare parameters, (inputs, outputs), by the @ operator."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wq, self.wk, self.wv, self.wo = (normal_(D, D) for _ in range(4))
            self.w_up, self.w_down = normal_(D, FF), normal_(FF, D)

        def forward(self, x: Tensor) -> Tensor:
            h = rms(x)
            q, k, v = heads(h @ self.wq), heads(h @ self.wk), heads(h @ self.wv)
            branch = no_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True)) @ self.wo
            middle = x + branch
            note("attention", self.wo, x, branch, middle)
            branch = F.gelu(rms(middle) @ self.w_up) @ self.w_down
            after = middle + branch
            note("mlp", self.w_down, middle, branch, after)
            return after

    block = Layer
    roles: ClassVar[Mapping[str, str]] = {
        **Stack.roles,
        "*.wq": Q,
        "*.wk": K,
        "*.wv": VALUE,
        "*.wo": OUT,
        "*.w_up": UP,
        "*.w_down": DOWN,
    }
    parts: ClassVar[Mapping[str, Mapping[str, Rows]]] = {}


class ConvolutionMlp(Stack):
    """An MLP of two convolutions of width one over (B, d, T)."""

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Conv1d(D, FF, 1), nn.Conv1d(FF, D, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.down(F.relu(self.up(x.transpose(1, 2)))).transpose(1, 2)

    class Layer(Block):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = ConvolutionMlp.Mlp()  # type: ignore[assignment]

    block = Layer


class OneHotEmbedding(Stack):
    """The stream starts at a product: one_hot(ids) @ table."""

    def embed(self, ids: Tensor) -> Tensor:
        x = F.one_hot(ids, VOCAB).to(self.tok.weight.dtype) @ self.tok.weight
        return x + self.pos.weight[: ids.shape[1]]


class NarrowEmbedding(Stack):
    """A narrow table and a matrix up to the stream's width; before the head, one down again (tied)."""

    tied = True
    roles: ClassVar[Mapping[str, str]] = {**Stack.roles, "widen.weight": f"other|{UP}", "narrow.weight": f"other|{UP}"}

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.widen, self.narrow = nn.Embedding(VOCAB, 16), linear(16, D), linear(D, 16)
        self.head = linear(16, VOCAB)
        self.head.weight = self.tok.weight
        self.finish()
        nn.init.normal_(self.widen.weight, std=16**-0.5)  # 0.02 would leave tokens a tenth of the positions

    def embed(self, ids: Tensor) -> Tensor:
        return self.widen(self.tok(ids)) + self.pos.weight[: ids.shape[1]]

    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.narrow(self.norm(x)))


class TimeFirst(Stack):
    """(T, B, d) all along, turned back at the end."""

    class Layer(Block):
        def forward(self, x: Tensor) -> Tensor:
            h = self.norm1(x).transpose(0, 1)
            branch = self.attn(h).transpose(0, 1)
            after = x + branch
            note("attention", self.attn.proj, x, branch, after)
            return self.join(after, self.mlp, self.norm2, "mlp", self.mlp.down)

    block = Layer

    def forward(self, ids: Tensor) -> Any:
        x = self.embed(ids).transpose(0, 1).contiguous()
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).transpose(0, 1))


class FlatTokens(Stack):
    """(B·T, d) for the MLP and its addition, as OPT does it."""

    class Layer(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.join(x, self.attn, self.norm1, "attention", self.attn.proj)
            return self.join(x.reshape(-1, D), self.mlp, self.norm2, "mlp", self.mlp.down).view_as(x)

    block = Layer


ZOO: tuple[type[Zoo], ...] = (
    NanoStyle,
    MinStyle,
    FromScratchStyle,
    HeadsInAListStyle,
    ComplexRotaryStyle,
    AnnotatedStyle,
    ListOfLayersStyle,
    Stack,
    InPlace,
    AddWithAlpha,
    StreamAsBias,
    BranchFirst,
    Checkpointed,
    InferenceMode,
    ReZero,
    LayerScale,
    DeepNorm,
    PostNorm,
    Sandwich,
    ReorderedNorm,
    EmbeddingNorm,
    ScaledStream,
    ParallelOneNorm,
    ParallelTwoNorms,
    OneProduct,
    InModuleResidual,
    Shortcuts,
    UNetSkips,
    SharedLayers,
    Experts,
    SoftExperts,
    SoftmaxByHand,
    TorchAttention,
    RawParameters,
    ConvolutionMlp,
    OneHotEmbedding,
    NarrowEmbedding,
    TimeFirst,
    FlatTokens,
)
