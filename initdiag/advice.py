"""What to change in a config so that its findings go away, each change verified by a prediction."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import yaml

from initdiag.errors import InitdiagError
from initdiag.request import Request

if TYPE_CHECKING:
    from initdiag.report import Advice, Run

MOST_LINES = 3  # that are taken together
MOST_TRIED = 12  # predictions, of a fraction of a second each


def advised(run: Run, request: Request, again: Callable[[Request], Run]) -> Run:
    """Return a run with the changes that its findings ask for, as far as theory agrees that they help.

    Every line that a finding offers is put into the config, predicted and judged. Kept is what makes the finding go
    away and brings no new error. Where none leaves the model without errors and warnings, the best is taken as the
    start of the next round, so that changes come together.

    Args:
        request: that the run is of. again: predicts the same target for another request.
    """
    tried: list[Advice] = []
    start: tuple[str, ...] = ()
    now = run
    for _ in range(MOST_LINES):
        found = list(_helpful(request, again, now, start, MOST_TRIED - len(tried)))
        tried += found
        if not found or any(not one.left for one in tried):
            break
        best = min(found, key=_badness)
        start, now = best.lines, best.run
    clean = [one for one in tried if not one.left] or tried
    return replace(run, advice=tuple(sorted(clean, key=_badness)[:MOST_LINES]))


def _badness(one: Advice) -> tuple[int, int, int]:
    errors = sum(finding.severity == "error" for finding in one.run.findings)
    return errors, len(one.left), len(one.lines)


def _helpful(
    request: Request, again: Callable[[Request], Run], run: Run, start: tuple[str, ...], budget: int
) -> Iterator[Advice]:
    from initdiag.report import Advice

    before = _loud(run)
    offered = dict.fromkeys((line, one.rule) for one in run.findings if one.severity != "info" for line in one.cures)
    seen: set[str] = set()
    for line, rule in offered:
        if line in seen or len(seen) >= budget:
            continue
        seen.add(line)
        lines = (*start, line)
        try:
            after = again(with_lines(request, lines))
        except InitdiagError:
            continue  # it doesn't fit what else is set
        left = _loud(after)
        if rule not in left and not _errors(after) - _errors(run):
            yield Advice(lines, tuple(sorted(before - left)), tuple(sorted(left)), after)


def _loud(run: Run) -> set[str]:
    return {one.rule for one in run.findings if one.severity != "info"}


def _errors(run: Run) -> set[str]:
    return {one.rule for one in run.findings if one.severity == "error"}


def with_lines(request: Request, lines: Sequence[str]) -> Request:
    """Return a request that sets what lines of a config say, in place of what it set there before."""
    scheme, overrides = request.scheme, list(request.overrides)
    for line in lines:
        key, _, value = line.partition(": ")
        if key == "init.scheme":
            scheme = value
            overrides = [one for one in overrides if not re.match(r"\s*init\s*\.", one)]
            continue
        for path, text in _leaves(key, value):
            overrides = [one for one in overrides if one.partition("=")[0].strip() != path]
            overrides.append(f"{path}={text}")
    return replace(request, scheme=scheme, overrides=tuple(overrides))


def _leaves(key: str, value: str) -> Iterable[tuple[str, str]]:
    """Set the roles of init.roles one by one, so that others stay."""
    if key != "init.roles":
        return [(key, value)]
    return [(f"{key}.{role}", _flow(draw)) for role, draw in yaml.safe_load(value).items()]


def _flow(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
