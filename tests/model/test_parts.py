"""Norms, positions, attention and routing, alone."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from initdiag.model.architecture import Architecture
from initdiag.model.attention import Mix
from initdiag.model.feedforward import Experts, hidden
from initdiag.model.frequencies import alibi_slopes, scaled
from initdiag.model.layers import Norm
from initdiag.model.positions import mask, rotate, rotation, sinusoids
from initdiag.model.sections import RotaryScaling
from tests.model import plain, plain_positions
from tests.small_models import architecture, normals, shaken

LIKE = torch.empty(0)
LLAMA_31 = RotaryScaling(factor=8, low=1, high=4, context=8192)
SHORTER = RotaryScaling(factor=8, low=0.5, high=2, context=24)
SCALINGS = [
    (1e4, None),
    (5e5, None),
    (5e5, LLAMA_31),
    (100.0, SHORTER),
    (1e4, RotaryScaling(kind="linear", factor=8)),
    (1e4, RotaryScaling(kind="yarn", factor=40, context=4096)),  # DeepSeek-V3
    (150_000.0, RotaryScaling(kind="yarn", factor=32, context=4096, rounded=False)),  # gpt-oss
]


@pytest.mark.parametrize(("length", "width"), [(1, 2), (50, 64), (300, 8)])
def test_sinusoids_are_those_of_the_paper(length: int, width: int) -> None:
    # an angle of up to 300 in float32 is off by up to 300 · 2^-24 · a few roundings
    torch.testing.assert_close(
        sinusoids(length, width, LIKE).double(), plain.paper_sinusoids(length, width), rtol=0, atol=1e-4
    )


def rotary(head_dim: int, **fields: object) -> Architecture:
    return architecture(position="rotary", head_dim=head_dim, **fields)


@pytest.mark.parametrize(("base", "scaling"), SCALINGS, ids=str)
@pytest.mark.parametrize(("length", "head_dim"), [(1, 2), (30, 16), (300, 64)])
def test_rotary_turns_complex_numbers(length: int, head_dim: int, base: float, scaling: RotaryScaling | None) -> None:
    x = normals(2, 3, length, head_dim, dtype=torch.float64)
    found = rotate(x, rotation(length, rotary(head_dim, rotary_base=base, rotary_scaling=scaling), x))
    for b in range(2):
        for h in range(3):
            # the largest angle in float32, times the largest feature: 300 · 2^-23 · 4
            torch.testing.assert_close(found[b, h], plain.turned(x[b, h], base, scaling), rtol=0, atol=2e-4)


@pytest.mark.parametrize("dims", [2, 6, 10])
def test_partial_rotary_leaves_the_rest(dims: int) -> None:
    x = normals(1, 1, 20, 10, dtype=torch.float64)
    found = rotate(x, rotation(20, rotary(10, rotary_dims=dims), x))[0, 0]
    assert torch.equal(found[:, dims:], x[0, 0, :, dims:])
    torch.testing.assert_close(found[:, :dims], plain.turned(x[0, 0, :, :dims]), rtol=0, atol=1e-5)
    assert rotate(x, None) is x


def test_layers_with_a_window_may_turn_by_another_base_without_scaling() -> None:
    slower = RotaryScaling(kind="linear", factor=8)
    shape = rotary(8, rotary_base=5e5, rotary_scaling=slower, local_rotary_base=50.0, windows=(4, None))
    local, elsewhere = rotation(9, shape, LIKE, local=True), rotation(9, shape, LIKE)
    for mine, theirs in ((local, rotary(8, rotary_base=50.0)), (elsewhere, rotary(8, rotary_base=5e5))):
        for one, other in zip(mine, rotation(9, theirs, LIKE), strict=True):
            assert torch.equal(one, other) is (mine is local)
    same = rotary(8, rotary_base=5e5, rotary_scaling=slower, windows=(4,))
    for one, other in zip(rotation(9, same, LIKE, local=True), elsewhere, strict=True):
        assert torch.equal(one, other)


def test_rotary_scores_depend_on_distance_alone() -> None:
    q, k = normals(8, dtype=torch.float64), normals(8, seed=1, dtype=torch.float64)
    turn = rotation(40, rotary(8), q)
    queries, keys = (rotate(x.expand(1, 1, 40, 8), turn)[0, 0] for x in (q, k))
    scores = queries @ keys.T
    for distance in (0, 1, 7):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-5)
    assert float(scores.std()) > 0.1


def test_the_scaling_of_llama_by_hand() -> None:
    """8192 tokens: 10, 4, 2.5, 1 and 0.5 turns; from 4 on nothing changes, up to 1 all of it, 2.5 is half way."""
    turns = torch.tensor([10.0, 4.0, 2.5, 1.0, 0.5], dtype=torch.float64)
    unscaled = turns * 2 * math.pi / 8192
    ratio = torch.tensor(scaled(unscaled.tolist(), LLAMA_31, 5e5), dtype=torch.float64) / unscaled
    expected = torch.tensor([1, 1, 9 / 16, 1 / 8, 1 / 8], dtype=torch.float64)
    torch.testing.assert_close(ratio, expected, rtol=0, atol=1e-12)


def test_linear_scaling_by_hand() -> None:
    found = scaled([1.0, 0.01], RotaryScaling(kind="linear", factor=8), 1e4)
    assert found == pytest.approx([0.125, 0.00125], rel=1e-12)


@pytest.mark.parametrize("rounded", [True, False])
def test_the_scaling_of_yarn_by_hand(rounded: bool) -> None:
    """Base 10^4, 8 pairs: pair j turns 1024 / 2π · 10^(−j/2) times, 162.97, 51.54, 16.30, 5.15, 1.63, 0.515, …

    32 turns lie at pair log10(162.97 / 32) · 2 = 1.414, 1 turn at log10(162.97) · 2 = 4.424: whole pairs are 1 and 5.
    """
    scaling = RotaryScaling(kind="yarn", factor=4, context=1024, rounded=rounded)
    unscaled = torch.tensor([10 ** (-j / 2) for j in range(8)], dtype=torch.float64)
    first, last = (1.0, 5.0) if rounded else (1.4140, 4.4243)
    share = [min(max((last - j) / (last - first), 0), 1) for j in range(8)]  # of the old frequency
    expected = torch.tensor([kept + (1 - kept) / 4 for kept in share], dtype=torch.float64)
    found = torch.tensor(scaled(unscaled.tolist(), scaling, 1e4), dtype=torch.float64)
    torch.testing.assert_close(found / unscaled, expected, rtol=0, atol=5e-5)  # borders to four digits
    assert share[:2] == [1, 1]
    assert share[5:] == [0, 0, 0]


def test_the_slopes_of_alibi() -> None:
    """Those of the paper for 8 heads; of BLOOM-sized 12: those of 8, then every other one of 16."""
    halves = [2.0**-k for k in range(1, 9)]
    assert alibi_slopes(8) == halves
    twelve = alibi_slopes(12)
    assert twelve == pytest.approx([*halves, 2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], rel=1e-15)


@pytest.mark.parametrize("heads", [*range(1, 34), 71, 112])
def test_the_slopes_of_alibi_are_its_authors(heads: int) -> None:
    found = alibi_slopes(heads)
    assert found == pytest.approx(plain_positions.slopes(heads), rel=1e-12)


def test_masks() -> None:
    no = -math.inf
    assert mask(5, architecture(), None, LIKE) is None
    assert mask(5, architecture(), 5, LIKE) is None  # it sees all there is
    two = mask(4, architecture(), 2, LIKE)
    assert two is not None
    assert two.tolist() == [[0, no, no, no], [0, 0, no, no], [no, 0, 0, no], [no, no, 0, 0]]
    alibi = architecture(position="alibi", n_heads=2)  # slopes 1/16 and 1/256
    falling = mask(3, alibi, None, LIKE)
    assert falling is not None
    assert falling[0].tolist() == [[0, no, no], [-1 / 16, 0, no], [-2 / 16, -1 / 16, 0]]
    assert falling[1].tolist() == [[0, no, no], [-1 / 256, 0, no], [-2 / 256, -1 / 256, 0]]
    narrow = mask(3, alibi, 2, LIKE)
    assert narrow is not None
    assert narrow[0].tolist() == [[0, no, no], [-1 / 16, 0, no], [no, -1 / 16, 0]]


@torch.no_grad()
def test_a_sink_takes_its_part_of_the_attention() -> None:
    """Equal logits of 0 and a sink of ln 2: token t gives 1/(t + 3) to each of t + 1 tokens, 2/(t + 3) to none."""
    mix = Mix(architecture(n_heads=1, attention_sinks=True))
    assert mix.sinks is not None
    mix.sinks.weight.fill_(math.log(2))
    q, v = torch.zeros(1, 1, 3, 32), torch.ones(1, 1, 3, 32)
    torch.testing.assert_close(mix(q, q, v, None)[0, :, 0], torch.tensor([1 / 3, 2 / 4, 3 / 5]))


@torch.no_grad()
def test_a_softcap_comes_before_the_mask_and_the_softmax() -> None:
    """Logits 0 and 100 with cap 1 are 0 and tanh(100) = 1; a later token is hidden nevertheless."""
    mix = Mix(architecture(n_heads=1, head_dim=1, attention_scale=100.0, attention_softcap=1.0))
    q = torch.ones(1, 1, 3, 1)
    k = torch.tensor([0.0, 1.0, 0.0]).view(1, 1, 3, 1)
    expected = torch.tensor([0.0, math.e / (1 + math.e), math.e / (2 + math.e)])
    torch.testing.assert_close(mix(q, k, k, None)[0, :, 0], expected)


@pytest.mark.parametrize("eps", [1e-5, 0.5])
@torch.no_grad()
def test_norms_are_pytorchs(eps: float) -> None:
    x = 3 + 2 * normals(4, 7, 32)
    for fields, theirs in (
        ({}, nn.LayerNorm(32, eps)),
        ({"biases": False}, nn.LayerNorm(32, eps, bias=False)),
        ({"norm_scale": "none"}, nn.LayerNorm(32, eps, elementwise_affine=False)),
        ({"norm": "rmsnorm"}, nn.RMSNorm(32, eps)),
        ({"norm": "rmsnorm", "norm_scale": "none"}, nn.RMSNorm(32, eps, elementwise_affine=False)),
    ):
        mine = shaken(Norm(architecture(eps=eps, **fields), 32))
        theirs.load_state_dict(mine.state_dict())
        torch.testing.assert_close(mine(x), theirs(x))


@pytest.mark.parametrize(("scale", "one"), [("learned", 0.0), ("one_plus", 1.0)])
@torch.no_grad()
def test_norms_by_hand(scale: str, one: float) -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 6.0]])  # mean 3, variance (4 + 1 + 0 + 9) / 4 = 3.5, mean square 12.5
    layer_norm = Norm(architecture(eps=0.5, norm_scale=scale), 4)
    rms_norm = Norm(architecture(eps=0.5, norm_scale=scale, norm="rmsnorm"), 4)
    state = {"weight": torch.tensor([1.0, 2.0, 3.0, 4.0]) - one, "bias": torch.full((4,), 10.0)}
    layer_norm.load_state_dict(state)
    rms_norm.load_state_dict({"weight": torch.full((4,), 2.0) - one})
    torch.testing.assert_close(layer_norm(x), torch.tensor([[9.0, 9.0, 10.0, 16.0]]))  # ÷ √(3.5 + 0.5) = 2
    torch.testing.assert_close(rms_norm(x), 2 * x / 13**0.5)


def test_the_clamped_gate_by_hand() -> None:
    """gpt-oss: gate 9 is cut at 7, value −9 at −7, then +1; act(u) = u · sigmoid(1.702 u)."""
    shape = architecture(gated=True, gate_limit=7.0, activation="quick_gelu")
    gate, value = torch.tensor([9.0, 1.0, -9.0]), torch.tensor([-9.0, 9.0, 2.0])
    act = [u / (1 + math.exp(-1.702 * u)) for u in (7.0, 1.0, -9.0)]
    torch.testing.assert_close(hidden(shape, gate, value), torch.tensor([act[0] * -6, act[1] * 8, act[2] * 3]))


ROUTES: list[tuple[dict[str, object], dict[int, float]]] = [  # scores e^logit: 1, 2, 3, 4, their sum 10
    ({}, {3: 4 / 7, 2: 3 / 7}),
    ({"normalized": False}, {3: 0.4, 2: 0.3}),
    ({"route_scale": 2.5}, {3: 10 / 7, 2: 7.5 / 7}),
    ({"score": "sigmoid", "normalized": False}, {3: 4 / 5, 2: 3 / 4}),
    ({"score": "sigmoid"}, {3: 0.8 / 1.55, 2: 0.75 / 1.55}),
    ({"top_k": 1}, {3: 1.0}),
]


@pytest.mark.parametrize(("fields", "expected"), ROUTES, ids=str)
@torch.no_grad()
def test_routing_by_hand(fields: dict[str, object], expected: dict[int, float]) -> None:
    experts = Experts(architecture(moe={"experts": 4, "top_k": 2, **fields}))
    scores, chosen = experts._route(torch.tensor([[1.0, 2.0, 3.0, 4.0]]).log())
    found = dict(zip(chosen[0].tolist(), scores[0].tolist(), strict=True))
    assert found == pytest.approx(expected, rel=1e-6)


@torch.no_grad()
def test_groups_by_hand() -> None:
    """Groups {0.9, 0.1}, {0.6, 0.5}, {0.3, 0.2}: by their two best the second comes first, and no best score counts."""
    experts = Experts(
        architecture(moe={"experts": 6, "top_k": 2, "groups": 3, "score": "sigmoid", "normalized": False})
    )
    wanted = torch.tensor([[0.9, 0.1, 0.6, 0.5, 0.3, 0.2]])
    scores, chosen = experts._route(torch.logit(wanted))
    assert chosen.tolist() == [[2, 3]]
    torch.testing.assert_close(scores, torch.tensor([[0.6, 0.5]]))


@pytest.mark.parametrize("top_groups", [2, 1])
@torch.no_grad()
def test_a_choice_bias_counts_for_the_choice_alone(top_groups: int) -> None:
    """Scores 0.8, 0.7 and 0.2, 0.1; all are pushed below zero, the second group the least: 0 is no score among them."""
    moe = {"experts": 4, "top_k": 2, "groups": 2, "top_groups": top_groups, "score": "sigmoid", "choice_bias": True}
    experts = Experts(architecture(moe=moe | {"normalized": False}))
    experts.choice.load_state_dict({"bias": torch.tensor([-2.0, -2.0, -0.3, -0.4])})
    scores, chosen = experts._route(torch.logit(torch.tensor([[0.8, 0.7, 0.2, 0.1]])))
    assert chosen.tolist() == [[2, 3]]
    torch.testing.assert_close(scores, torch.tensor([[0.2, 0.1]]))
