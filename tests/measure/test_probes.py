"""The probes on small modules with and without the faults, and on designs that hide them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import initdiag
from initdiag.measure.probes import LONGEST, awake, probe

VOCAB, WIDTH, HEADS, LENGTH = 97, 32, 4, 40
IDS = torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))


class Attention(nn.Module):
    def __init__(self, position: str, visible: int, bidirectional_until: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.position, self.visible, self.prefix = position, visible, bidirectional_until
        self.table = nn.Parameter(torch.zeros(HEADS, 2 * LENGTH)) if position == "relative" else None
        self.register_buffer("inv_freq", 100.0 ** -(torch.arange(0, 8, 2) / 8))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        steps = torch.arange(length)
        distance = steps[:, None] - steps
        if self.position == "rotary":
            angles = steps[:, None] * self.inv_freq.repeat(2)
            q, k = (z * angles.cos() + torch.cat((-z[..., 4:], z[..., :4]), -1) * angles.sin() for z in (q, k))
        scores = q @ k.transpose(-1, -2) / 8**0.5
        if self.position == "alibi":
            scores = scores - (0.25 ** torch.arange(HEADS)[:, None, None] * distance).to(x)
        if self.table is not None:
            scores = scores + self.table[:, distance.clamp(min=0)]
        hidden = (distance < -self.visible) & (steps >= self.prefix)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Model(nn.Module):
    """Four blocks: pre-norm, post-norm or ReZero."""

    def __init__(self, position: str = "learned", visible: int = 0, prefix: int = 0, placement: str = "pre") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.placement = placement
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(64, WIDTH)
        self.attentions = nn.ModuleList(Attention(position, visible, prefix) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(4))
        self.gates = nn.ParameterList(torch.zeros(()) for _ in range(4)) if placement == "rezero" else None
        self.scale = nn.Parameter(torch.full((WIDTH,), 1e-5)) if placement == "layerscale" else None
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.learned = position == "learned"

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        if self.learned:
            x = x + self.places(torch.arange(ids.shape[1]))
        for layer, (attention, norm) in enumerate(zip(self.attentions, self.norms, strict=True)):
            if self.placement == "post":
                x = norm(x + attention(x))
            elif self.gates is not None:
                x = x + self.gates[layer] * attention(x)
            elif self.scale is not None:
                x = x + self.scale * attention(norm(x))
            else:
                x = x + attention(norm(x))
        return self.head(x)


def probed(model: nn.Module, ids: Tensor = IDS, causal: bool = True):
    return probe(model.eval(), model, ids, VOCAB, causal)


def zero(*parts: str) -> Callable[[Model], None]:
    def damage(model: Model) -> None:
        for name, parameter in model.named_parameters():
            if any(part in name for part in parts):
                nn.init.zeros_(parameter)

    return damage


def zero_query(model: Model) -> None:
    for attention in model.attentions:
        nn.init.zeros_(attention.qkv.weight[:WIDTH])


@pytest.mark.parametrize("placement", ["pre", "post", "rezero", "layerscale"])
@pytest.mark.parametrize("damage", [zero(), zero("out."), zero("head."), zero("out.", "head.", "places")])
def test_a_causal_model_leaks_exactly_nothing_and_one_without_a_mask_much(placement: str, damage) -> None:
    for visible, leaks in ((0, False), (1, True), (99, True)):
        model = Model(placement=placement, visible=visible)
        damage(model)
        leak = probed(model).leak
        assert leak > 1e-2 * (0.02 if placement in ("rezero", "layerscale") else 1) if leaks else leak == 0


def test_the_smallest_leak_of_closed_gates_is_a_hundred_times_what_rounding_may_do() -> None:
    # a gate of 0.02, one visible later token: what LEAK = 1e-4 in rules/signal.py rests on
    assert all(probed(Model(placement=how, visible=1)).leak > 1e-3 for how in ("rezero", "layerscale"))


def test_one_position_of_leak_is_found_at_the_border_alone() -> None:
    seen = []

    def forward(ids: Tensor) -> Tensor:
        seen.append(ids)
        return F.one_hot(ids, VOCAB).float().roll(-1, 1)  # position t shows the token at t + 1

    probe(nn.Linear(1, 1), forward, IDS, VOCAB, True)
    base, later, earlier = seen[0]
    assert base.tolist() == IDS[0, :LONGEST].tolist()
    change = 5
    assert bool((base[:change] == later[:change]).all()) and bool((base[change:] != later[change:]).all())
    assert earlier.tolist() == [*base[:-1].flip(0).tolist(), int(base[-1])]
    assert probe(nn.Linear(1, 1), forward, IDS, VOCAB, True).leak > 1
    assert probe(nn.Linear(1, 1), lambda ids: F.one_hot(ids, VOCAB).float(), IDS, VOCAB, True).leak == 0


@pytest.mark.parametrize("chunk", [2, 3, 4, 8])
def test_a_leak_inside_chunks_is_found(chunk: int) -> None:
    """Bidirectional within chunks of tokens, causal between them: where later tokens begin is a border of none."""
    start = torch.arange(LENGTH) // chunk * chunk

    def forward(ids: Tensor) -> Tensor:
        hot, length = F.one_hot(ids, VOCAB).float(), ids.shape[1]
        sees = torch.arange(length) < (start[:length] + chunk)[:, None]
        return sees.float() @ hot

    assert probe(nn.Linear(1, 1), forward, IDS, VOCAB, True).leak > 0.1


@pytest.mark.parametrize("takes", [LENGTH, 16])
def test_a_forward_that_takes_no_short_rows_is_asked_with_long_ones(takes: int) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(takes, WIDTH)
            self.mix, self.head = Attention("learned", 0, 0), nn.Linear(WIDTH, VOCAB)

        def forward(self, ids: Tensor) -> Tensor:
            x = (self.tokens(ids).unflatten(1, (-1, takes)) + self.places.weight).flatten(1, 2)
            return self.head(x + self.mix(x))

    torch.manual_seed(0)
    measured = initdiag.check(Whole(), vocab_size=VOCAB, overrides=[f"tokens.length={32 if takes == 16 else LENGTH}"])
    found = measured.run.measured.probe
    assert found is not None and found.leak == 0 and found.position > 1e-3


def test_a_prefix_lm_leaks_and_says_whether_it_was_to_be_causal() -> None:
    measured = probed(Model(prefix=LONGEST // 2, visible=0), causal=False)
    assert measured.leak == 0 and not measured.causal  # the prefix ends before the change
    assert probed(Model(prefix=16), causal=False).leak > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("position", ["learned", "rotary", "alibi", "relative"])
def test_every_kind_of_position_moves_the_first_attention(position: str, dtype: torch.dtype) -> None:
    measured = probed(Model(position).to(dtype))
    assert measured.leak == 0
    assert measured.position > 1e-3


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_without_positions_the_first_attention_stays(placement: str) -> None:
    assert probed(Model("none", placement=placement)).position < 1e-6
    model = Model("rotary", placement=placement)
    for attention in model.attentions:
        attention.inv_freq.zero_()
    assert probed(model).position < 1e-6
    with torch.no_grad():
        rows = torch.stack((IDS[0], torch.cat((IDS[0, :-1].flip(0), IDS[0, -1:]))))
        logits = model(rows)[:, -1]
    # which the logits don't show: deeper blocks see order through the mask
    assert float((logits[0] - logits[1]).norm() / logits[0].norm()) > 1e-4


def test_zero_queries_hide_no_rotation() -> None:
    model = Model("rotary")
    for attention in model.attentions:
        nn.init.zeros_(attention.qkv.weight)
    assert probed(model).position > 1e-3
    model = Model("rotary")  # muP zeroes a third of a packed matrix
    with torch.no_grad():
        zero("bias")(model)
        zero_query(model)
    assert probed(model).position > 1e-3


def test_text_that_reads_the_same_both_ways_still_has_an_order() -> None:
    assert probed(Model(), torch.full((1, 24), 5)).position > 1e-3
    assert probed(Model("none"), torch.full((1, 24), 5)).position < 1e-6


def test_what_cannot_be_asked_is_nan() -> None:
    assert all(map(math.isnan, (probed(Model(), IDS[:, :3]).leak, probed(Model(), IDS[:, :3]).position)))
    bag = nn.Sequential(nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB))
    assert probed(bag).leak == 0 and math.isnan(probed(bag).position)
    assert math.isnan(probe(bag, lambda ids: torch.zeros(*ids.shape, VOCAB), IDS, VOCAB, True).leak)


def test_padding_of_the_vocabulary_that_is_masked_is_no_leak() -> None:
    for visible in (0, 99):
        model = Model(visible=visible)
        plain = probed(model).leak
        padded = probe(model, lambda ids, m=model: F.pad(m(ids), (0, 3), value=-math.inf), IDS, VOCAB, True).leak
        assert padded == pytest.approx(plain, rel=1e-6)


def test_parameters_and_random_state_come_back_to_the_bit_also_after_an_error() -> None:
    model = Model("relative", placement="rezero")
    zero("out.", "head.")(model)
    nn.init.constant_(model.tokens.weight, -0.0)  # −0.0 is no zero to the last bit: it is left alone
    model.norms[0].weight.data.fill_(-0.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    versions = {name: parameter._version for name, parameter in model.named_parameters()}
    state = torch.get_rng_state()
    probed(model)

    def fail(ids: Tensor) -> Tensor:
        assert bool(model.head.weight.any()) and bool(model.attentions[0].table.any()) and bool(model.gates[0])
        assert not bool(model.tokens.weight.any())
        raise KeyError("in the middle")

    with pytest.raises(KeyError):
        probe(model, fail, IDS, VOCAB, True)
    for name, value in model.state_dict().items():
        assert torch.equal(value.view(-1).view(torch.int32), before[name].view(-1).view(torch.int32)), name
    assert {name: parameter._version for name, parameter in model.named_parameters()} == versions
    assert torch.equal(torch.get_rng_state(), state)


def test_only_what_shuts_a_path_becomes_noise() -> None:
    model = nn.ParameterDict(
        {
            "drawn": torch.randn(4, 4, generator=torch.Generator().manual_seed(0)),
            "padded": torch.eye(4) - torch.diag(torch.tensor([0.0, 0, 0, 1])),
            "minus": torch.full((3, 4), -0.0),
            "gain": torch.ones(4),
            "wide": torch.zeros(4, 100),
            "gate": torch.zeros(1),
            "scale": torch.full((1, 1, 4), 1e-5),
        }
    )
    before = {name: value.detach().clone() for name, value in model.items()}
    with awake(model):
        changed = {name for name, value in model.items() if not torch.equal(value, before[name])}
        assert torch.equal(model["padded"][:3, :3], torch.eye(3))  # a row and a column of zeros, and nothing else
        assert bool(model["padded"][3].all()) and bool(model["padded"][:, 3].all())
        assert float(model["wide"].data.std()) == pytest.approx(0.1, rel=0.15)  # 400 entries: 3.5 % an error
        assert float(model["scale"].data.min()) >= 0.02 and float(model["scale"].data.max()) <= 0.04
    assert changed == {"wide", "gate", "scale", "padded"}

    assert all(torch.equal(value, before[name]) for name, value in model.items())
    assert bool(model["minus"].signbit().all())
