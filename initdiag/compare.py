"""The use case `compare`: one model under several schemes, with the same random draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from initdiag.case import Case, configure, diagnose, kept_weights, load_module, module_case, prepare, require_room
from initdiag.errors import UsageError, require_type
from initdiag.request import Path, Progress, Request

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
    text: Path | None = None,
    tokens: Path | None = None,
    tokenizer: Path | None = None,
    settings: Settings | None = None,
    kwargs: Mapping[str, Any] | None = None,
    vocab_size: int | None = None,
    causal: bool | None = None,
    trust_remote_code: bool = False,
    backward: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Report:
    """Run a target once per scheme and seed, and say which scheme to take.

    Args:
        target: as in `check`; a module's parameters are planned by the roles that one forward shows, and its own
            weights are put back at the end.
        schemes: names of schemes; each draws the same standard normals (see schemes/distributions.py).
        seeds: how many seeds, counted up from the first; tokens without a seed of their own change along.
        The others are those of `check`.

    Returns:
        A Report with a run for each seed and scheme, and a pick.

    Raises:
        As `check`; UsageError too for no scheme, one named twice, or less than one seed.
    """
    from initdiag.report import Report

    names = _names(schemes)
    require_type("seeds", seeds, (int,), "a whole number")
    if not 1 <= seeds <= MOST_SEEDS:
        raise UsageError(f"--seeds {seeds}: expected at least 1 and at most {MOST_SEEDS:,}")
    request = Request(
        seed=seed,
        overrides=overrides,
        text=text,
        tokens=tokens,
        tokenizer=tokenizer,
        settings=settings,
        kwargs=kwargs if kwargs is not None else {},
        vocab_size=vocab_size,
        causal=causal,
        trust_remote_code=trust_remote_code,
        backward=backward,
    )
    from initdiag import subjects

    if subjects.is_module_target(target):
        subject = load_module(target, request, progress)

        def case(name: str, seed: int) -> Case:
            return module_case(subject, replace(request, scheme=name, seed=seed), drop_options=True)

        with kept_weights(subject):
            return Report(*_run(case, names, request.seed or 0, seeds, request, command, progress))
    file = configure(target, request)

    def case_of(name: str, seed: int) -> Case:
        return prepare(configure(file, Request(scheme=name, seed=seed), drop_options=True))

    return Report(*_run(case_of, names, file.config.init.seed, seeds, request, command, progress))


def _names(schemes: Iterable[str]) -> tuple[str, ...]:
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
    return names


def _run(
    case_of: Callable[[str, int], Case],
    names: Sequence[str],
    first: int,
    seeds: int,
    request: Request,
    command: str,
    progress: Progress | None,
) -> tuple[tuple[Run, ...], str, Pick]:
    # of the first seed, all cases before anything runs, so that whatever is wrong is told at once; the others later
    cases = {name: case_of(name, first) for name in names}
    for case in cases.values():
        require_room(case, request)
    runs: list[Run] = []
    weights: Weights | None = None
    for i in range(seeds):
        for name in names:
            case = cases[name] if i == 0 else case_of(name, first + i)
            told = f"run {len(runs) + 1} of {seeds * len(names)}: "
            run, weights = diagnose(case, request, progress, weights, told)
            runs.append(run)
    return tuple(runs), command, pick(runs)


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
        f"{_counted(errors, 'error')} and {_counted(warnings, 'warning')}{per_run}, "
        + (f"scaling ratio {ratio:.3g}, " if math.isfinite(ratio) else "")
        + f"excess {excess:.3f} nats. "
        "Picked by, in this order: fewest errors, fewest warnings, scaling ratio nearest to 1, least excess",
    )


def _counted(count: float, word: str) -> str:
    return f"{count:g} {word}" + ("" if count == 1 else "s")
