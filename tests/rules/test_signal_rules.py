"""SIG001-003, NUM002: which values make them speak, how loudly, and what they say."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from initdiag.config import Config
from initdiag.measure import (
    Branch,
    HeadroomMeasure,
    LogitMeasure,
    LossMeasure,
    Measurements,
    ParameterMeasure,
    ProbeMeasure,
    ResidualMeasure,
    Wiring,
)
from initdiag.rules import Finding, precision, signal
from initdiag.rules.rule import Evidence, Rule
from initdiag.schemes import Parameter, Role
from initdiag.subjects import Subject
from initdiag.theory import Expectations

SHAPE = {"vocab_size": 64, "context": 32, "d_model": 16, "n_layers": 2, "n_heads": 2}
MEASURED = Measurements(
    loss=LossMeasure(4.2, 4.2, 64),
    logits=LogitMeasure(0.3, 0.0, 1.0, 0.99),
    positions=(),
    residual=ResidualMeasure(1.0, (), math.nan),
    attention=(),
    parameters=(ParameterMeasure("tokens.weight", 0.0, 0.02, 0, (64, 16), max_abs=0.1),),
    wiring=Wiring(embedding="tokens.weight"),
)


def spoken(rule: Rule, measured: Measurements, position: str | None = None, gate: Any = None) -> tuple[Finding, ...]:
    config = Config.model_validate({"model": {**SHAPE, "position": position or "learned"}})
    subject = Subject(vocab_size=64, architecture=config.model if position else None)
    expected: Expectations = None  # type: ignore[assignment]  # these rules don't look at it
    return rule.findings(Evidence(subject, measured, expected, gate or config.gate))


def loud(findings: tuple[Finding, ...]) -> list[str]:
    return [str(finding.severity) for finding in findings]


def probed(leak: float = 0.0, position: float = 0.1, causal: bool = True, dtype: str = "float32") -> Measurements:
    parameters = tuple(replace(parameter, dtype=dtype) for parameter in MEASURED.parameters)
    return replace(MEASURED, probe=ProbeMeasure(leak, position, causal), parameters=parameters)


@pytest.mark.parametrize(
    ("leak", "causal", "dtype", "severities"),
    [
        (0.0, True, "float32", []),
        (2e-6, True, "float32", []),  # experts that add up their tokens in another order
        (1e-3, True, "float32", ["error"]),  # the smallest that a gate of 0.02 lets through: test_probes.py
        (0.16, True, "bfloat16", ["error"]),
        (0.01, True, "bfloat16", []),
        (0.01, True, "float16", ["error"]),
        (2.0, False, "float32", []),
        (math.nan, True, "float32", []),
    ],
)
def test_leaks(leak: float, causal: bool, dtype: str, severities: list[str]) -> None:
    found = spoken(signal.LEAKS, probed(leak, causal=causal, dtype=dtype))
    assert loud(found) == severities
    assert all(f"{leak:.3g}" in finding.message and "is_causal=True" in finding.help for finding in found)


def test_what_was_not_measured_is_not_judged() -> None:
    rules = (signal.LEAKS, signal.TOKENS_LOST, signal.POSITIONS_LOST, precision.OVERFLOW)
    assert [spoken(rule, MEASURED) for rule in rules] == [()] * 4


@pytest.mark.parametrize(
    ("share", "severities"),
    [
        (math.nan, []),
        (1.01, []),
        (0.127, []),  # 48 post-norm layers of PyTorch's defaults, 2,048 tokens
        (0.03, ["warning"]),
        (0.0025, ["error"]),
        (0.0, ["error"]),
    ],
)
def test_tokens(share: float, severities: list[str]) -> None:
    last = Branch(2, "mlp.out", 0, "mlp", "mlp.out.weight", 1.0, 1.0, token_share=share)
    early = replace(last, token_share=0.0)  # only the last one counts
    found = spoken(signal.TOKENS_LOST, replace(MEASURED, residual=ResidualMeasure(1.0, (early, last), math.nan)))
    assert loud(found) == severities
    assert all(finding.subject == "tokens.weight" and "0.02" in finding.message for finding in found)


def test_positions_larger_than_tokens_are_named() -> None:
    last = Branch(2, "mlp.out", 0, "mlp", "mlp.out.weight", 1.0, 1.0, token_share=0.0)
    places = ParameterMeasure("places", 0.0, 1.0, 0, (32, 16))
    measured = replace(
        MEASURED,
        residual=ResidualMeasure(1.0, (last,), math.nan),
        parameters=(*MEASURED.parameters, places),
        roles=(TABLE,),
    )
    (finding,) = spoken(signal.TOKENS_LOST, measured)
    assert "places has std 1: give it that of the tokens" in finding.help
    assert "nn.init.normal_(model.places, std=0.02)" in finding.help
    (finding,) = spoken(
        signal.TOKENS_LOST, replace(measured, parameters=(*MEASURED.parameters, replace(places, std=0.02)))
    )
    assert "places" not in finding.help


TABLE = Parameter("places", (32, 16), Role.POSITION_EMBEDDING, 1)
ROTARY = ParameterMeasure("blocks.0.attn.rotary_emb.inv_freq", 0.0, 0.0, 0, (8,), max_abs=0.0, buffer=True)
INDICES = ParameterMeasure("position_ids", 16.0, 9.0, 0, (1, 32), "int64", max_abs=31.0, buffer=True)
BIAS = ParameterMeasure("h.0.attn.bias", 0.5, 0.5, 0, (1, 1, 32, 32), max_abs=1.0, buffer=True)


@pytest.mark.parametrize(
    ("change", "architecture", "causal", "severities", "says"),
    [
        ({"roles": (TABLE,)}, None, True, ["error"], "places"),
        ({"buffers": (ROTARY,)}, None, True, ["error"], "inv_freq, all of it zero"),
        (
            {"buffers": (replace(ROTARY, max_abs=1.0),)},
            None,
            True,
            ["warning"],
            "inv_freq; expected",
        ),  # later layers may use it
        ({}, "rotary", True, ["error"], "position: rotary"),
        ({}, "none", True, [], ""),
        ({}, None, True, ["warning"], "no positions"),
        ({}, None, False, ["error"], "both sides"),
        ({"buffers": (INDICES, BIAS)}, None, True, ["warning"], "no positions"),  # a list of indices gives none
    ],
)
def test_positions(change: Any, architecture: str | None, causal: bool, severities: list[str], says: str) -> None:
    lost = replace(probed(position=3e-7, causal=causal), **change)
    found = spoken(signal.POSITIONS_LOST, lost, architecture)
    assert loud(found) == severities
    assert all(says in finding.message for finding in found)
    assert spoken(signal.POSITIONS_LOST, replace(lost, probe=ProbeMeasure(0.0, 1e-3, causal)), architecture) == ()
    assert spoken(signal.POSITIONS_LOST, replace(lost, probe=ProbeMeasure(0.0, math.nan, causal)), architecture) == ()


def test_half_precision_hides_small_effects_but_no_zeros() -> None:
    lost = probed(position=0.0, dtype="bfloat16")
    assert loud(spoken(signal.POSITIONS_LOST, replace(lost, buffers=(replace(ROTARY, max_abs=1.0),)))) == ["warning"]
    assert loud(spoken(signal.POSITIONS_LOST, replace(lost, buffers=(ROTARY,)))) == ["error"]
    assert loud(spoken(signal.POSITIONS_LOST, probed(position=1e-4, dtype="bfloat16"))) == ["warning"]
    assert spoken(signal.POSITIONS_LOST, probed(position=1e-4)) == ()
    assert spoken(signal.POSITIONS_LOST, probed(position=9e-4, dtype="bfloat16")) == ()


@pytest.mark.parametrize(
    "name",
    "transformer.wpe.weight|pos_emb|model.pos_embedding.weight|position_embedding|embeddings.position_embeddings.weight"
    "|model.rotary_emb.inv_freq|layers.1.attn.rope.freqs_cis|alibi_slopes|relative_attention_bias.weight|pe"
    "|decoder.embed_positions.weight|rel_pos_bias|pos_encoding".split("|"),
)
def test_names_of_position_encodings(name: str) -> None:
    assert signal.POSITION_NAME.search(name)


@pytest.mark.parametrize("name", "tokens.weight|h.0.attn.c_proj.weight|compose.weight|type_emb|open|ropes.x".split("|"))
def test_other_names(name: str) -> None:
    assert not signal.POSITION_NAME.search(name)


class Wanted:
    def __init__(self, headroom_dtype: str) -> None:
        self.headroom_dtype = headroom_dtype


@pytest.mark.parametrize(
    ("largest", "wanted", "kept", "severities"),
    [
        (594.0, "float16", "float32", []),  # GPT-2 with std 1: faults.md, K21
        (8187.0, "float16", "float32", []),
        (8189.0, "float16", "float32", ["error"]),
        (8189.0, "bfloat16", "float32", []),
        (8189.0, "bfloat16", "float16", ["error"]),  # the model is in float16 already
        (1e38, "bfloat16", "float32", ["error"]),
        (math.inf, "float32", "float32", ["error"]),
        (math.nan, "float16", "float32", []),
    ],
)
def test_headroom(largest: float, wanted: str, kept: str, severities: list[str]) -> None:
    measured = replace(probed(dtype=kept), headroom=HeadroomMeasure(largest, "blocks.3.mlp.up"))
    found = spoken(precision.OVERFLOW, measured, gate=Wanted(wanted))
    assert loud(found) == severities
    assert all(finding.subject == "blocks.3.mlp.up" and f"{largest:.3g}" in finding.message for finding in found)
