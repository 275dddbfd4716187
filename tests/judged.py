"""Runs without the parts of `initdiag.check` that a test doesn't look at and that take most of its time."""

from __future__ import annotations

from typing import Any

from initdiag.case import case_of, diagnose
from initdiag.engines import Settings, dense
from initdiag.measure import Measurements
from initdiag.measure.observe import observe
from initdiag.report import Run
from initdiag.request import Request


def judged(target: Any, *, backward: bool = False, **given: Any) -> Run:
    """Run a target as `initdiag.check` does, whose arguments these are, without trying what cures its findings."""
    request = Request(backward=backward, **given)
    return diagnose(case_of(target, request), request)[0]


def measured(target: Any, **given: Any) -> Measurements:
    """Run a config as `initdiag.check` does, and only measure it."""
    case = case_of(target, Request(**given))
    return dense.run(case.subject, case.batch, case.file.config.init.seed, Settings(), observe)[0]
