"""One report with numbers chosen by hand, which every renderer renders."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from initdiag.case import prepare
from initdiag.config import load, with_init
from initdiag.errors import Location
from initdiag.measure import (
    AttentionMeasure,
    Branch,
    LogitMeasure,
    LossMeasure,
    Measurements,
    ParameterMeasure,
    ResidualMeasure,
)
from initdiag.report import Pick, Report, Run
from initdiag.rules import Finding, Severity
from initdiag.theory import Expectations


def finding(rule: str, severity: Severity, line: int = 3) -> Finding:
    return Finding(
        rule=rule,
        name="a-rule",
        severity=severity,
        message="loss 12.345 nats | 100 % of it, expected: 6.2",
        subject="loss",
        help="write std=0.02, not 1",
        location=Location("configs/tiny.yaml", line, 2),
    )


def run(scheme: str = "scaled", seed: int = 0, findings: tuple[Finding, ...] = ()) -> Run:
    case = prepare(with_init(load("tiny", ["model.n_layers=1"]), scheme=scheme, seed=seed))
    entries = case.subject.plan.entries
    measured = Measurements(
        loss=LossMeasure(value=6.2537 + seed / 100, uniform_targets=6.2517, vocab_size=512),
        logits=LogitMeasure(std=0.16254, self_logit=-0.7283, max_abs=1.178, entropy_ratio=0.99784),
        positions=(),
        residual=ResidualMeasure(
            embedding_variance=7.812e-4,
            branches=(
                Branch(1, "blocks.0.attention.out", 0, "attention", "blocks.0.attention.out.weight", 3.66e-6, 7.852e-4),
                Branch(2, "blocks.0.mlp.out", 0, "mlp", "blocks.0.mlp.out.weight", 8.627e-5, 1.135e-3),
            ),
            scaling_ratio=1.0063,
        ),
        attention=(AttentionMeasure("blocks.0.attention", 0, 0.02534, 0.99987),),
        parameters=tuple(
            ParameterMeasure(entry.parameter.name, 0.0, entry.distribution.std * 1.01, 0) for entry in entries
        ),
    )
    expected = Expectations(
        loss=6.2531,
        uniform_targets=6.2517,
        allowance=0.0611,
        logit_std=0.16,
        branch_variances={"blocks.0.mlp.out.weight": 8.576e-5},
        scaling_ratio=1.0,
    )
    versions = {"initdiag": "1.2.3", "python": "3.11", "torch": "2.13.0", "device": "cpu", "threads": "2"}
    return Run(case.subject, case.batch, seed, "dense", "float32", measured, expected, findings, versions)


@pytest.fixture
def checked() -> Report:
    found = (finding("LOSS001", Severity.ERROR), finding("RES001", Severity.WARNING, 9))
    return Report((run(findings=found),), command="initdiag check tiny")


@pytest.fixture
def passed() -> Report:
    return Report((run(),), command="initdiag check tiny")


@pytest.fixture
def compared() -> Report:
    runs = tuple(
        run(scheme, seed, (finding("LOSS001", Severity.ERROR),) if scheme == "default" else ())
        for seed in (0, 1)
        for scheme in ("default", "gpt2", "scaled")
    )
    return Report(runs, "initdiag compare tiny --seeds 2", Pick("scaled", "no errors and no warnings"))


@pytest.fixture
def broken() -> Report:
    """A run whose numbers are not numbers."""
    whole = run()
    loss = replace(whole.measured.loss, value=math.nan, uniform_targets=math.inf)
    branches = tuple(replace(branch, stream_variance=-math.inf) for branch in whole.measured.residual.branches)
    residual = replace(whole.measured.residual, branches=branches)
    return Report((replace(whole, measured=replace(whole.measured, loss=loss, residual=residual)),))
