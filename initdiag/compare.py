"""The use case `compare`: one model under several schemes, with the same random draws."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from initdiag.check import Progress, configure, diagnose, prepare

if TYPE_CHECKING:
    from initdiag.engines import Settings
    from initdiag.engines.dense import Weights
    from initdiag.report import Pick, Report, Run

DEFAULT_TARGET = "gpt2"
DEFAULT_SCHEMES = ("default", "gpt2", "scaled")


def compare(
    target: Any = DEFAULT_TARGET,
    *,
    schemes: Sequence[str] = DEFAULT_SCHEMES,
    seed: int | None = None,
    seeds: int = 1,
    overrides: Sequence[str] = (),
    text: str | os.PathLike[str] | None = None,
    tokens: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Report:
    """Run a target once per scheme and seed, and say which scheme to take.

    Args:
        schemes: names of schemes; each draws the same standard normals (see schemes/distributions.py).
        seeds: how many seeds, counted up from the first; tokens without a seed of their own change along.
        The others are those of `check`.

    Returns:
        A Report with a run for each seed and scheme, and a pick.

    Raises:
        As `check`; UsageError too for no scheme, one named twice, or less than one seed.
    """
    from initdiag.engines import Settings
    from initdiag.errors import UsageError
    from initdiag.report import Report
    from initdiag.schemes import scheme_named

    for name in schemes:
        scheme_named(name)
        if list(schemes).count(name) > 1:
            raise UsageError(f"scheme '{name}' is named twice; expected every scheme once")
    if not schemes:
        raise UsageError("no schemes to compare; expected names such as default,gpt2,scaled")
    if seeds < 1:
        raise UsageError(f"--seeds {seeds}: expected at least 1")
    file = configure(target, None, seed, overrides, text, tokens, tokenizer)
    first = file.config.init.seed
    cases = [prepare(configure(file, scheme, first + i)) for i in range(seeds) for scheme in schemes]
    runs: list[Run] = []
    weights: Weights | None = None
    for case in cases:
        run, weights = diagnose(case, settings or Settings(), progress, weights)
        runs.append(run)
    return Report(tuple(runs), command, pick(runs))


def pick(runs: Sequence[Run]) -> Pick:
    """Choose: no errors, then few warnings, then a stream that keeps its size, then little excess."""
    from initdiag.report import Pick
    from initdiag.rules import Severity

    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.scheme, []).append(run)

    def badness(scheme: str) -> tuple[float, float, float, float]:
        group = groups[scheme]
        growth = _mean([abs(math.log(run.measured.residual.scaling_ratio or math.nan)) for run in group])
        excess = _mean([run.measured.loss.uniform_targets - run.measured.loss.uniform for run in group])
        return (
            sum(run.count(Severity.ERROR) for run in group) / len(group),
            sum(run.count(Severity.WARNING) for run in group) / len(group),
            math.inf if math.isnan(growth) else round(growth, 1),
            math.inf if math.isnan(excess) else excess,
        )

    best = min(groups, key=badness)
    errors, warnings, _, _ = badness(best)
    group = groups[best]
    ratio = _mean([run.measured.residual.scaling_ratio for run in group])
    excess = _mean([run.measured.loss.excess for run in group])
    found = (
        "no errors and no warnings"
        if not errors and not warnings
        else f"no errors, {warnings:g} warning{'s' * (warnings != 1)}"
        if not errors
        else f"the fewest errors ({errors:g})"
    )
    per_run = " per run" if len(group) > 1 and (errors or warnings) else ""
    return Pick(
        best,
        f"{found}{per_run}; its branches add up to {ratio:.3g} unscaled branches, and it starts {excess:.3f} nats "
        "over ln V",
    )


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if all(map(math.isfinite, values)) else math.nan
