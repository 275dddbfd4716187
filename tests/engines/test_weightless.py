"""The weightless engine from the outside: closed forms at full width, determinism, what it leaves as it was, memory."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from initdiag import Settings, Subject, check
from initdiag.engines import weightless
from initdiag.errors import RunError, UsageError
from initdiag.measure import Measurements
from initdiag.report import Report, Run
from initdiag.report.document import document
from initdiag.subjects import lean
from initdiag.weightless.budget import Budget
from tests.sampling import assert_near, assert_relative

WEIGHTLESS = Settings(engine="weightless", threads=1)
SHORT = ("tokens.batch=1", "tokens.length=16")

# --- closed forms at the widths of Llama 3.1 405B

V, D, D_FF, D_KV, STD, EPS = 128_256, 16_384, 53_248, 1_024, 0.02, 1e-5
ALONE = ("tokens.batch=64", "tokens.length=1")  # a position that sees itself only: attention hands its value on
N = 64


def mean_of_gaussian(f: Callable[[float], float], variance: float) -> float:
    """E[f(g)] for g ~ N(0, variance), by the trapezoidal rule from −10 to 10 standard deviations."""
    step = 1e-3
    points = [step * at for at in range(-10_000, 10_001)]
    total = math.fsum(f(math.sqrt(variance) * x) * math.exp(-x * x / 2) for x in points)
    return total * step / math.sqrt(2 * math.pi)


def silu(x: float) -> float:
    return x / (1 + math.exp(-x))


def mlp_variance(normed: float) -> tuple[float, float]:
    """Variance of what a gated MLP adds, and its relative standard error; `normed` is the mean square that it reads.

    h = silu(g)·u with g, u ~ N(0, d·σ²·normed); an output is Σ W h ~ N(0, σ²·|h|²). Over tokens whose vectors are
    orthogonal, |h|² is a mean of N·d_ff independent h², and the variance one of N·d squares of Gaussians.
    """
    variance = D * STD**2 * normed
    square, fourth = (mean_of_gaussian(lambda g, power=power: silu(g) ** power, variance) for power in (2, 4))
    kurtosis = 3 * fourth / square**2  # E[u⁴] = 3 E[u²]²
    return D_FF * STD**2 * square * variance, math.sqrt(((kurtosis - 1) / D_FF + 2 / D) / N)


def llama(tmp_path: Path) -> str:
    """The config.json of Llama 3.1 405B, with two layers."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": V,
        "hidden_size": D,
        "intermediate_size": D_FF,
        "num_hidden_layers": 2,
        "num_attention_heads": 128,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": EPS,
        "initializer_range": STD,
        "tie_word_embeddings": False,
    }
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.fixture(scope="module", params=["reference", "hugging face"])
def wide(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two layers of Llama 3.1 405B on 64 sequences of one token, by the engine that auto takes for 39 GiB or more."""
    of = request.param == "reference"
    target = "llama-3.1-405b" if of else llama(tmp_path_factory.mktemp("hf"))
    overrides = ("model.n_layers=2", *ALONE) if of else ALONE
    return check(target, overrides=overrides, settings=Settings(threads=1)).run


def test_auto_takes_it_and_nothing_is_made_real(wide: Run) -> None:
    assert wide.engine == "weightless" and wide.why.startswith("its weights ")
    assert wide.notes is not None and wide.notes.made_real == () and wide.notes.asymptotic == ()
    # all matrices, and none of the five gains of norms
    assert wide.notes.parameters == 16 == len(wide.measured.parameters) - 5
    assert wide.notes.entries == 2 * V * D + 2 * (2 * D * D + 2 * D_KV * D + 3 * D_FF * D)


def test_loss_and_logits(wide: Run) -> None:
    """Logits are σ·√d·N(0, 1), independent over the vocabulary and, for orthogonal states, over tokens."""
    variance = D * STD**2
    loss = wide.measured.loss.uniform_targets
    assert_near(loss, math.log(V) + variance / 2, math.sqrt(math.expm1(variance) / V / N), "uniform-target loss")
    assert_near(wide.measured.logits.std, math.sqrt(variance), math.sqrt(variance / (2 * V * N)), "logit std")
    assert_near(wide.measured.logits.self_logit, 0.0, math.sqrt(variance / N), "self-logit")
    assert_near(wide.measured.loss.value, math.log(V) + variance / 2, math.sqrt(variance / N) + 0.01, "loss")


def test_embedding_variance(wide: Run) -> None:
    found = wide.measured.residual.embedding_variance
    assert_near(found, STD**2, STD**2 * math.sqrt(2 / (D * N)), "embedding variance")


def test_attention_of_one_token_is_two_products(wide: Run) -> None:
    """out(value(x)): every value goes to 16 heads, and d·σ²·mean of d_kv squares comes out, after another d·σ²."""
    error = math.sqrt((2 / D_KV + 2 / D) / N)
    for branch, normed in zip(wide.measured.residual.branches[::2], (STD**2 / (STD**2 + EPS), 1.0), strict=True):
        assert branch.kind == "attention"
        # values of d_kv numbers make tokens' outputs orthogonal up to d_kv^-½, whose squares add N/d_kv to 1
        expected = (D * STD**2) ** 2 * normed
        assert_relative(branch.branch_variance / expected, 1.0, 5 * error * math.sqrt(1 + N / D_KV), branch.name)


def test_mlp_branches(wide: Run) -> None:
    """The stream that they read is far larger than eps: 43 and 507."""
    expected, error = mlp_variance(1.0)
    for branch in wide.measured.residual.branches[1::2]:
        assert branch.kind == "mlp"
        assert_relative(branch.branch_variance / expected, 1.0, 5 * error * math.sqrt(1 + N / D_KV), branch.name)


def test_the_stream_is_the_sum(wide: Run) -> None:
    """Branches of independent matrices are uncorrelated; what correlations they have by chance are about (dN)^-½."""
    residual = wide.measured.residual
    before = residual.embedding_variance
    for branch in residual.branches:
        both = 2 * math.sqrt(before * branch.branch_variance)
        found = branch.stream_variance - before - branch.branch_variance
        assert_near(found, 0.0, both / math.sqrt(D * N) * math.sqrt(1 + N / D_KV), f"covariance at {branch.name}")
        before = branch.stream_variance


@pytest.mark.slow
def test_many_layers_of_llama_405b() -> None:
    """16 of the 126 layers (for time) on 64 tokens of one sequence. Tokens look alike to some unknown degree here, so
    that the standard error of one layer may be that of a single token; the mean over layers, of independent matrices,
    is 4 times better.
    """
    run = check("llama-3.1-405b", overrides=("model.n_layers=16",), settings=Settings(threads=2)).run
    assert run.engine == "weightless" and run.notes is not None and run.notes.made_real == ()
    variance = D * STD**2
    residual, logits = run.measured.residual, run.measured.logits
    expected, error = mlp_variance(1.0)
    single = error * math.sqrt(N)
    found = [branch.branch_variance / expected for branch in residual.branches if branch.kind == "mlp"]
    assert len(found) == 16
    for at, ratio in enumerate(found):
        assert_near(ratio, 1.0, single, f"MLP of layer {at}")
    assert_near(sum(found) / 16, 1.0, single / 4, "mean over layers")
    loss = run.measured.loss.uniform_targets
    assert_near(loss, math.log(V) + variance / 2, math.sqrt(math.expm1(variance) / V), "uniform-target loss")
    assert_near(logits.std, math.sqrt(variance), math.sqrt(variance / (2 * V)), "logit std")
    assert_near(residual.embedding_variance, STD**2, STD**2 * math.sqrt(2 / (D * N)), "embedding variance")


def test_gpt2_small() -> None:
    """ln V + d·σ²/2 = 10.979. The logits of the 65 tokens of the sequence are correlated with the states (tied head):
    of a self-logit of 1 they add about e·65/V to the mean of exp(logit), 0.0035, at most."""
    run = check("gpt2", overrides=("tokens.batch=1", "tokens.length=64"), settings=WEIGHTLESS).run
    variance = 768 * 0.02**2
    error = math.sqrt(math.expm1(variance) / 50_257 / 64)
    found = run.measured.loss.uniform_targets
    assert abs(found - (math.log(50_257) + variance / 2)) <= 5 * error + 0.0035
    assert run.notes is not None and run.notes.made_real == ()
    # the table of positions has no entries either, and adds its own variance
    table = next(one for one in run.measured.parameters if one.name == "position_embedding.weight")
    assert not table.drawn
    assert_near(run.measured.residual.embedding_variance, 2 * 0.02**2, 2 * 0.02**2 * math.sqrt(2 / (768 * 64)))


# --- determinism

GPT2 = ("model.n_layers=2", "model.vocab_size=4096", *SHORT)


def numbers(report: Report, *left_out: str) -> dict[str, Any]:
    found = document(report)
    return {key: value for key, value in found.items() if key not in ("command", "versions", *left_out)}


def small(seed: int = 0, threads: int = 1, scheme: str | None = None, backward: bool = True, **settings: Any) -> Report:
    wanted = Settings(engine="weightless", threads=threads, **settings)
    return check("gpt2", overrides=GPT2, settings=wanted, seed=seed, scheme=scheme, backward=backward)


def test_a_seed_gives_the_same_numbers_again_whatever_the_threads() -> None:
    first = numbers(small())
    assert numbers(small()) == first
    assert numbers(small(threads=2)) == first


def test_another_seed_gives_others() -> None:
    one, two = small().run.measured, small(seed=1).run.measured
    for a, b in zip(one.residual.branches, two.residual.branches, strict=True):
        assert a.branch_variance != b.branch_variance
    assert one.gradients is not None and two.gradients is not None
    same = {name for name, norm in one.gradients.norms if dict(two.gradients.norms)[name] == norm}
    assert same == set()


def test_schemes_share_their_draws() -> None:
    """gpt2 and scaled differ in residual projections alone: by 1/√(2N) = 1/2 with two layers."""
    one, two = (small(scheme=name, backward=False).run.measured for name in ("gpt2", "scaled"))
    assert one.attention[0].logit_std == two.attention[0].logit_std
    assert one.residual.embedding_variance == two.residual.embedding_variance
    first, other = one.residual.branches[0], two.residual.branches[0]
    assert first.branch_variance == pytest.approx(4 * other.branch_variance, rel=1e-5)  # float32 sums
    assert one.residual.branches[2].branch_variance != pytest.approx(4 * two.residual.branches[2].branch_variance)


def test_a_model_of_small_parameters_is_the_dense_one_to_the_bit() -> None:
    arguments = {"overrides": SHORT, "backward": True}
    dense = check("tiny", settings=Settings(engine="dense"), **arguments)  # type: ignore[arg-type]
    found = check("tiny", settings=WEIGHTLESS, **arguments)  # type: ignore[arg-type]
    assert found.run.notes is not None and found.run.notes.parameters == 0
    assert numbers(found, "engine", "weightless") == numbers(dense, "engine", "weightless")


def test_large_parameters_leave_the_small_ones_as_they_are() -> None:
    dense = check("gpt2", overrides=GPT2, settings=Settings(engine="dense")).run
    found = small(backward=False).run
    kept = [one for one in found.measured.parameters if one.drawn]
    by_name = {one.name: one for one in dense.measured.parameters}
    assert len(kept) > 10
    for one in kept:
        assert (one.std, one.mean, one.max_abs) == (by_name[one.name].std, by_name[one.name].mean, one.max_abs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_other_precisions(dtype: str) -> None:
    """Answers of bfloat16 are those of float32, rounded to 8 bits; those of float64 are drawn anew."""
    run, plain = small(dtype=dtype).run, small().run
    assert run.dtype == dtype and {one.dtype for one in run.measured.parameters} == {dtype}
    if dtype == "bfloat16":
        for a, b in zip(run.measured.residual.branches, plain.measured.residual.branches, strict=True):
            assert_relative(
                a.branch_variance, b.branch_variance, 0.02, a.name
            )  # two roundings of 2⁻⁹ a product, summed
    variance = 768 * 0.02**2
    found = run.measured.loss.uniform_targets
    # 16 tokens, and of the tied head 17 rows of 4096 that know them (e·17/4096 at most)
    assert abs(found - math.log(4096) - variance / 2) <= 5 * math.sqrt(math.expm1(variance) / 4096 / 16) + 0.0113
    assert run.measured.gradients is not None and run.measured.gradients.not_finite == ()


# --- modules

WIDTH, HEADS, VOCAB = 512, 8, 1_024


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        d = WIDTH
        self.norm, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.qkv(self.norm(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, layers: int = 2, std: float = 0.02, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(64, WIDTH)
        self.h = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=std / (factor if name == "head.weight" else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.logits(self.norm(x))

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, self.head.weight * self.factor)


def run(build: Callable[[], nn.Module], **arguments: Any) -> Run:
    return check(build, **{"settings": WEIGHTLESS, "overrides": SHORT, **arguments}).run


def measured(build: Callable[[], nn.Module], **arguments: Any) -> Measurements:
    return run(build, **arguments).measured


def test_a_multiplied_weight_is_one_of_another_std() -> None:
    """W·8 with std σ/8, as maximal-update multipliers have it, is W with std σ; 8 is exact in float32."""
    plain, multiplied = measured(GPT), measured(lambda: GPT(factor=8.0))
    assert multiplied.loss.value == pytest.approx(plain.loss.value, rel=1e-6)
    assert multiplied.logits.std == pytest.approx(plain.logits.std, rel=1e-6)


class Zeros(GPT):
    """Residual projections and head of zeros."""

    def __init__(self) -> None:
        super().__init__()
        for block in self.h:
            nn.init.zeros_(block.out.weight)
            nn.init.zeros_(block.down.weight)
        nn.init.zeros_(self.head.weight)


def test_zero_branches_and_a_zero_head() -> None:
    found = run(Zeros, backward=True)
    seen, residual = found.measured, found.measured.residual
    assert found.notes is not None and found.notes.made_real == () and found.notes.asymptotic == ()
    assert seen.loss.value == pytest.approx(math.log(VOCAB), rel=1e-6) and seen.logits.std == 0
    assert [branch.branch_variance for branch in residual.branches] == [0, 0, 0, 0]
    assert residual.branches[-1].stream_variance == residual.embedding_variance
    gradients = seen.gradients
    assert gradients is not None and [name for name, norm in gradients.norms if norm] == ["head.weight"]
    assert len(gradients.zero) == len(seen.parameters) - 1
    assert gradients.dead == () and gradients.steps == 0 and "without entries" in gradients.skipped
    assert any(one.rule == "GRAD003" and gradients.skipped in one.message for one in found.findings)


class Twice(nn.Module):
    """f(y), g(e), f(−3y), −g(e): layers that two places of a list share, so that answers must be kept.

    With `write`, y is overwritten in place by −3y after it has been multiplied.
    """

    def __init__(self, write: bool) -> None:
        super().__init__()
        self.wte, self.write = nn.Embedding(VOCAB, WIDTH), write
        f, g = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.h = nn.ModuleList([f, g, f, g])
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        e = self.wte(ids)
        y = e.clone()
        x = e + self.h[0](y)
        x = x + self.h[1](e)
        y = y.mul_(-3) if self.write else -3 * y
        x = x + self.h[2](y)
        return self.head(x - self.h[3](e))


@pytest.mark.parametrize("write", [False, True])
def test_a_layer_that_runs_twice_is_one_layer(write: bool) -> None:
    residual = measured(lambda: Twice(write)).residual
    first, second, third, fourth = (branch.branch_variance for branch in residual.branches)
    assert third == pytest.approx(9 * first, rel=1e-5)
    assert fourth == pytest.approx(second, rel=1e-6)
    # e + f(e) + g(e) − 3 f(e) − g(e) = e − 2 f(e), of which the covariance of e and f(e) follows from the first sum
    twice_covariance = residual.branches[0].stream_variance - residual.embedding_variance - first
    expected = residual.embedding_variance + 4 * first - 2 * twice_covariance
    assert residual.branches[3].stream_variance == pytest.approx(expected, rel=1e-4)


class Shared(GPT):
    """Two blocks for four layers, as in ALBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.h = nn.ModuleList([self.h[0], self.h[1], self.h[0], self.h[1]])


def test_shared_blocks_run_forward_and_backward() -> None:
    found = run(Shared, backward=True)
    assert len(found.measured.residual.branches) == 8
    assert found.measured.gradients is not None
    norms = dict(found.measured.gradients.norms)
    assert set(norms) == {name for name, _ in Shared().named_parameters()}
    assert all(0 < norm < math.inf for norm in norms.values())
    again = run(Shared, backward=True).measured.gradients
    assert again is not None and dict(again.norms) == norms


class InPlace(Block):
    """What Block does, writing into activations after they were multiplied."""

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        normed = self.norm(x)
        q, k, v = (z.view(b, t, HEADS, -1).transpose(1, 2) for z in self.qkv(normed).chunk(3, dim=-1))
        with torch.no_grad():
            normed.zero_()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        normed = self.norm2(x)
        u = self.up(normed)
        with torch.no_grad():
            normed.add_(1)
        h = F.gelu(u)
        x = x + self.down(h)
        with torch.no_grad():
            h.mul_(2)
        return x


def test_writes_into_activations_change_nothing() -> None:
    def build() -> nn.Module:
        module = GPT()
        for block in module.h:
            block.__class__ = InPlace
        return module

    plain, found = measured(GPT), measured(build)
    for a, b in zip(plain.residual.branches, found.residual.branches, strict=True):
        assert b.branch_variance == pytest.approx(a.branch_variance, rel=1e-6)
    assert found.loss.value == pytest.approx(plain.loss.value, rel=1e-6)


class Normed(GPT):
    """A head of rows of length 1."""

    def logits(self, x: Tensor) -> Tensor:
        return F.linear(x, F.normalize(self.head.weight, dim=1))


def test_what_needs_entries_gets_them_and_the_report_says_so() -> None:
    found = run(Normed)
    assert found.notes is not None
    assert [name for name, _ in found.notes.made_real] == ["head.weight"]
    # |x̂|² = d and rows of length 1: logits have variance 1, but for the eps of the norm
    assert_near(found.measured.logits.std, 1.0, 1 / math.sqrt(2 * VOCAB * 1), "logit std")


def test_where_there_is_no_room_for_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weightless, "budget", lambda: Budget(2**20))
    with pytest.raises(RunError, match=r"needs the entries of 'head.weight', 0\.0 GiB; there is room for 0\.0 GiB\. "):
        run(Normed)


class Writes(GPT):
    def forward(self, ids: Tensor) -> Tensor:
        with torch.no_grad():
            self.h[0].up.weight.mul_(0.5)
        return super().forward(ids)


def test_a_forward_that_writes_into_a_weight_is_refused() -> None:
    with pytest.raises(RunError, match=r"writes into 'h\.0\.up\.weight' \(aten::mul_\).*use --engine dense"):
        run(Writes)


def test_a_module_of_the_callers_own_is_refused() -> None:
    for target in (GPT(), Subject(GPT()), replace(Subject(GPT()), name="mine")):
        with pytest.raises(UsageError, match=r"--engine weightless: this module has its weights already; give the cl"):
            check(target, settings=WEIGHTLESS, overrides=SHORT)


class Special(nn.Parameter):
    """A kind of parameter of somebody's own."""


def test_small_parameters_of_another_class_are_as_they_were_built() -> None:
    def build() -> nn.Module:
        module = GPT()
        module.norm.bias = Special(torch.full((WIDTH,), 0.5))
        return module

    seen = measured(build)
    assert next(one.mean for one in seen.parameters if one.name == "norm.bias") == 0.5


def test_a_scheme_draws_what_could_not_be_recorded_also_in_shared_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The forward that shows the roles runs twice then."""
    monkeypatch.setattr(lean, "LAWLESS", 0)

    def build() -> nn.Module:
        module = Shared()
        nn.init.orthogonal_(module.h[0].up.weight)
        return module

    with pytest.raises(RunError, match=r"'h\.0\.up\.weight'"):
        run(build)
    found = run(build, scheme="scaled")
    assert found.notes is not None and found.notes.parameters == 2 * 4 + 2
    assert next(one.std for one in found.measured.parameters if one.name == "h.0.up.weight") == 0.02


def test_orthogonal_matrices_are_real_and_orthogonal() -> None:
    """Outputs of an orthogonal square matrix are as long as its inputs: the branch has their variance exactly."""

    class Orthogonal(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte = nn.Embedding(VOCAB, WIDTH)
            self.h = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
            for layer in self.h:
                nn.init.orthogonal_(layer.weight)
            self.head = nn.Linear(WIDTH, VOCAB, bias=False)

        def forward(self, ids: Tensor) -> Tensor:
            x = e = self.wte(ids)
            for layer in self.h:
                x = x + layer(e)
            return self.head(x)

    found = run(Orthogonal)
    assert found.notes is not None and found.notes.parameters == 2  # table and head
    for branch in found.measured.residual.branches:  # up to the mean of all outputs, of (T·d)^-1 of the variance
        assert branch.branch_variance == pytest.approx(found.measured.residual.embedding_variance, rel=2e-3)


# --- what it leaves as it was


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_nothing_global_is_changed(fails: bool, backward: bool) -> None:
    built: list[Any] = []

    class Watched(GPT):
        def forward(self, ids: Tensor) -> Tensor:
            logits = super().forward(ids)
            if fails:
                raise ValueError("on purpose")
            return logits

    def build() -> nn.Module:
        module: Any = Watched()
        module.h[0].train()
        module.h[1].eval()
        module.h[1].forward = own = module.h[1].forward
        built.append((module, own))
        return module

    torch.manual_seed(7)
    random.seed(7)
    states = torch.get_rng_state(), random.getstate()
    if fails:
        with pytest.raises(RunError, match="on purpose"):
            run(build, backward=backward)
    else:
        run(build, backward=backward)
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
    assert torch.get_default_dtype() == torch.float32
    assert torch.empty(1).device.type == "cpu"
    module, own = built[-1]
    assert "forward" not in vars(module) and "forward" not in vars(module.h[0])
    assert vars(module.h[1])["forward"] == own
    assert (module.training, module.h[0].training, module.h[1].training) == (True, True, False)
    assert all(parameter.grad is None for parameter in module.parameters())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())


# --- backward


def test_every_parameter_has_a_gradient() -> None:
    found = small().run
    gradients = found.measured.gradients
    assert gradients is not None and gradients.zero == () and gradients.not_finite == ()
    norms = dict(gradients.norms)
    assert set(norms) == {one.name for one in found.measured.parameters}
    # a bias of keys shifts all logits of a query alike: rounding
    assert all(norm > 0 for name, norm in norms.items())
    assert all(branch.gradient_norm and branch.gradient_norm > 0 for branch in found.measured.residual.branches)


def test_gradient_of_an_untied_head() -> None:
    """∂L/∂W = Σ (p − y) xᵀ/N. With orthogonal states of length √d its norm is √(d·Σ|p − y|²)/N, and |p − y|² is
    1 − 2·p_y + Σ p², with p_y about e^(x − s²/2)/V and Σ p² about e^(s²)/V, of logits x of std s: here below 0.01.
    States are orthogonal up to d^-½, and 64 targets out of 128,256 meet twice with probability 0.016 (not so here).
    """
    overrides = ("model.n_layers=1", *ALONE)
    found = check("llama-3.1-405b", overrides=overrides, settings=Settings(threads=1), backward=True).run
    assert found.measured.gradients is not None
    norm = dict(found.measured.gradients.norms)["head.weight"]
    assert_relative(norm, math.sqrt(D / N), 0.01, "gradient of the head")


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_deep_backward_takes_the_memory_of_a_few_blocks() -> None:
    """10 layers more may take what enters each, 0.25 MiB; not their activations, 3.75 MiB each.

    (getrusage won't do: its ru_maxrss is at least that of the process that forked this one.)
    """
    code = """
from initdiag import Settings, check

def peak(layers):
    overrides = ["model.d_model=1024", "model.n_heads=16", "model.vocab_size=2048", f"model.n_layers={layers}",
                 "tokens.batch=1", "tokens.length=64"]
    run = check("gpt2", overrides=overrides, settings=Settings(engine="weightless", threads=1), backward=True).run
    assert len(run.measured.gradients.norms) == len(run.measured.parameters)
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(status["VmHWM"].split()[0]) * 1024

few = peak(4)
print(peak(14) - few)
"""
    # glibc gives every tensor a mapping of its own then: what is freed is given back, whatever lies behind it
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**16)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    # of one block for 64 tokens: two norms (2d), q, k, v, attention's output (4d), up and its gelu (8d), down (d)
    activations = 64 * 15 * 1024 * 4
    theory = 10 * 2**18  # plans and predicted branches of a layer, also of what is advised, are 0.3 MB of objects
    assert int(ran.stdout) < 10 * 64 * 1024 * 4 + 4 * activations + theory


@pytest.mark.parametrize("engine", ["dense", "weightless"])
@pytest.mark.parametrize("target", ["gpt2", "docs/examples/gpt.py:GPT"])
def test_in_the_inference_mode_of_the_caller(target: str, engine: str) -> None:
    """What is built in it has no backward; the mode is the caller's again afterwards."""
    short = ["tokens.batch=1", "tokens.length=32"]
    options: dict[str, Any] = {"overrides": [*short, "model.n_layers=2"]}
    if target != "gpt2":
        options = {"overrides": short, "kwargs": {"d_model": 512, "n_layers": 2}}
        target = str(Path(__file__).parents[2] / target)
    options |= {"settings": Settings(device="cpu", engine=engine), "backward": True}
    outside = check(target, **options)
    with torch.inference_mode():
        inside = check(target, **options)
        assert torch.is_inference_mode_enabled()
    assert inside.run.measured.gradients == outside.run.measured.gradients
