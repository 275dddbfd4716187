"""A report as plain dicts and lists: what the JSON output holds. Its schema_version changes when a key does."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from initdiag.errors import Location, Option
from initdiag.report import document_model as model
from initdiag.report.header import demanded
from initdiag.report.report import Advice, Report, Run
from initdiag.rules import Finding

SCHEMA_VERSION = 1


def document(report: Report) -> dict[str, Any]:
    """Return a single checked target flat, several targets and every comparison as {"runs": […]}."""
    if len(report.runs) == 1 and report.pick is None:
        return {"schema_version": SCHEMA_VERSION, **_run(report.run, report.command)}
    runs = [_run(run, report.command) for run in report.runs]
    picked = {"scheme": report.pick.scheme, "why": report.pick.why} if report.pick else None
    return {
        "schema_version": SCHEMA_VERSION,
        "runs": runs,
        **({"pick": picked} if picked else {}),
        "verdict": report.verdict,
    }


def _run(run: Run, command: str) -> dict[str, Any]:
    loss, logits = run.measured.loss, run.measured.logits
    content = {
        "target": run.subject.target,
        "name": run.subject.name,
        "scheme": run.scheme,
        "scheme_parameters": dict(run.subject.plan.settings),
        "scheme_demands": list(demanded(run)),
        "seed": run.seed,
        "engine": run.engine,
        "engine_reason": run.why,
        "weightless": model.weightless(run),
        "dtype": run.dtype,
        "tokens": {
            "source": run.batch.source,
            "path": run.batch.path,
            "batch": run.batch.batch,
            "length": run.batch.length,
            "distinct": run.batch.distinct,
            "total": run.batch.total,
        },
        "loss": {
            "value": loss.value,
            "uniform": loss.uniform,
            "excess": loss.excess,
            "expected": run.expected.loss,
            "allowance": run.expected.allowance,
            "uniform_targets": loss.uniform_targets,
        },
        "logits": {
            "std": logits.std,
            "expected_std": run.expected.logit_std,
            "self": logits.self_logit,
            "max_abs": None if run.predicted else logits.max_abs,
            "entropy_ratio": logits.entropy_ratio,
        },
        "wiring": model.wiring(run),
        "residual": model.residual(run),
        "attention": model.attention(run),
        **model.probes(run),
        "gradients": model.gradients(run),
        "history": model.history(run),
        "copies": [asdict(copy) for copy in run.measured.copies],
        "parameters": model.parameters(run),
        "buffers": len(run.measured.buffers),
        "spreads": asdict(run.expected.prediction.spreads) if run.expected.prediction else None,
        "findings": [_finding(finding) for finding in run.findings],
        "advice": [_advice(one) for one in run.advice],
        "verdict": run.verdict,
        "versions": dict(run.versions),
        "command": command,
    }
    return {key: encodable(value) for key, value in content.items()}


def _finding(finding: Finding) -> dict[str, Any]:
    place = finding.location if isinstance(finding.location, Location) else None
    return {
        "rule": finding.rule,
        "name": finding.name,
        "severity": str(finding.severity),
        "message": finding.message,
        "subject": finding.subject,
        "help": finding.help,
        "file": place.file if place else None,
        "line": place.line if place else None,
        "column": place.column if place else None,
        "option": str(finding.location) if isinstance(finding.location, Option) else None,
    }


def _advice(one: Advice) -> dict[str, Any]:
    values = one.run.measured
    return {
        "lines": list(one.lines),
        "cured": list(one.cured),
        "left": list(one.left),
        "loss": values.loss.value,
        "logit_std": values.logits.std,
        "scaling_ratio": values.residual.scaling_ratio,
    }


def encodable(value: Any) -> Any:
    """Replace the floats that JSON doesn't have by "inf", "-inf" and "nan"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: encodable(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [encodable(part) for part in value]
    return value
