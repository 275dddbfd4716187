"""The rules and the judgement. No torch. The door is `judge`."""

from __future__ import annotations

from initdiag.rules.finding import Finding, Severity
from initdiag.rules.judge import RULES, judge, rule_named, selected
from initdiag.rules.rule import Rule

__all__ = ["RULES", "Finding", "Rule", "Severity", "judge", "rule_named", "selected"]
