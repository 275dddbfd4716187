"""Drawn packed matrices: each part for itself, where it belongs, with both engines, and what INIT001 makes of them.

Two parts of q, k and v have one std in most schemes; that of the third is told by its own rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, MixtralConfig
from transformers.pytorch_utils import Conv1D

from initdiag import Settings, check
from initdiag.engines import draw as drawing
from initdiag.engines import weightless
from initdiag.engines.draw import draw
from initdiag.errors import RunError
from initdiag.report import Run
from initdiag.schemes import SCHEMES, InitPlan, Normal, Parameter, Part, PlannedParameter, Role, Uniform, make_plan
from initdiag.schemes.distributions import Distribution, Orthogonal, Packed, Piece, Truncated
from initdiag.weightless.budget import Budget
from tests.sampling import assert_follows, assert_mean, assert_near, assert_std, normal_cdf, uniform_cdf

Q, K, V = Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE
WEIGHTLESS = Settings(engine="weightless", threads=1)
DENSE = Settings(engine="dense", threads=1)
SHORT = ("tokens.batch=1", "tokens.length=16")

THIRDS = ((0, 96),), ((96, 192),), ((192, 288),)
BY_HEAD = tuple(tuple((at + 72 * head, at + 72 * head + 24) for head in range(4)) for at in (0, 24, 48))  # BLOOM, NeoX


def packed(rows: tuple[Any, ...], axis: int = -2, *laws: Distribution) -> Packed:
    laws = laws or (Normal(0.5), Uniform(0.1), Normal(2.0))
    return Packed(tuple(Piece(role, at, law) for role, at, law in zip((Q, K, V), rows, laws, strict=True)), axis)


def drawn(law: Distribution, *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    entry = PlannedParameter(Parameter("qkv.weight", shape, Q, 64), law, law.std)
    tensors = {"qkv.weight": torch.full(shape, math.nan, dtype=dtype)}
    draw(tensors, InitPlan("mine", {}, (entry,)), seed, threads=1)
    return tensors["qkv.weight"]


def rows_of(x: Tensor, rows: tuple[tuple[int, int], ...], axis: int = -2) -> Tensor:
    return torch.cat([x.narrow(axis, start, stop - start) for start, stop in rows], dim=axis)


@pytest.mark.parametrize("rows", [THIRDS, BY_HEAD], ids=["thirds", "by head"])
@pytest.mark.parametrize(("shape", "axis"), [((288, 64), -2), ((64, 288), -1), ((3, 288, 64), -2), ((288, 64, 1), -3)])
def test_every_part_is_drawn_from_its_own_law_in_its_own_place(
    rows: tuple[Any, ...], shape: tuple[int, ...], axis: int
) -> None:
    x = drawn(packed(rows, axis), *shape)
    assert bool(x.isfinite().all())
    query, key, value = (rows_of(x, at, axis) for at in rows)
    assert_follows(query, normal_cdf(0.5))
    assert_follows(key, uniform_cdf(0.1))
    assert_follows(value, normal_cdf(2.0))
    assert_std(x, packed(rows, axis).std, packed(rows, axis).kurtosis)
    assert_mean(x, 0.0, packed(rows, axis).std)
    for start, stop in rows[1]:  # each head's keys and no others are within the bound
        assert float(x.narrow(axis, start, stop - start).abs().max()) <= 0.1 * (1 + 1e-6)


def test_parts_and_experts_are_independent() -> None:
    """Correlations of n products have the standard error 1/√n."""
    x = drawn(packed(THIRDS, -2, Normal(1.0), Normal(1.0), Normal(1.0)), 2, 288, 64)
    blocks = [expert[start:stop].flatten() for expert in x for ((start, stop),) in THIRDS]
    for at, a in enumerate(blocks):
        for b in blocks[:at]:
            assert_near(float((a * b).mean()), 0.0, 1 / math.sqrt(96 * 64), "correlation")


def test_orthogonal_parts_are_orthogonal_each_for_itself() -> None:
    x = drawn(packed(BY_HEAD, -1, Orthogonal(2.0, 96), Normal(0.1), Orthogonal(1.0, 96)), 64, 288).double()
    for rows, gain in ((BY_HEAD[0], 2.0), (BY_HEAD[2], 1.0)):
        part = rows_of(x, rows, -1)  # (64, 96)
        torch.testing.assert_close(part @ part.T, gain**2 * torch.eye(64, dtype=torch.float64), rtol=0, atol=1e-5)


def test_the_same_whatever_dtype_threads_or_layout() -> None:
    law = packed(BY_HEAD, -2, Normal(0.5), Truncated(1.0, 2.0), Uniform(1.0))
    x = drawn(law, 288, 64)
    assert bool((drawn(law, 288, 64, dtype=torch.bfloat16) == x.bfloat16()).all())
    assert not bool((drawn(law, 288, 64, seed=1) == x).any())
    memory = torch.empty(64, 288).T
    entry = PlannedParameter(Parameter("qkv.weight", (288, 64), Q, 64), law, law.std)
    draw({"qkv.weight": memory}, InitPlan("mine", {}, (entry,)), 0, threads=2)
    assert bool((memory == x).all())


# --- modules


class Block(nn.Module):
    def __init__(self, width: int, heads: int, kind: str) -> None:
        super().__init__()
        self.heads, self.norms = heads, nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv = Conv1D(3 * width, width) if kind == "columns" else nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        query, key, value = (one.unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in heads)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class GPT(nn.Module):
    def __init__(self, kind: str = "rows", width: int = 512, layers: int = 2) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(256, width), nn.LayerNorm(width)
        self.h = nn.ModuleList(Block(width, 8, kind) for _ in range(layers))
        self.head = nn.Linear(width, 256, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def run(build: Callable[[], nn.Module] | nn.Module, scheme: str, settings: Settings, seed: int = 0) -> Run:
    return check(build, scheme=scheme, settings=settings, overrides=SHORT, seed=seed).run


@pytest.mark.parametrize("kind", ["rows", "columns"])
def test_both_engines_draw_them_alike(kind: str) -> None:
    """Attention logits and branches: at 512 wide a branch varies by √(2/512) and what its one query vector is.

    Attention branches of 16 tokens, which are averages of 16 values or fewer, vary by √(2/512) for each; the mean of
    their logarithms over 3 seeds and 2 layers is compared, with 5 standard errors of twice that.
    """
    found: dict[str, list[float]] = {"dense": [], "weightless": []}
    sharp: dict[str, list[float]] = {"dense": [], "weightless": []}
    for settings in (DENSE, WEIGHTLESS):
        for seed in range(3):
            one = run(lambda: GPT(kind), "t5", settings, seed)
            measured = one.measured
            found[one.engine] += [math.log(at.branch_variance) for at in measured.residual.branches[::2]]
            sharp[one.engine] += [math.log(at.logit_std) for at in measured.attention]
    for numbers in (found, sharp):
        dense, less = (torch.tensor(numbers[engine]) for engine in ("dense", "weightless"))
        error = 2 * math.sqrt(2 / 512) * math.sqrt(2 / 6)
        assert_near(float(less.mean()), float(dense.mean()), error, "mean of logarithms")


def test_columns_are_made_real_and_said_to_be() -> None:
    rows, columns = (run(lambda kind=kind: GPT(kind), "t5", WEIGHTLESS) for kind in ("rows", "columns"))
    assert rows.notes is not None
    assert columns.notes is not None
    assert rows.notes.made_real == ()
    because = "its columns are drawn differently"
    assert columns.notes.made_real == (("h.0.qkv.weight", because), ("h.1.qkv.weight", because))
    weights = {one.name: one for one in columns.measured.parameters}
    assert weights["h.0.qkv.weight"].drawn
    law = {one.name: one for one in rows.measured.parameters}["h.0.qkv.weight"]
    assert not law.drawn
    assert law.std == pytest.approx(math.sqrt((1 / 64 + 1 + 1) / 3 / 512))


def test_alike_columns_stay_without_entries() -> None:
    found = run(lambda: GPT("columns"), "scaled", WEIGHTLESS)
    assert found.notes is not None
    assert found.notes.made_real == ()


def test_room_for_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """512 × 1536 of float32 are 3 MiB, and as much again for the parts while they are drawn; no QR decomposition."""
    monkeypatch.setattr(weightless, "budget", lambda: Budget(9 * 2**20))  # 6 for the second, when 3 are taken
    assert run(lambda: GPT("columns"), "t5", WEIGHTLESS).notes is not None
    monkeypatch.setattr(weightless, "budget", lambda: Budget(9 * 2**20 - 1))
    with pytest.raises(RunError, match=r"'h\.1\.qkv\.weight' has to be drawn, since its columns are drawn differently"):
        run(lambda: GPT("columns"), "t5", WEIGHTLESS)


# --- INIT001


def off_plan(run: Run) -> list[str]:
    return [finding.message for finding in run.findings if finding.rule == "INIT001"]


SMALL: dict[str, Any] = {"vocab_size": 211, "num_hidden_layers": 2, "hidden_size": 48, "max_position_embeddings": 64}
MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: GPT2Config(
        vocab_size=211, n_layer=2, n_positions=64, n_embd=48, n_head=3, bos_token_id=0, eos_token_id=0
    ),
    "neox": lambda: GPTNeoXConfig(**SMALL, num_attention_heads=3, intermediate_size=100),
    "mixtral": lambda: MixtralConfig(
        **SMALL, num_attention_heads=6, num_key_value_heads=2, intermediate_size=100, num_local_experts=4
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_false_alarm_on_drawn_models(name: str) -> None:
    """Each check has a false-alarm rate below 6e-7 for each of some 30 parameters."""
    torch.manual_seed(0)
    module = AutoModelForCausalLM.from_config(MODELS[name]())
    for scheme in ("t5", "deepnorm", "mup", "xavier-uniform", "orthogonal", "torchtitan"):
        found = run(module, scheme, DENSE)
        assert off_plan(found) == [], scheme
        kinds = {type(entry.distribution) for entry in found.subject.plan.entries}
        wanted = {"mixtral": ("orthogonal", "torchtitan")}.get(name, ("t5", "deepnorm", "mup", "orthogonal"))
        assert (Packed in kinds) == (scheme in wanted), scheme


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_part_that_is_off_is_found(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepNorm's stds are alike but for (8N)^-1/4 = 1/2 of the values: 1.3 times one of them is 5 to 12 % of all."""
    whole = drawing._fill

    def wrong(tensor: Tensor, law: Distribution, seed: int, name: str) -> None:
        whole(tensor, law, seed, name)
        if name.endswith(f"qkv.weight/{part}"):
            tensor *= 1.3

    assert off_plan(run(GPT(width=64), "deepnorm", DENSE)) == []
    monkeypatch.setattr(drawing, "_fill", wrong)
    (message,) = off_plan(run(GPT(width=64), "deepnorm", DENSE))
    assert message.startswith("h.")
    assert "and 1 more of role attention_query: std" in message


def test_a_plan_and_its_tensors() -> None:
    """From a scheme to rows: q, k, v of T5 in BLOOM's order."""
    parts = tuple(Part(role, rows) for role, rows in zip((Q, K, V), BY_HEAD, strict=True))
    parameter = Parameter("qkv.weight", (288, 64), Q, 64, 0, parts=parts)
    law = make_plan(SCHEMES["t5"], [parameter], {"head_dim": 24.0, "tied": 1.0, "d_model": 64.0})["qkv.weight"]
    x = drawn(law.distribution, 288, 64)
    for rows, std in zip(BY_HEAD, (1 / math.sqrt(64 * 24), 1 / 8, 1 / 8), strict=True):
        assert_std(rows_of(x, rows), std)
    assert replace(law).distribution.std == pytest.approx(math.sqrt((1 / 24 + 2) / 3) / 8)
