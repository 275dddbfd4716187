"""The table of rules, and the judgement."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from initdiag.errors import ConfigError, Problem, UsageError, did_you_mean
from initdiag.rules import (
    attention,
    copies,
    dead_parameters,
    departure,
    distribution,
    framework_default,
    freshness,
    gradients,
    history,
    labels,
    logits,
    loss,
    norms,
    numerics,
    odd_layer,
    precision,
    residual,
    routing,
    signal,
    weights,
    wiring,
)
from initdiag.rules.finding import Finding, Severity
from initdiag.rules.freshness import looks_trained
from initdiag.rules.rule import Evidence, Rule

if TYPE_CHECKING:
    from initdiag.config.schema import Gate
    from initdiag.measure import Measurements
    from initdiag.subjects import Subject
    from initdiag.theory import Expectations

# Ids are for ever: a rule may retire, its id is not given again. Causes stand before their consequences.
RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in (
        numerics.NOT_FINITE,
        precision.OVERFLOW,
        freshness.TRAINED,
        history.UNWRITTEN,
        weights.OFF_PLAN,
        framework_default.DEFAULT,
        history.UNTOUCHED,
        history.RESCALED,
        copies.COPIES,
        distribution.DAMAGED,
        distribution.DEGENERATE,
        odd_layer.ODD_LAYER,
        history.TIE,
        logits.PREDICTS_INPUT,
        logits.HOT,
        loss.ABOVE,
        loss.BELOW,
        loss.EXCESS,
        labels.MISALIGNED,
        labels.REDUCTION,
        wiring.NOT_ADDED,
        wiring.WRONG_MATRICES,
        residual.UNSCALED,
        residual.TWICE,
        norms.GAIN,
        norms.NO_FINAL_NORM,
        attention.SATURATED,
        signal.LEAKS,
        signal.TOKENS_LOST,
        signal.POSITIONS_LOST,
        departure.DEPARTS,
        routing.COLLAPSE,
        gradients.NOT_FINITE,
        gradients.IMBALANCE,
        dead_parameters.DEAD,
    )
}

_ORDER = {severity: rank for rank, severity in enumerate(Severity)}


def judge(subject: Subject, measured: Measurements, expected: Expectations, gate: Gate) -> tuple[Finding, ...]:
    """Ask every selected rule; the worst findings come first."""
    evidence = Evidence(subject, measured, expected, gate)
    trained = looks_trained(evidence)
    asked = [rule for rule in selected(subject, gate) if rule.on_trained or not trained]
    found = [finding for rule in asked for finding in rule.findings(evidence)]
    return tuple(sorted(found, key=lambda finding: _ORDER[finding.severity]))


def selected(subject: Subject, gate: Gate) -> tuple[Rule, ...]:
    """Return the rules that a gate selects.

    Raises:
        ConfigError: gate.select or gate.ignore names no rule.
    """
    problems = [
        Problem(_unknown(word), f"gate.{key}", subject.locate(f"gate.{key}"))
        for key, words in (("select", gate.select), ("ignore", gate.ignore))
        for word in words
        if not _matching(word)
    ]
    if problems:
        raise ConfigError(problems)
    wanted = _ids(gate.select) if gate.select else set(RULES)
    return tuple(rule for rule in RULES.values() if rule.id in wanted - _ids(gate.ignore))


def rule_named(word: str) -> Rule:
    """Return a rule by id or name.

    Raises:
        UsageError: there is none.
    """
    for rule in RULES.values():
        if word.upper() == rule.id or word == rule.name:
            return rule
    raise UsageError(_unknown(word))


def _matching(word: str) -> set[str]:
    return {rule.id for rule in RULES.values() if word == rule.name or (word and rule.id.startswith(word.upper()))}


def _ids(words: Iterable[str]) -> set[str]:
    return set().union(*(_matching(word) for word in words))


def _unknown(word: str) -> str:
    names = [name for rule in RULES.values() for name in (rule.id, rule.name)]
    hint = did_you_mean(word, names) or did_you_mean(word.upper(), names)
    return f"unknown rule '{word}'; expected one of {', '.join(sorted(RULES))}{hint}"
