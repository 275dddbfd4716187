"""The tracer finds what hand-written modules add to their stream, however they write it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initdiag.trace import Addition, Attention, FusedAttention, SoftmaxAttention, Tracer
from tests.trace import hand_written as by_hand
from tests.trace.hand_written import HEADS, VOCAB, D, FeedForward, Mixer, Model, T


def traced(model: nn.Module, ids: Tensor) -> tuple[list[tuple[Any, ...]], list[Attention]]:
    additions: list[tuple[Any, ...]] = []
    attentions: list[Attention] = []

    def on_addition(found: Addition) -> None:
        values = (found.before, found.branch, found.after)
        additions.append((found.kind, found.projection, *(value.clone() for value in values)))

    with torch.no_grad(), torch.random.fork_rng(), Tracer(model, ids, on_addition, attentions.append):
        model(ids)
    return additions, attentions


def some_ids() -> Tensor:
    return torch.randint(VOCAB, (2, T), generator=torch.Generator().manual_seed(0))


def assert_found(model: Model) -> list[Attention]:
    """Compare what the tracer saw with what the model noted, bit by bit."""
    additions, attentions = traced(model, some_ids())
    assert [a[:2] for a in additions] == [t[:2] for t in model.truth]
    assert len(model.truth) == 4
    for found, true in zip(additions, model.truth, strict=True):
        for name, mine, theirs in zip(("before", "branch", "after"), found[2:], true[2:], strict=True):
            assert torch.equal(mine, theirs), f"{name} of {found[1]} is another tensor"
    return attentions


@pytest.fixture(autouse=True)
def seeded() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("join", by_hand.JOINS)
def test_every_way_to_add_a_branch(join: Callable[..., Tensor]) -> None:
    assert_found(Model(join=join))


@pytest.mark.parametrize("embed", by_hand.EMBEDS)
@pytest.mark.parametrize("join", [by_hand.pre_norm, by_hand.post_norm])
def test_embeddings_are_no_branches(embed: Callable[..., Tensor], join: Callable[..., Tensor]) -> None:
    assert_found(Model(embed=embed, join=join))


MIXERS = {
    "plain": partial(Mixer),
    "fused": partial(Mixer, fused=True),
    "added mask": partial(Mixer, added_mask=True),
    "rotary": partial(Mixer, rotary=True),
    "fused rotary": partial(Mixer, fused=True, rotary=True),
}


@pytest.mark.parametrize("mixer", MIXERS)
def test_sums_inside_attention_are_no_branches(mixer: str) -> None:
    attentions = assert_found(Model(mixer=MIXERS[mixer]))
    assert len(attentions) == 2
    kind = FusedAttention if "fused" in mixer else SoftmaxAttention
    for layer, attention in enumerate(attentions):
        assert isinstance(attention, kind)
        assert attention.source == f"layers.{layer}.attn.f.qkv.weight"
        if isinstance(attention, FusedAttention):
            assert attention.query.shape == attention.key.shape == (2, HEADS, T, D // HEADS)
            assert attention.causal
            assert attention.scale == 0.5  # 1/√4
        else:
            assert attention.logits.shape == (2, HEADS, T, T)


def test_gelu_by_hand_is_no_branch() -> None:
    assert_found(Model(mlp=partial(FeedForward, by_hand.gelu_by_hand)))


NORMS = [by_hand.RMSNormByHand, by_hand.LayerNormByHand, by_hand.AnnotatedNorm, partial(nn.RMSNorm, D)]


@pytest.mark.parametrize("norm", NORMS, ids=["rms", "layer", "annotated", "nn.RMSNorm"])
@pytest.mark.parametrize("join", [by_hand.pre_norm, by_hand.post_norm, by_hand.sandwich_norm])
def test_norms_by_hand(norm: Callable[[], nn.Module], join: Callable[..., Tensor]) -> None:
    assert_found(Model(norm=norm, join=join))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(D, 40), nn.Linear(D, 40), nn.Linear(40, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Bottleneck(nn.Module):
    """An MLP with a skip of its own inside: off the stream, so no branch."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.inner, self.down = nn.Linear(D, 40), nn.Linear(40, 40), nn.Linear(40, D)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(x)
        hidden = hidden + self.inner(F.relu(hidden))
        return self.down(F.relu(hidden))


class Multiplier(FeedForward):
    """Squeeze and excite: the stream times what was made of it has left the stream."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(super().forward(x))


@pytest.mark.parametrize("mlp", [Gated, Bottleneck, Multiplier])
def test_other_mlps(mlp: Callable[[], nn.Module]) -> None:
    assert_found(Model(mlp=mlp))


class Einsum(FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.einsum("btd,fd->btf", x, self.up.weight) + self.up.bias
        return torch.einsum("btf,df->btd", F.gelu(hidden), self.down.weight) + self.down.bias


class MatMul(FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(x @ self.up.weight.T + self.up.bias) @ self.down.weight.T + self.down.bias


class ByDimension(FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, D)
        hidden = F.gelu(torch.addmm(self.up.bias, flat, self.up.weight.t()))
        return torch.mm(hidden, self.down.weight.t()).add(self.down.bias).view_as(x)


@pytest.mark.parametrize("mlp", [Einsum, MatMul, ByDimension])
def test_products_that_no_module_makes(mlp: Callable[[], nn.Module]) -> None:
    assert_found(Model(mlp=mlp))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("mixer", ["fused", "plain"])
def test_other_dtypes(dtype: torch.dtype, mixer: str) -> None:
    assert_found(Model(mixer=MIXERS[mixer]).to(dtype))


def test_a_module_without_a_stream_has_no_branches() -> None:
    class Chain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.a, self.b = nn.Embedding(VOCAB, D), nn.Linear(D, D), nn.Linear(D, D)

        def forward(self, ids: Tensor) -> Tensor:
            a = self.a(self.tok(ids))
            return a + self.b(torch.tanh(a))

    assert traced(Chain(), some_ids()) == ([], [])


def test_a_constant_added_to_the_stream_is_no_branch() -> None:
    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.shift = nn.Embedding(VOCAB, D), nn.Parameter(torch.ones(2, T, D))

        def forward(self, ids: Tensor) -> Tensor:
            return self.tok(ids) + self.shift + torch.ones(2, T, D)

    assert traced(Shifted(), some_ids()) == ([], [])


def test_a_linear_branch_is_of_kind_other() -> None:
    class One(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tok, self.map = nn.Embedding(VOCAB, D), nn.Linear(D, D)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.tok(ids)
            return x + self.map(x)

    additions, _ = traced(One(), some_ids())
    assert [found[:2] for found in additions] == [("other", "map.weight")]
