"""The use case `compare`: one model under several schemes, with the same random draws."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from initdiag.check import Progress, as_overrides, as_settings, configure, diagnose, prepare
from initdiag.errors import UsageError, require_type

if TYPE_CHECKING:
    from initdiag.engines import Settings
    from initdiag.engines.dense import Weights
    from initdiag.report import Pick, Report, Run

DEFAULT_TARGET = "gpt2"
DEFAULT_SCHEMES = ("default", "gpt2", "scaled")
MOST_SEEDS = 10_000


def compare(
    target: Any = DEFAULT_TARGET,
    *,
    schemes: Iterable[str] = DEFAULT_SCHEMES,
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
    from initdiag.report import Report
    from initdiag.schemes import scheme_named

    require_type("schemes", schemes, (str, Iterable), "names of schemes")
    names = tuple(schemes.split(",")) if isinstance(schemes, str) else tuple(schemes)
    for name in names:
        require_type("schemes", name, (str,), "names of schemes")
        scheme_named(name)
        if names.count(name) > 1:
            raise UsageError(f"scheme '{name}' is named twice; expected every scheme once")
    if not names:
        raise UsageError("no schemes to compare; expected names such as default,gpt2,scaled")
    require_type("seeds", seeds, (int,), "a whole number")
    if not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds {seeds}: expected at least 1 and at most {MOST_SEEDS:,}")
    settings = as_settings(settings)
    file = configure(target, None, seed, as_overrides(overrides), text, tokens, tokenizer)
    first = file.config.init.seed
    # of the first seed, all cases before anything runs, so that whatever is wrong is told at once; the others later
    cases = {name: prepare(configure(file, name, first, drop_options=True)) for name in names}
    runs: list[Run] = []
    weights: Weights | None = None
    for i in range(seeds):
        for name in names:
            case = cases[name] if i == 0 else prepare(configure(file, name, first + i, drop_options=True))
            told = f"run {len(runs) + 1} of {seeds * len(names)}: "
            run, weights = diagnose(case, settings, progress, weights, told)
            runs.append(run)
    return Report(tuple(runs), command, pick(runs))


def pick(runs: Sequence[Run]) -> Pick:
    """Choose: no errors, then few warnings, then a stream that keeps its size, then little excess."""
    from initdiag.measure import mean
    from initdiag.report import Pick
    from initdiag.report.compared import by_scheme
    from initdiag.rules import Severity

    groups = by_scheme(runs)

    def badness(scheme: str) -> tuple[float, float, float, float]:
        group = groups[scheme]
        growth = mean(
            [
                abs(math.log(run.measured.residual.scaling_ratio))
                if 0 < run.measured.residual.scaling_ratio < math.inf
                else math.nan
                for run in group
            ]
        )
        excess = mean([run.measured.loss.uniform_targets - run.measured.loss.uniform for run in group])
        return (
            sum(run.count(Severity.ERROR) for run in group) / len(group),
            sum(run.count(Severity.WARNING) for run in group) / len(group),
            math.inf if math.isnan(growth) else round(growth, 1),
            math.inf if math.isnan(excess) else excess,
        )

    best = min(groups, key=badness)
    errors, warnings, _, _ = badness(best)
    group = groups[best]
    ratio = mean([run.measured.residual.scaling_ratio for run in group])
    excess = mean([run.measured.loss.excess for run in group])
    per_run = " per run" if len(group) > 1 else ""
    return Pick(
        best,
        f"{errors:g} errors and {warnings:g} warnings{per_run}, scaling ratio {ratio:.3g}, excess {excess:.3f} nats. "
        "Picked by, in this order: fewest errors, fewest warnings, scaling ratio nearest to 1, least excess",
    )
