"""Transformers as people write them, each in its own way, that write down what they add to their own stream.

`self.truth` collects (kind, projection, before, branch, after) at every residual addition: what the tracer is to find.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

D, HEADS, VOCAB, T = 16, 4, 50, 7
Truth = tuple[str, str, Tensor, Tensor, Tensor]


class Mixer(nn.Module):
    """Causal attention with a softmax by hand; `fused` uses PyTorch's; the mask is added or filled in."""

    def __init__(self, fused: bool = False, added_mask: bool = False, rotary: bool = False) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.fused, self.added_mask, self.rotary = fused, added_mask, rotary

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        if self.rotary:
            angles = torch.outer(torch.arange(length), 100.0 ** -torch.arange(2)).repeat(1, 2).to(q.dtype)
            q, k = (z * angles.cos() + self._half_turn(z) * angles.sin() for z in (q, k))
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(-1, -2) / math.sqrt(D // HEADS)
            hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
            if self.added_mask:
                scores = scores + torch.zeros(batch, HEADS, length, length).masked_fill(hidden, -1e9)
            else:
                scores = scores.masked_fill(hidden, -math.inf)
            mixed = torch.softmax(scores, dim=-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(batch, length, D))

    @staticmethod
    def _half_turn(z: Tensor) -> Tensor:
        return torch.cat((-z[..., 2:], z[..., :2]), dim=-1)


class FeedForward(nn.Module):
    def __init__(self, activation: Callable[[Tensor], Tensor] = F.gelu) -> None:
        super().__init__()
        self.up, self.down, self.activation = nn.Linear(D, 4 * D), nn.Linear(4 * D, D), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.activation(self.up(x)))


def gelu_by_hand(u: Tensor) -> Tensor:
    return 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u * u * u)))


class RMSNormByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).type_as(x)


class LayerNormByHand(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))

    def forward(self, x: Tensor) -> Tensor:
        variance, mean = torch.var_mean(x, dim=-1, keepdim=True, correction=0)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.g + self.b


class AnnotatedNorm(LayerNormByHand):
    """As in The Annotated Transformer: by the std, eps outside."""

    def forward(self, x: Tensor) -> Tensor:
        return self.g * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.b


Note = Callable[[Tensor, Tensor, Tensor], None]


class Model(nn.Module):
    """Two layers of two branches. `embed` makes the stream of ids, `join` adds a branch to it."""

    def __init__(
        self,
        mixer: Callable[[], nn.Module] = Mixer,
        mlp: Callable[[], nn.Module] = FeedForward,
        norm: Callable[[], nn.Module] = lambda: nn.LayerNorm(D),
        embed: Callable[[Model, Tensor], Tensor] = lambda model, ids: model.tok(ids),
        join: Callable[[Tensor, nn.ModuleDict, nn.Module, Note], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.tok, self.pos, self.kind = nn.Embedding(VOCAB, D), nn.Embedding(T, D), nn.Embedding(2, D)
        self.layers = nn.ModuleList(
            nn.ModuleDict({name: sublayer(norm, f) for name, f in (("attn", mixer), ("mlp", mlp))}) for _ in range(2)
        )
        self.norm, self.head = norm(), nn.Linear(D, VOCAB)
        self.embed, self.join = embed, join or pre_norm
        self.truth: list[Truth] = []

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(self, ids)
        for i, layer in enumerate(self.layers):
            for name, kind, projection in (("attn", "attention", "proj"), ("mlp", "mlp", "down")):

                def note(
                    before: Tensor,
                    branch: Tensor,
                    after: Tensor,
                    at: tuple[int, str, str, str] = (i, name, kind, projection),
                ) -> None:
                    j, module, what, weight = at
                    self.truth.append(
                        (what, f"layers.{j}.{module}.f.{weight}.weight", before.clone(), branch.clone(), after.clone())
                    )

                x = self.join(x, layer[name], layer[name]["f"], note)
        return self.head(self.norm(x))


def sublayer(norm: Callable[[], nn.Module], f: Callable[[], nn.Module]) -> nn.ModuleDict:
    return nn.ModuleDict({"norm": norm(), "second_norm": norm(), "f": f(), "scale": nn.LayerNorm(D)})


# --- ways to add a branch: (stream, sublayer, f, note) -> stream


def pre_norm(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = f(layer["norm"](x))
    after = x + update
    note(x, update, after)
    return after


def branch_first(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = f(layer["norm"](x))
    after = update + x
    note(x, update, after)
    return after


def in_place_operator(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    before, update = x.clone(), f(layer["norm"](x))
    x += update
    note(before, update, x)
    return x


def in_place_method(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    before, update = x.clone(), f(layer["norm"](x))
    x.add_(update)
    note(before, update, x)
    return x


def in_place_on_the_branch(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = f(layer["norm"](x))
    branch = update.clone()
    update += x
    note(x, branch, update)
    return update


def with_alpha(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = f(layer["norm"](x))
    after = torch.add(x, update, alpha=0.1)
    note(x, update * 0.1, after)
    return after


def in_place_with_alpha(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    before, update = x.clone(), f(layer["norm"](x))
    x.add_(update, alpha=0.1)
    note(before, update * 0.1, x)
    return x


def residual_scale(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = 0.1 * f(layer["norm"](x))
    after = x + update
    note(x, update, after)
    return after


def layer_scale(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = layer["scale"].weight * f(layer["norm"](x))
    after = x + update
    note(x, update, after)
    return after


def scaled_stream(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update, kept = f(layer["norm"](x)), 0.9 * x
    after = kept + update
    note(kept, update, after)
    return after


def dropped_out(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = F.dropout(f(layer["norm"](x)), 0.5, training=True)
    after = x + update
    note(x, update, after)
    return after


def post_norm(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = f(x)
    after = x + update
    note(x, update, after)
    return layer["norm"](after)


def sandwich_norm(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = layer["second_norm"](f(layer["norm"](x)))
    after = x + update
    note(x, update, after)
    return after


def norm_of_the_branch(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = layer["norm"](f(x))
    after = x + update
    note(x, update, after)
    return after


def without_norm(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = f(x)
    after = x + update
    note(x, update, after)
    return after


def called_as_forward(x: Tensor, layer: nn.ModuleDict, f: nn.Module, note: Note) -> Tensor:
    update = f.forward(layer["norm"].forward(x))
    after = x + update
    note(x, update, after)
    return after


JOINS = (
    pre_norm,
    branch_first,
    in_place_operator,
    in_place_method,
    in_place_on_the_branch,
    with_alpha,
    in_place_with_alpha,
    residual_scale,
    layer_scale,
    scaled_stream,
    dropped_out,
    post_norm,
    sandwich_norm,
    norm_of_the_branch,
    without_norm,
    called_as_forward,
)


# --- ways to embed: (model, ids) -> stream


def tokens_alone(model: Model, ids: Tensor) -> Tensor:
    return model.tok(ids)


def multiplied(model: Model, ids: Tensor) -> Tensor:
    return model.tok(ids) * math.sqrt(D)


def positions_broadcast(model: Model, ids: Tensor) -> Tensor:
    return model.tok(ids) + model.pos(torch.arange(ids.shape[1]))


def positions_of_the_same_shape(model: Model, ids: Tensor) -> Tensor:
    return model.tok(ids) + model.pos(torch.arange(ids.shape[1]).expand_as(ids))


def positions_first_and_in_place(model: Model, ids: Tensor) -> Tensor:
    x = model.pos(torch.arange(ids.shape[1]).expand_as(ids))
    x += model.tok(ids)
    return x


def positions_counted_from_ids(model: Model, ids: Tensor) -> Tensor:
    return model.tok(ids) + model.pos((ids >= 0).cumsum(1) - 1)


def a_table_of_positions(model: Model, ids: Tensor) -> Tensor:
    return model.tok(ids) * math.sqrt(D) + torch.sin(torch.arange(T * D).view(T, D) / D)


def three_tables_and_a_norm(model: Model, ids: Tensor) -> Tensor:
    x = model.tok(ids) + model.pos(torch.arange(ids.shape[1])) + model.kind(torch.zeros_like(ids))
    return model.norm(x)


def rows_by_index(model: Model, ids: Tensor) -> Tensor:
    return model.tok.weight[ids]


def dropped_out_tokens(model: Model, ids: Tensor) -> Tensor:
    return F.dropout(model.tok(ids), 0.5, training=True)


def dropped_out_by_the_fused_kernel(model: Model, ids: Tensor) -> Tensor:
    return torch.native_dropout(model.tok(ids), 0.5, True)[0]  # what F.dropout runs on a GPU


EMBEDS = (
    dropped_out_tokens,
    dropped_out_by_the_fused_kernel,
    tokens_alone,
    multiplied,
    positions_broadcast,
    positions_of_the_same_shape,
    positions_first_and_in_place,
    positions_counted_from_ids,
    a_table_of_positions,
    three_tables_and_a_norm,
    rows_by_index,
)
