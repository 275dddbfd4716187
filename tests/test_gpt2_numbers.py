"""GPT-2 small, whole: the numbers that are known of it, over up to two seeds."""

from __future__ import annotations

import math
import re
from pathlib import Path

import console
import pytest

import initdiag
from initdiag.report import Run
from initdiag.rules import Severity
from tests.docs.shown import SHOWN, Printed, assert_shown, ran
from tests.judged import judged

pytestmark = pytest.mark.slow

SEEDS = range(2)  # of the scaled one and of gpt2; the others have one, for time
OF_GPT2 = [(page, block) for page, block in SHOWN if re.search("configs/gpt2.yaml|compare --schemes", block.command)]


@pytest.fixture(scope="module")
def printed() -> dict[str, Printed]:
    """Run every command that the pages show of GPT-2 small."""
    return {block.command: ran(block.command) for _, block in OF_GPT2}


@pytest.mark.parametrize(("page", "block"), OF_GPT2, ids=[block.command for _, block in OF_GPT2])
def test_shown_output_is_real(page: Path, block: console.Shown, printed: dict[str, Printed]) -> None:
    assert_shown(block, printed[block.command].out, page)


@pytest.fixture(scope="module")
def runs(printed: dict[str, Printed]) -> dict[tuple[str, int], Run]:
    """Every case and seed once; some are shown on the pages."""
    found = {(run.scheme, 0): run for one in printed.values() for report in one.reports for run in report.runs}
    both = initdiag.compare("gpt2", schemes=["scaled", "gpt2"], seed=1)  # which draws once what they have in common
    found |= {(run.scheme, 1): run for run in both.runs}
    return found | {("untied", 0): judged("gpt2", scheme="default", overrides=["model.tied=false"])}


def test_compare_runs_what_check_runs(printed: dict[str, Printed]) -> None:
    reports = [report for one in printed.values() for report in one.reports]
    alone, compared = ([r for report in reports for r in report.runs if len(report.runs) == n] for n in (1, 4))
    (again,) = [run for run in compared if run.scheme == "scaled"]
    (first,) = [run for run in alone if run.scheme == "scaled"]
    assert {run.seed for run in (*alone, *compared)} == {0}
    assert (first.measured.loss, first.measured.residual) == (again.measured.loss, again.measured.residual)


def rules(run: Run) -> dict[str, Severity]:
    return {finding.rule: finding.severity for finding in run.findings}


def test_it_is_gpt2_small(runs: dict[tuple[str, int], Run]) -> None:
    run = runs["scaled", 0]
    assert sum(entry.parameter.numel for entry in run.subject.plan.entries) == 124_439_808
    assert run.batch.batch * run.batch.length == 512


@pytest.mark.parametrize("seed", SEEDS)
class TestScaled:
    @pytest.fixture
    def run(self, runs: dict[tuple[str, int], Run], seed: int) -> Run:
        return runs["scaled", seed]

    def test_loss(self, run: Run) -> None:
        loss, expected = run.measured.loss, run.expected
        closed = math.log(50257) + 768 * 0.02**2 / 2
        assert closed == pytest.approx(10.979, abs=5e-4)
        assert expected.loss == pytest.approx(closed, abs=0.005)
        # chance, five standard deviations: 512 targets, and V logits that all positions share
        s = 0.02 * math.sqrt(768)
        vocabulary = (math.exp(s**2) - 1) / 50257
        assert expected.allowance == pytest.approx(5 * math.sqrt(s**2 / 512 + vocabulary), rel=0.03)
        assert abs(loss.value - expected.loss) <= expected.allowance
        assert abs(loss.uniform_targets - expected.uniform_targets) <= 5 * math.sqrt(vocabulary)

    def test_logit_std(self, run: Run) -> None:
        # √(2 / 4V) = 0.3 % for alike tokens
        assert run.measured.logits.std == pytest.approx(0.02 * math.sqrt(768), rel=0.01)
        final = run.measured.residual.branches[-1].stream_variance
        of_the_norm = math.sqrt(final / (final + 1e-5))  # eps takes 6e-5 of it
        own = run.measured.logits.self_logit**2 / run.measured.loss.vocab_size  # of about 1, which counts with the rest
        assert run.expected.logit_std == pytest.approx(
            math.hypot(0.02 * math.sqrt(768) * of_the_norm, math.sqrt(own)), rel=2e-5
        )

    def test_branches(self, run: Run) -> None:
        branches = run.measured.residual.branches
        assert [branch.kind for branch in branches] == ["attention", "mlp"] * 12
        assert [branch.layer for branch in branches] == [layer for layer in range(12) for _ in range(2)]

    def test_mlp_branch_variance(self, run: Run) -> None:
        mlps = [branch.branch_variance for branch in run.measured.residual.branches if branch.kind == "mlp"]
        # one: √(2/768 + 3/3072) = 6 % if all tokens were alike; twelve: 1.7 %
        assert all(variance == pytest.approx(0.00545, rel=0.15) for variance in mlps), mlps
        assert math.fsum(mlps) / 12 == pytest.approx(0.00545, rel=0.04)

    def test_the_branches_add_up_to_one(self, run: Run) -> None:
        assert run.measured.residual.scaling_ratio == pytest.approx(1.0, abs=0.01)
        assert run.expected.scaling_ratio == pytest.approx(1.0)

    def test_the_stream_keeps_its_size(self, run: Run) -> None:
        # tokens and positions at 0.02 each
        assert run.measured.residual.embedding_variance == pytest.approx(2 * 0.02**2, rel=0.02)
        # measured with Hugging Face's class: 0.081 (facts/schemes.md, 0.2)
        assert run.measured.residual.branches[-1].stream_variance == pytest.approx(0.081, rel=0.15)

    def test_verdict(self, run: Run) -> None:
        assert run.verdict == "pass"
        assert not run.count(Severity.WARNING), rules(run)


@pytest.mark.parametrize("seed", SEEDS)
def test_unscaled_branches_are_24_scaled_ones(runs: dict[tuple[str, int], Run], seed: int) -> None:
    sums = {
        (scheme, kind): math.fsum(
            branch.branch_variance for branch in runs[scheme, seed].measured.residual.branches if branch.kind == kind
        )
        for scheme in ("gpt2", "scaled")
        for kind in ("attention", "mlp")
    }
    assert sums["gpt2", "mlp"] / sums["scaled", "mlp"] == pytest.approx(24, rel=0.10)
    assert runs["gpt2", seed].measured.residual.scaling_ratio == pytest.approx(24, rel=0.01)
    # An attention branch is an average over the prefix, and a stream that the branches dominate has tokens more alike:
    # there the ratio is larger, so that all branches together have one of about 27.
    assert sums["gpt2", "attention"] / sums["scaled", "attention"] > 24


@pytest.mark.parametrize("seed", SEEDS)
def test_unscaled_passes_with_a_warning(runs: dict[tuple[str, int], Run], seed: int) -> None:
    run = runs["gpt2", seed]
    assert run.verdict == "pass"
    assert rules(run).get("RES001") is Severity.WARNING
    assert abs(run.measured.loss.value - run.expected.loss) <= run.expected.allowance
    # Hugging Face's class without the scaling: 10.960 and 2.10 (facts/schemes.md, 0.2)
    assert run.measured.loss.uniform_targets == pytest.approx(10.979, abs=0.03)
    assert run.measured.residual.branches[-1].stream_variance == pytest.approx(2.10, rel=0.15)


def test_default_predicts_its_own_input(runs: dict[tuple[str, int], Run]) -> None:
    run = runs["default", 0]
    assert run.verdict == "fail"
    assert run.measured.loss.value == pytest.approx(483, abs=10)
    assert run.measured.loss.value == pytest.approx(run.expected.loss, abs=run.expected.allowance)
    assert rules(run).get("LOGIT002") is Severity.ERROR


def test_default_untied_has_an_excess_of_a_sixth(runs: dict[tuple[str, int], Run]) -> None:
    run = runs["untied", 0]
    assert run.verdict == "pass"
    assert run.measured.loss.uniform_targets - math.log(50257) == pytest.approx(1 / 6, abs=0.06)
    assert run.measured.logits.std == pytest.approx(1 / math.sqrt(3), rel=0.01)
    assert "LOGIT002" not in rules(run)
