"""Healthy models stay without errors, whatever the seed."""

from __future__ import annotations

import pytest

import initdiag
from initdiag.rules import Severity

HEALTHY = {
    "scaled, tied": ("tiny", None, []),
    "PyTorch's defaults, untied": ("tiny-untied", "default", []),
    "unscaled": ("tiny", "gpt2", []),
    "post-norm": ("tiny", "gpt2", ["model.placement=post"]),
    "grouped, gated, rotary": (
        "tiny",
        "scaled",
        ["model.n_kv_heads=2", "model.gated=true", "model.position=rotary", "model.norm=rmsnorm", "model.tied=false"],
    ),
    "one token": ("tiny", None, ["tokens.length=1"]),
    "a vocabulary of 27": ("tiny", None, ["model.vocab_size=27"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarms(name: str) -> None:
    """15 seeds of 7 models, 105 checks. Every threshold is at five standard errors: 6e-7 for each of the about 70
    parameters and 2 losses of a check, so that 105 checks have a false alarm with probability below 0.5 %."""
    target, scheme, overrides = HEALTHY[name]
    for seed in range(15):
        report = initdiag.check(target, scheme=scheme, seed=seed, overrides=[*overrides, "model.n_layers=2"])
        errors = [finding.message for finding in report.findings if finding.severity is Severity.ERROR]
        assert not errors, (seed, errors)
