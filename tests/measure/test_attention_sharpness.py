"""Std and entropy of attention, against a full softmax by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from initdiag.measure.attention import QUERIES, sharpness
from initdiag.measure.observe import observe
from initdiag.model import Architecture
from initdiag.trace import FusedAttention, SoftmaxAttention
from tests.model import plain
from tests.model.plain_positions import slopes
from tests.model.plain_tokens import Named, capped
from tests.small_models import WIRINGS, drawn, normals, shaken, subject, tokens


def by_hand(scores: Tensor) -> tuple[float, float]:
    """Std and entropy ratio over the visible keys, query by query; scores (B, H, T, S), −inf where hidden."""
    stds, ratios = [], []
    for row in scores.double()[..., -QUERIES:, :].flatten(0, 2):
        seen = row[row > -math.inf]
        if len(seen) > 1:
            p = (seen - seen.max()).exp() / (seen - seen.max()).exp().sum()
            stds.append(float(((seen - seen.mean()) ** 2).mean().sqrt()))
            ratios.append(-math.fsum(q * math.log(q) for q in p.tolist() if q > 0) / math.log(len(seen)))
    return math.fsum(stds) / len(stds), math.fsum(ratios) / len(ratios)


def scores_of(query: Tensor, key: Tensor, scale: float, causal: bool) -> Tensor:
    share = query.shape[1] // key.shape[1]
    heads = [query[:, h] @ key[:, h // share].transpose(1, 2) * scale for h in range(query.shape[1])]
    scores = torch.stack(heads, dim=1)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf) if causal else scores


def assert_sharpness(found: tuple[float, float], expected: tuple[float, float], rel: float = 1e-5) -> None:
    assert found == pytest.approx(expected, rel=rel, abs=1e-7)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("length", [2, 5, QUERIES, QUERIES + 1, 100])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_fused(length: int, kv_heads: int, causal: bool, spread: float) -> None:
    query, key = spread * normals(2, 4, length, 8), normals(2, kv_heads, length, 8, seed=1)
    attention = FusedAttention(query, key, causal, 0.3, None, "q.weight")
    assert_sharpness(sharpness(attention), by_hand(scores_of(query, key, 0.3, causal)))


@pytest.mark.parametrize("length", [5, 50])
@pytest.mark.parametrize("lowest", [-math.inf, torch.finfo(torch.float32).min])
def test_plain(length: int, lowest: float) -> None:
    scores = normals(2, 3, length, length)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    found = sharpness(SoftmaxAttention(scores.masked_fill(hidden, lowest), None))
    assert_sharpness(found, by_hand(scores.masked_fill(hidden, -math.inf)))


@pytest.mark.parametrize("boolean", [True, False])
def test_masks_of_fused_attention(boolean: bool) -> None:
    query, key = normals(2, 4, 9, 8), normals(2, 4, 9, 8, seed=1)
    seen = normals(2, 1, 9, 9, seed=2) > -0.5
    seen[0, 0, 3] = False  # one query that sees nothing
    mask = seen if boolean else torch.zeros(2, 1, 9, 9).masked_fill(~seen, -math.inf)
    found = sharpness(FusedAttention(query, key, False, 1.0, mask, None))
    scores = scores_of(query, key, 1.0, causal=False).masked_fill(~seen, -math.inf)
    assert_sharpness(found, by_hand(scores))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    query, key = normals(1, 2, 40, 8).to(dtype), normals(1, 2, 40, 8, seed=1).to(dtype)
    found = sharpness(FusedAttention(query, key, True, 1.0, None, None))
    assert_sharpness(found, by_hand(scores_of(query.double(), key.double(), 1.0, causal=True)))


def test_a_single_key_says_nothing() -> None:
    query = normals(2, 4, 1, 8)
    for attention in (FusedAttention(query, query, True, 1.0, None, None), SoftmaxAttention(normals(2, 4, 1, 1), None)):
        logit_std, entropy_ratio = sharpness(attention)
        assert math.isnan(logit_std)
        assert math.isnan(entropy_ratio)


@pytest.mark.parametrize("causal", [True, False])
def test_uniform_attention_has_ratio_one(causal: bool) -> None:
    query = torch.zeros(1, 2, 50, 4)
    logit_std, entropy_ratio = sharpness(FusedAttention(query, query, causal, 1.0, None, None))
    assert logit_std == 0
    assert entropy_ratio == pytest.approx(1, abs=1e-6)


def test_one_hot_attention_has_ratio_zero() -> None:
    identity = 100.0 * torch.eye(16).expand(1, 1, 16, 16)  # every query looks at itself, 10,000 above the others
    logit_std, entropy_ratio = sharpness(FusedAttention(identity, identity, False, 1.0, None, None))
    assert entropy_ratio == pytest.approx(0, abs=1e-6)
    assert logit_std == pytest.approx(1e4 * math.sqrt(15) / 16, rel=1e-6)  # one of 16 is 1e4: √(p(1 − p))


def test_not_a_number_is_not_hidden() -> None:
    query = normals(1, 1, 8, 4)
    query[0, 0, 7, 0] = math.nan
    assert all(map(math.isnan, sharpness(FusedAttention(query, query, True, 1.0, None, None))))


SCALES = {"gemma 2": 1 / math.sqrt(11)}  # others divide by √head_dim


def scores_of_layer(shape: Architecture, w: Named, layer: int, x: Tensor, scale: float) -> Tensor:
    """What the softmax of a layer that reads x (T, d_model) gets: (H, T, T), −inf where hidden; a sink is one key more.

    Queries and keys are those of the plain implementation, which knows no module; masks and scales are written here.
    """
    found = []
    window = plain.window_of(shape, layer) or len(x)
    ago = torch.arange(len(x))[:, None] - torch.arange(len(x))
    heads = plain.latent_heads if shape.mla else plain.plain_heads
    for head, (query, key, _) in enumerate(heads(shape, w, layer, x)):
        scores = query @ key.T * scale
        if shape.attention_softcap is not None:
            scores = capped(scores, shape.attention_softcap)
        if shape.position == "alibi":
            scores = scores - slopes(shape.n_heads)[head] * ago
        scores = scores.masked_fill((ago < 0) | (ago >= window), -math.inf)
        if shape.attention_sinks:
            sink = w[f"blocks.{layer}.attention.mix.sinks.weight"][head].expand(len(x), 1)
            scores = torch.cat((scores, sink), dim=1)
        found.append(scores)
    return torch.stack(found)


@pytest.mark.parametrize("wiring", WIRINGS)
@torch.no_grad()
def test_models_beside_hooks_on_what_their_attention_reads(wiring: str) -> None:
    of = subject("default", **{**WIRINGS[wiring], "context": 40})
    module, batch, shape = shaken(drawn(of, dtype="float64")), tokens(of), of.architecture
    seen: dict[str, Tensor] = {}
    for name, part in module.named_modules():
        if name.endswith(".attention"):

            def keep(m: nn.Module, args: tuple[Tensor, ...], name: str = name) -> None:
                seen[name] = args[0]

            part.register_forward_pre_hook(keep)
    found = observe(of, module, batch).attention
    assert [(at.name, at.layer) for at in found] == [(f"blocks.{i}.attention", i) for i in range(3)]
    weights, scale = dict(module.named_parameters()), SCALES.get(wiring, 1 / math.sqrt(shape.head_dim))
    for layer, at in enumerate(found):
        scores = torch.stack([scores_of_layer(shape, weights, layer, x, scale) for x in seen[at.name]])
        assert_sharpness((at.logit_std, at.entropy_ratio), by_hand(scores), 1e-10)
