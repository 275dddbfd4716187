"""Advice: what is offered makes the finding go away, in a real run."""

from __future__ import annotations

import pytest

import initdiag
from initdiag.advice import with_lines
from initdiag.request import Request

SMALL = ["model.n_layers=6", "model.vocab_size=2000"]


@pytest.mark.parametrize(
    ("scheme", "overrides", "gone"),
    [
        ("default", [], "LOGIT002"),
        ("default", ["model.tied=false", 'init.roles.lm_head={normal: "0.5"}'], "LOGIT001"),
        ("gpt2", [], "RES001"),
        ("scaled", ["init.residual_std=0.0016"], "RES002"),
        ("scaled", ["model.attention_scale=40"], "ATTN001"),
    ],
)
def test_advice_does_what_it_says(scheme: str, overrides: list[str], gone: str) -> None:
    request = Request(scheme=scheme, overrides=[*SMALL, *overrides])
    run = initdiag.predict("tiny", scheme=scheme, overrides=list(request.overrides)).run
    assert gone in {one.rule for one in run.findings}
    assert run.advice
    for one in run.advice:
        changed = with_lines(request, one.lines)
        measured = initdiag.check("tiny", scheme=changed.scheme, overrides=list(changed.overrides))
        loud = {finding.rule for finding in measured.findings if finding.severity != "info"}
        assert loud == set(one.left)
        assert not loud & set(one.cured)
    assert any(gone in one.cured for one in run.advice)
    checked = initdiag.check("tiny", scheme=scheme, overrides=list(request.overrides)).run
    assert {one.lines for one in checked.advice}  # a run offers some, too


def test_a_healthy_model_gets_none() -> None:
    assert initdiag.predict("tiny").run.advice == ()


def test_lines_replace_what_was_set_before() -> None:
    request = Request(overrides=["init.std=1", "model.tied=true", "init.roles.lm_head={normal: 1}"])
    changed = with_lines(request, ["model.tied: false", "init.roles: {lm_head: {normal: 0.02}, router: {normal: 0.1}}"])
    assert changed.overrides == (
        "init.std=1",
        "model.tied=false",
        "init.roles.lm_head={normal: 0.02}",
        "init.roles.router={normal: 0.1}",
    )
    scheme = with_lines(request, ["init.scheme: scaled"])
    assert (scheme.scheme, scheme.overrides) == ("scaled", ("model.tied=true",))
