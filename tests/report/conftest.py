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
    Copy,
    GradientMeasure,
    HeadroomMeasure,
    InitHistory,
    LabelMeasure,
    LogitMeasure,
    LossMeasure,
    Measurements,
    ParameterMeasure,
    ProbeMeasure,
    Read,
    ResidualMeasure,
    RouterMeasure,
    Wiring,
)
from initdiag.report import Advice, Pick, Report, Run
from initdiag.rules import Finding, Severity
from initdiag.schemes import AsFound, Constant, Distribution, InitPlan, Part, PlannedParameter, Role
from initdiag.theory import Expectations
from initdiag.theory.forward import Prediction
from initdiag.theory.spread import Spreads


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


def _mean(entry: PlannedParameter) -> float:
    return entry.distribution.value if isinstance(entry.distribution, Constant) else 0.0


def foretold(measured: Measurements) -> Prediction:
    """A prediction a little beside what was measured."""
    first, second = measured.residual.branches
    branches = (first, replace(second, branch_variance=8.576e-5, stream_variance=1.1287e-3))
    values = replace(
        measured,
        logits=replace(measured.logits, self_logit=-0.7117, max_abs=math.nan),
        residual=replace(measured.residual, branches=branches),
    )
    spreads = Spreads(
        loss=0.0122,
        uniform_targets=0.0041,
        logit_std=0.00321,
        self_logit=0.0456,
        entropy_ratio=0.00012,
        embedding_variance=3.21e-6,
        branches=(1.1e-7, 2.2e-6),
        streams=(4.4e-6, 5.5e-6),
        branch_variance_sum=2.3e-6,
        scaling_ratio=0.0123,
        attention_std=(0.00017,),
        attention_entropy=(2.1e-5,),
    )
    return Prediction(values, spreads, 2)


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
            ParameterMeasure(
                entry.parameter.name,
                _mean(entry),
                entry.distribution.std * 1.01,
                0,
                kurtosis=2.9876,
                max_abs=4.04 * entry.distribution.std,
                stable_rank=0.4321,
            )
            for entry in entries
        ),
    )
    expected = Expectations(
        loss=6.2531,
        uniform_targets=6.2517,
        allowance=0.0611,
        logit_std=0.16,
        scaling_ratio=1.0,
        prediction=foretold(measured),
    )
    versions = {"initdiag": "1.2.3", "python": "3.11", "torch": "2.13.0", "device": "cpu", "threads": "2"}
    return Run(case.subject, case.batch, seed, "dense", "float32", measured, expected, findings, versions)


@pytest.fixture
def checked() -> Report:
    found = (finding("LOSS001", Severity.ERROR), finding("RES001", Severity.WARNING, 9))
    of = run(findings=found)
    better = run("gpt2")
    advice = (Advice(("init.scheme: gpt2", "model.tied: false"), ("LOSS001",), ("RES001",), better),)
    return Report((replace(of, advice=advice),), command="initdiag check tiny")


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


def module_run(findings: tuple[Finding, ...] = ()) -> Run:
    """A module of the user's that was taken as it is, with all that can be measured of one."""
    whole = run(findings=findings)
    plan = whole.subject.plan
    entries = []
    for entry in plan.entries:
        parameter = replace(entry.parameter, evidence=f"told by {entry.parameter.name}")
        distribution: Distribution = entry.distribution
        if parameter.role is Role.ATTENTION_QUERY:
            rows = {Role.ATTENTION_QUERY: ((0, 64),), Role.ATTENTION_KEY: ((64, 80), (96, 112))}
            parameter = replace(parameter, parts=tuple(Part(role, at) for role, at in rows.items()))
        if parameter.role is Role.POSITION_EMBEDDING:
            distribution = AsFound(0.0333)
        entries.append(PlannedParameter(parameter, distribution, entry.unscaled_std))
    read = Read("blocks.0.mlp.input.weight", True, "blocks.0.mlp_norm.weight", 0.98765)
    first, second = whole.measured.residual.branches
    branches = (
        replace(first, joined=2, token_share=0.4321, gradient_norm=0.5678, reads=(read,), source="model.py:41"),
        replace(second, stream=1, token_share=0.4123, gradient_norm=0.4567, layer=1),
    )
    measured = replace(
        whole.measured,
        residual=replace(whole.measured.residual, branches=branches),
        wiring=Wiring("pre", 64, 1, "token_embedding.weight", replace(read, rms=1.5), "token_embedding.weight", True),
        routers=(RouterMeasure("blocks.0.router", 4, 256, 0.3125, 0.21875),),
        copies=(Copy("blocks.0.mlp.out.weight", "blocks.0.attention.out.weight", "scaled", 2.0),),
        labels=LabelMeasure("labels", False, 6.2641, 1, "mean", 6.2537),
        probe=ProbeMeasure(0.25, 0.0123),
        headroom=HeadroomMeasure(17.25, "blocks.0.mlp.out"),
        gradients=GradientMeasure(
            (("token_embedding.weight", 0.75),), zero=("head.bias",), dead=("head.bias",), steps=3
        ),
        history=InitHistory(
            watched=True,
            drawn={entry.parameter.name: entry.distribution for entry in entries},
            untouched=("blocks.0.mlp.out.bias",),
            rescaled=(("head.bias", 0.5),),
        ),
        buffers=(ParameterMeasure("mask", math.nan, math.nan, 7, buffer=True),),
        roles=tuple(entry.parameter for entry in entries),
    )
    subject = replace(
        whole.subject,
        target="model.py:GPT",
        name="GPT",
        architecture=None,
        plan=InitPlan("as built", {}, tuple(entries)),
    )
    return replace(whole, subject=subject, measured=measured)


@pytest.fixture
def module() -> Report:
    found = (replace(finding("WIRE001", Severity.ERROR), location=None, subject="blocks.0.mlp.out"),)
    return Report((module_run(found),), command="initdiag check model.py:GPT --backward")


@pytest.fixture
def broken() -> Report:
    """A run whose numbers are not numbers."""
    whole = run()
    loss = replace(whole.measured.loss, value=math.nan, uniform_targets=math.inf)
    branches = tuple(replace(branch, stream_variance=-math.inf) for branch in whole.measured.residual.branches)
    residual = replace(whole.measured.residual, branches=branches)
    return Report((replace(whole, measured=replace(whole.measured, loss=loss, residual=residual)),))
