"""Numbers at the edge of what floats hold, and models at the edge of what theory says: true findings, no crashes."""

from __future__ import annotations

import math

import pytest
import torch

import initdiag
from initdiag.measure.statistics import moments

SMALL = ("model.n_layers=1", "model.vocab_size=64", "model.d_model=16", "model.n_heads=2", "tokens.length=16")


def rules(*overrides: str, dtype: str = "float32", seed: int = 0, scheme: str | None = None) -> set[str]:
    settings = initdiag.Settings(dtype=dtype)
    report = initdiag.check("tiny", scheme=scheme, seed=seed, overrides=[*SMALL, *overrides], settings=settings)
    return {finding.rule for finding in report.findings if finding.severity == "error"}


@pytest.mark.parametrize("std", ["1e-6", "1e-12", "1e-24", "1e-30"])
def test_a_tiny_std_is_no_fault(std: str) -> None:
    """Where nothing is left to chance, the rounding of float32 is no finding; and 1e-48 is a variance."""
    assert rules(f"init.std={std}") == set()


@pytest.mark.parametrize("vocab_size", [2, 3, 4, 8, 15, 16, 27])
def test_a_tiny_vocabulary_is_no_fault(vocab_size: int) -> None:
    """30 seeds each; the loss is judged from 16 on, where its threshold is five standard deviations."""
    for seed in range(30):
        found = rules(f"model.vocab_size={vocab_size}", "tokens.length=1", "tokens.batch=1", seed=seed, scheme="gpt2")
        assert found == set(), seed


@pytest.mark.parametrize("seed", range(6))
def test_float16_beyond_its_range_is_not_finite(seed: int) -> None:
    found = rules("model.vocab_size=2048", "init.std=15500", "init.residual_std=15500", dtype="float16", seed=seed)
    assert "NUM001" in found


def test_advice_is_never_nan() -> None:
    for seed in range(6):
        overrides = [*SMALL, "model.vocab_size=2048", "init.std=15500", "init.residual_std=15500"]
        settings = initdiag.Settings(dtype="float16")
        report = initdiag.check("tiny", seed=seed, overrides=overrides, settings=settings)
        assert not [finding for finding in report.findings if "nan" in finding.help]


def test_a_large_std_is_hot_but_finite() -> None:
    assert {"LOGIT001", "NUM001"} & rules("init.std=1e6", "model.tied=false") == {"LOGIT001"}


@pytest.mark.parametrize("scale", [1e-30, 1e-24, 1e-20, 1e15, 1e19, 1e30])
def test_moments_at_any_scale(scale: float) -> None:
    """The squares of 1e30 and 1e-24 don't fit into float32; the tensors do."""
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    mean, variance, bad = moments(x * scale)
    assert bad == 0
    assert math.sqrt(variance) == pytest.approx(float(x.double().std(correction=0)) * scale, rel=1e-5)
    assert mean == pytest.approx(float(x.double().mean()) * scale, rel=1e-3)


def test_moments_of_both_infinities() -> None:
    x = torch.zeros(100_000)
    x[0], x[-1] = math.inf, -math.inf
    _, variance, bad = moments(x)
    assert bad == 2 and not math.isfinite(variance)


def test_expectations_know_eps() -> None:
    """At std 0.001 the stream is no larger than eps, and the norms give less than unit variance."""
    run = initdiag.check("tiny", overrides=["init.std=0.001"]).run
    assert run.measured.logits.std == pytest.approx(run.expected.logit_std, rel=0.05)
    for branch in run.measured.residual.branches:
        if branch.kind == "mlp":
            # 256 alike tokens of width 64: a few of the 64 outputs' variance, √(2/64) = 18 % each
            assert branch.branch_variance == pytest.approx(run.expected.branches[branch.index].branch_variance, rel=0.6)


def test_a_mode_of_the_caller_changes_nothing() -> None:
    def measured() -> str:
        return repr(initdiag.check("tiny", overrides=SMALL).run.measured)  # as text: nan is not equal to itself

    plain = measured()
    with torch.inference_mode():
        assert measured() == plain
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert measured() == plain
    torch.set_default_dtype(torch.float64)
    try:
        assert measured() == plain
    finally:
        torch.set_default_dtype(torch.float32)
