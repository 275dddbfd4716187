"""Advice: what is offered makes the finding go away, in a real run."""

from __future__ import annotations

import pytest

import initdiag
from initdiag.advice import with_lines
from initdiag.request import Request
from initdiag.rules.cures import round_down

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


def test_two_findings_of_one_matrix_ask_for_one_std() -> None:
    """Logits that are wide, and the token's own above them: 0.066 would cure the first alone."""
    found = {one.rule: one for one in initdiag.predict("tiny", scheme="default").run.findings}
    hot, own = (found[rule].cures[0] for rule in ("LOGIT001", "LOGIT002"))
    assert hot == own == "init.roles: {token_embedding: {normal: 0.02}}"
    assert "init.roles: {token_embedding: {normal: 0.02}}" in found["LOGIT001"].help


def test_one_std_of_all_matrices_is_offered_where_the_head_is_drawn_with_it() -> None:
    wide = ["init.std=0.3", "model.tied=false"]
    found = {one.rule: one for one in initdiag.predict("tiny", scheme="gpt2", overrides=wide).run.findings}
    std = found["LOGIT001"].cures[0].partition("normal: ")[2].rstrip("}")
    assert (
        f"init.std: {std}" in found["LOGIT001"].cures and f"for all matrices, init.std: {std}" in found["LOGIT001"].help
    )
    own = [*wide, "init.roles.lm_head={normal: 0.4}"]
    found = {one.rule: one for one in initdiag.predict("tiny", scheme="gpt2", overrides=own).run.findings}
    assert not [line for line in found["LOGIT001"].cures if line.startswith("init.std")]


def test_a_strict_gate_is_told_what_it_takes() -> None:
    strict = ["gate.max_excess=0.01", "model.tied=false"]
    (excess,) = (one for one in initdiag.predict("tiny", overrides=strict).run.findings if one.rule == "LOSS003")
    assert "LOGIT001" not in excess.help
    std = excess.help.partition("with a std of ")[2].split()[0]
    again = initdiag.predict("tiny", overrides=[*strict, f"init.roles.lm_head={{normal: {std}}}"]).run
    assert not [one for one in again.findings if one.rule == "LOSS003"]
    assert again.measured.loss.excess > 0.005  # and no smaller than that


def test_queries_that_are_far_wider_than_keys_are_the_ones_to_change() -> None:
    wide = ["init.std=0.06", "init.roles.attention_query={normal: 5.0}", "model.tied=false"]
    run = initdiag.predict("tiny", scheme="gpt2", overrides=wide).run
    (hot,) = (one for one in run.findings if one.rule == "ATTN001")
    assert "the std of attention_query is 83 times that of attention_key" in hot.help
    (line,) = hot.cures
    std = max(at.logit_std for at in run.measured.attention)
    assert line == f"init.roles: {{attention_query: {{normal: {round_down(5.0 / std)}}}}}"
    query = line.partition("init.roles: {attention_query: ")[2].removesuffix("}")
    again = initdiag.predict("tiny", scheme="gpt2", overrides=[wide[0], f"init.roles.attention_query={query}", wide[2]])
    assert not [one for one in again.run.findings if one.rule == "ATTN001"]
