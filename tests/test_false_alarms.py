"""Healthy models stay without errors, whatever the seed; published designs have the findings that they deserve, and
what a finding says to write into the config makes it go away."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

import initdiag
from initdiag.engines import Settings
from initdiag.report import Report, Run
from initdiag.rules import Finding, Severity
from initdiag.schemes import SCHEMES
from tests import at_home
from tests.judged import judged

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
ORDER = [str(severity) for severity in Severity]  # from the worst


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_no_false_alarms(name: str) -> None:
    """15 seeds of 7 models, 105 checks, most on few tokens. Every threshold is at five standard errors: 6e-7 for each
    of the about 70 parameters and 2 losses of a check, so that 105 checks have a false alarm with probability below
    0.5 %."""
    target, scheme, overrides = HEALTHY[name]
    if target == "tiny" and name != "scaled, tied":
        overrides = ["tokens.length=32", *overrides]  # which "one token" sets once more
    for seed in range(15):
        run = judged(target, scheme=scheme, seed=seed, overrides=[*overrides, "model.n_layers=2"])
        errors = [finding.message for finding in run.findings if finding.severity is Severity.ERROR]
        assert not errors, (seed, errors)


def at_home_with(scheme: str, **changes: Any) -> dict[str, Any]:
    """A config of a scheme on the architecture that it was made for."""
    model, _ = at_home.SCHEMES[scheme]
    init = {
        "scheme": scheme,
        **({"base_width": at_home.BASE_WIDTH} if "base_width" in SCHEMES[scheme].settable else {}),
    }
    return {"model": model, "init": init, "tokens": {"batch": 2, "length": 32}, **changes}


@cache
def at_home_report(scheme: str) -> Report:
    return initdiag.check(at_home_with(scheme))


def unexpected(report: Report | Run, allowed: dict[str, tuple[str, str]]) -> list[str]:
    """Findings that are not allowed, or louder than allowed; and rules that are silent though they should speak."""
    found = {finding.rule: f"{finding.severity}" for finding in report.findings if finding.rule != "GRAD003"}
    loud = [
        f"{rule} {severity}"
        for rule, severity in found.items()
        if rule not in allowed or ORDER.index(severity) < ORDER.index(allowed[rule][0])
    ]
    silent = [f"no {rule}" for rule, (_, reason) in allowed.items() if rule not in found and "(near)" not in reason]
    return loud + silent


def test_every_scheme_has_a_home() -> None:
    assert set(at_home.SCHEMES) == set(SCHEMES)


@pytest.mark.parametrize("scheme", at_home.SCHEMES)
def test_a_scheme_where_it_was_made_for(scheme: str) -> None:
    assert unexpected(at_home_report(scheme), at_home.SCHEMES[scheme][1]) == []


@pytest.mark.slow
@pytest.mark.parametrize("scheme", at_home.SCHEMES)
def test_its_backward_under_another_seed(scheme: str) -> None:
    """GRAD003 may tell what is asleep at step 0 and wakes up: info, never more."""
    run = judged(at_home_with(scheme), seed=1, backward=True)
    assert unexpected(run, at_home.SCHEMES[scheme][1] | at_home.BACKWARD.get(scheme, {})) == []
    assert {f.severity for f in run.findings if f.rule == "GRAD003"} <= {Severity.INFO}


KEY = re.compile(r"((?:init|model)\.\w+): (\{(?:[^{}]|\{[^{}]*\})*\}|\"[^\"]*\"|[^\s;,)]+)")
ADVISED = {"RES001", "LOGIT001", "LOGIT002", "ATTN001"}


def follow(config: dict[str, Any], key: str, value: str) -> Run:
    if key == "init.scheme":
        return judged(config, scheme=value)
    return judged(config, overrides=[f"{key}={value}"])


def test_keys_are_read_off_help() -> None:
    text = (
        'in the config, init.roles: {mlp_out: {normal: "1 / (2)"}}; or model.logit_multiplier: 0.84 (as T5); or untie'
    )
    assert KEY.findall(f"{text} (model.tied: false)") == [
        ("init.roles", '{mlp_out: {normal: "1 / (2)"}}'),
        ("model.logit_multiplier", "0.84"),
        ("model.tied", "false"),
    ]


def advised(finding: Finding) -> list[tuple[str, str]]:
    return KEY.findall(finding.help) if finding.rule in ADVISED else []


@pytest.mark.parametrize("scheme", [name for name, (_, allowed) in at_home.SCHEMES.items() if set(allowed) & ADVISED])
def test_what_a_finding_advises_cures_it(scheme: str) -> None:
    """And its opposite, RES002 for RES001, doesn't come instead."""
    config = at_home_with(scheme)
    for finding in at_home_report(scheme).findings:
        keys = advised(finding)
        assert keys or finding.rule not in ADVISED, finding.help
        for key, value in keys:
            after = {one.rule for one in follow(config, key, value).findings}
            assert finding.rule not in after and "RES002" not in after, (finding.rule, key, value)


HOT = {
    "hot attention": ({**at_home.UNTIED}, {"scheme": "gpt2", "std": 0.4}, "ATTN001"),
    "hot attention behind norms": ({**at_home.OLMO2, "attention_scale": 1}, {"scheme": "gpt2"}, "ATTN001"),
    "a table of 0.02 that is all of the stream": (
        {**at_home.LLAMA_TIED, "d_model": 768, "head_dim": 16},
        {"scheme": "zero-residual"},
        "LOGIT002",
    ),
    "a hot head": (at_home.LLAMA, {"scheme": "minicpm"}, "LOGIT001"),  # narrower than its base_width
}


@pytest.mark.parametrize("name", HOT)
def test_other_cures(name: str) -> None:
    model, init, rule = HOT[name]
    config = {"model": model, "init": init, "tokens": {"batch": 2, "length": 32}}
    (finding,) = [one for one in judged(config).findings if one.rule == rule]
    keys = advised(finding)
    assert keys
    for key, value in keys:
        assert rule not in {one.rule for one in follow(config, key, value).findings}, (key, value)


def test_no_key_is_advised_that_the_scheme_overrides() -> None:
    """muP has its own factor on the logits, and its own attention scale, which norms on queries don't let be."""
    narrow = {"model": at_home.UNTIED, "init": {"scheme": "cerebras-mup"}, "tokens": {"batch": 2, "length": 32}}
    (hot,) = [one for one in judged(narrow).findings if one.rule == "LOGIT001"]
    assert [key for key, _ in advised(hot)] == ["init.roles"]
    hot_attention = {
        "model": at_home.OLMO2,
        "init": {"scheme": "cerebras-mup", "attention_multiplier": 64},
        "tokens": {"batch": 2, "length": 32},
    }
    (sharp,) = [one for one in judged(hot_attention).findings if one.rule == "ATTN001"]
    assert advised(sharp) == [] and "undo their std" in sharp.help


TIED_TABLES = ("default", "spectral")


@pytest.mark.parametrize("scheme", TIED_TABLES)
def test_a_tied_wide_table_fails_and_each_cure_cures_its_rule(scheme: str) -> None:
    config = at_home_with(scheme, model=at_home.BASE)
    errors = {one.rule: one for one in judged(config).findings if one.severity is Severity.ERROR}
    assert set(errors) == {"LOGIT002", "LOGIT001", "LOSS003"}
    for rule in ("LOGIT002", "LOGIT001"):
        for key, value in advised(errors[rule]):
            assert rule not in {one.rule for one in follow(config, key, value).findings}, (rule, key, value)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(name, marks=[pytest.mark.slow] if at > 7 else [], id=name)
        for at, name in enumerate(at_home.SHIPPED)
    ],
)
def test_a_shipped_config(config: str) -> None:
    run = judged(config, settings=Settings(engine="weightless"), overrides=["tokens.batch=1", "tokens.length=32"])
    assert unexpected(run, at_home.SHIPPED[config]) == []
