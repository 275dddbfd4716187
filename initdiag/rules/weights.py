"""Rules on the weights themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator

from initdiag.measure import ParameterMeasure
from initdiag.rules.rule import Evidence, Rule, Trouble, as_python
from initdiag.schemes import AsFound, Constant, PlannedParameter

SIGMAS = 5.0  # two-sided false-alarm rate 6e-7 for each parameter


def _off_plan(evidence: Evidence) -> Iterator[Trouble]:
    plan, tolerance = evidence.subject.plan.by_name, evidence.gate.std_tolerance
    off: dict[str, list[tuple[ParameterMeasure, PlannedParameter]]] = {}
    for measured in evidence.measured.parameters:
        planned = plan.get(measured.name)
        if planned is not None and not measured.not_finite and not _as_planned(measured, planned, tolerance):
            off.setdefault(f"{planned.parameter.role}", []).append((measured, planned))
    for role, pairs in off.items():
        measured, planned = max(pairs, key=lambda pair: _distance(*pair))
        more = f", and {len(pairs) - 1} more of role {role}" if len(pairs) > 1 else ""
        yield Trouble(
            f"{measured.name}{more}: {_found(measured, planned)}",
            measured.name,
            f"the init that should write it did not run, ran twice, or was overwritten; in your init function: "
            f"{_code(planned)}",
            "init.scheme",
        )


def _as_planned(measured: ParameterMeasure, planned: PlannedParameter, tolerance: float) -> bool:
    """Compare mean and std with the plan, within sampling error.

    The std of n draws has the relative standard error √((κ − 1)/(4n)), κ the kurtosis; their mean has std/√n.
    """
    distribution, count = planned.distribution, planned.parameter.numel
    if isinstance(distribution, AsFound) or math.isnan(distribution.std):  # all or a part is left as it was found
        return True
    if isinstance(distribution, Constant):
        close = tolerance * abs(distribution.value)
        return abs(measured.mean - distribution.value) <= close and measured.std <= close
    relative = abs(measured.std / distribution.std - 1)
    allowed = max(tolerance, SIGMAS * math.sqrt((distribution.kurtosis - 1) / (4 * count)))
    return relative <= allowed and abs(measured.mean) <= SIGMAS * distribution.std / math.sqrt(count)


def _distance(measured: ParameterMeasure, planned: PlannedParameter) -> float:
    """How far off, for choosing the worst: |ln(std ratio)|."""
    declared = planned.distribution.std
    return abs(math.log(measured.std / declared)) if declared and measured.std else math.inf


def _found(measured: ParameterMeasure, planned: PlannedParameter) -> str:
    distribution = planned.distribution
    if isinstance(distribution, Constant):
        return f"mean {measured.mean:.4g} and std {measured.std:.4g}; planned is the constant {distribution}"
    times = f", {measured.std / distribution.std:.3g} times" if measured.std else ""
    return f"std {measured.std:.4g}{times} and mean {measured.mean:.2g}; planned is {distribution}, mean 0"


def _code(planned: PlannedParameter) -> str:
    distribution = planned.distribution
    name = f"{as_python(planned.parameter.name)}"
    if isinstance(distribution, Constant):
        return f"nn.init.constant_({name}, {distribution})"
    return f"nn.init.normal_({name}, std={distribution.std:.4g})"


OFF_PLAN = Rule(
    id="INIT001",
    name="off-plan-parameter",
    severity="error",
    what="A parameter does not hold what the scheme says: its mean or std is off by more than five standard errors "
    "and gate.std_tolerance.",
    why="An init function that skips a module, runs twice, or is overwritten by a later line leaves the forward pass "
    "running and the loss near ln V. Only the weights show it.",
    example="A refactor renames c_proj to out_proj; the rule `name.endswith('c_proj.weight')` matches nothing and the "
    "std is 0.02 where 0.00408 is planned.",
    instead="Check that every parameter is matched by exactly one rule of the init function; then draw it anew.",
    references=("docs/concepts.md, measured std",),
    check=_off_plan,
)
