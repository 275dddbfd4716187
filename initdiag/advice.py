"""What to change in a config so that its findings go away, each change verified by a prediction."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from initdiag.errors import InitdiagError
from initdiag.request import Request

if TYPE_CHECKING:
    from initdiag.report import Advice, Run

Again = Callable[[Request, bool], "Run"]

MOST_LINES = 3  # that are taken together
MOST_TRIED = 6  # predictions, of a fraction of a second each
MOST_LAYERS = 60  # in all of them together


def advised(run: Run, request: Request, again: Again) -> Run:
    """Return a run with the changes that its findings ask for, as far as theory agrees that they help.

    Lines that findings offer are put into the config, predicted and judged: first one of every finding, all together;
    then each for itself, and from the best of them on the next. Kept is what makes findings go away and brings no new
    error; where something leaves no error and no warning, only that.

    Args:
        request: that the run is of. again: predicts the same target for another request, in brief or whole.
    """
    budget = _budget(run)
    tried: list[Advice] = []
    together = tuple(dict.fromkeys(one.cures[0] for one in run.findings if one.severity != "info" and one.cures))
    if len(together) > 1:
        budget -= 1
        tried += _tried(request, again, run, [together])
    start: tuple[str, ...] = ()
    now = run
    for _ in range(MOST_LINES):
        offered = dict.fromkeys(line for one in now.findings if one.severity != "info" for line in one.cures)
        lines = [(*start, line) for line in list(offered)[: max(budget, 0)] if line not in start]
        budget -= len(lines)
        found = list(_tried(request, again, run, lines))
        tried += found
        if not found or any(not one.left for one in found):
            break
        best = min(found, key=_badness)
        start, now = best.lines, best.run
    kept = {one.lines: one for one in tried if one.cured}
    clean = sorted([one for one in kept.values() if not one.left] or kept.values(), key=_badness)[:MOST_LINES]
    if not math.isnan(run.measured.residual.branches[-1].token_share):  # what sequences have in common was looked at
        whole = _tried(request, again, run, [one.lines for one in clean], brief=False)
        clean = sorted((one for one in whole if one.cured and not set(one.left) - _loud(run)), key=_badness)
    return replace(run, advice=tuple(clean))


def _budget(run: Run) -> int:
    """How many predictions are worth it: of a deep model one takes a good part of a second."""
    layers = run.measured.wiring.n_layers or 1
    return max(1, min(MOST_TRIED, MOST_LAYERS // layers))


def _badness(one: Advice) -> tuple[int, int, int]:
    errors = sum(finding.severity == "error" for finding in one.run.findings)
    return errors, len(one.left), len(one.lines)


def _tried(
    request: Request, again: Again, run: Run, changes: Iterable[tuple[str, ...]], *, brief: bool = True
) -> Iterator[Advice]:
    """Predict changes, and yield those that bring no new error."""
    from initdiag.report import Advice

    before = _loud(run)
    for lines in changes:
        try:
            after = again(with_lines(request, lines), brief)
        except InitdiagError:
            continue  # it doesn't fit what else is set
        left = _loud(after)
        if not _errors(after) - _errors(run):
            yield Advice(lines, tuple(sorted(before - left)), tuple(sorted(left)), after)


def _loud(run: Run) -> set[str]:
    return {one.rule for one in run.findings if one.severity != "info"}


def _errors(run: Run) -> set[str]:
    return {one.rule for one in run.findings if one.severity == "error"}


def with_lines(request: Request, lines: Sequence[str]) -> Request:
    """Return a request that sets what lines of a config say, in place of what it set there before."""
    scheme, overrides = request.scheme, list(request.overrides)
    for line in sorted(lines, key=lambda one: not one.startswith("init.scheme: ")):  # what else is set goes over it
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
    import yaml  # not at once: every command imports this module

    return [(f"{key}.{role}", _flow(draw)) for role, draw in yaml.safe_load(value).items()]


def _flow(value: object) -> str:
    import yaml

    return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
