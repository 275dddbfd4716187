"""INIT002: matrices that hold what the framework's constructor wrote, where something else was meant."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator

from initdiag.measure import ParameterMeasure
from initdiag.rules.matrices import CLOSE, MAJORITY, PADDED, SIGMAS, Pair, code, matrices, more
from initdiag.rules.rule import Evidence, Rule, Trouble
from initdiag.schemes import AsFound, Distribution, Normal, PlannedParameter, Role, Uniform

FINGERPRINT = 256  # fewest entries in which a uniform and a normal differ: kurtosis 1.8 ± 0.07 against 3 ± 0.3
EDGE = 0.02  # how near the largest of that many uniform draws comes to the bound, but for one time in 200


def _framework_default(evidence: Evidence) -> Iterator[Trouble]:
    # state-space blocks draw some of theirs like nn.Linear on purpose (Mamba's out_proj and dt_proj)
    others = {branch.projection for branch in evidence.measured.residual.branches if branch.kind == "other"}
    pairs = [pair for pair in matrices(evidence) if pair[0].std > 0 and pair[0].name not in others]
    defaults = {measured.name: default for measured, planned in pairs if (default := _default(measured, planned))}
    found: dict[str, list[tuple[ParameterMeasure, float]]] = {}
    for measured, planned in pairs:
        if measured.name in defaults and not _written_on_purpose(measured.name, evidence, len(defaults) == len(pairs)):
            reason, std = _declared_otherwise(measured, planned, defaults, pairs, evidence)
            if reason:
                found.setdefault(reason, []).append((measured, std))
    for reason, cases in found.items():
        measured, std = cases[0]
        default = defaults[measured.name]
        maker = "nn.Embedding" if isinstance(default, Normal) else "nn.Linear"
        yield Trouble(
            f"{measured.name}{more(len(cases) - 1, 'matrices')}: {maker}'s own default {default}, std "
            f"{measured.std:.4g}; expected std {std:.4g}, as {reason}",
            measured.name,
            f"your init function doesn't reach it (never applied, an isinstance or a name that doesn't match, or built "
            f"after it ran); in it: {code(measured.name, std)}",
            "init.scheme",
        )


def _default(measured: ParameterMeasure, planned: PlannedParameter) -> Distribution | None:
    """Return the framework's default that a matrix holds, if it holds one."""
    parameter = planned.parameter
    if parameter.numel < FINGERPRINT or len(parameter.shape) != 2:
        return None
    table = parameter.role in PADDED
    fan_in = parameter.shape[1] if table else parameter.fan_in  # tied the other way round, a table is a linear weight
    uniform = Uniform(1 / math.sqrt(fan_in))
    if _holds(measured, uniform, parameter.numel, 0.1) and abs(measured.max_abs / uniform.bound - 1) <= EDGE:
        # Xavier's √(6/(fan_in + fan_out)) is the same number where fan_out = 5·fan_in
        xavier = abs(parameter.numel / fan_in**2 - 5) <= 5 * EDGE
        return None if xavier and not table else uniform
    unit = Normal(1.0)
    return unit if table and _holds(measured, unit, parameter.numel, 0.1) else None


def _holds(measured: ParameterMeasure, distribution: Distribution, count: int, slack: float) -> bool:
    """Whether std and kurtosis are those of a distribution, within sampling error."""
    std_error = math.sqrt((distribution.kurtosis - 1) / (4 * count))
    shape_error = (1.15 if isinstance(distribution, Uniform) else math.sqrt(24)) / math.sqrt(count)
    return (
        abs(measured.std / distribution.std - 1) <= max(SIGMAS * std_error, 0.01)
        and abs(measured.kurtosis - distribution.kurtosis) <= slack + SIGMAS * shape_error
    )


def _written_on_purpose(name: str, evidence: Evidence, all_default: bool) -> bool:
    """Whether building was watched and an init function drew this one from what is also the default (Mamba does)."""
    history = evidence.measured.history
    return history.watched and not all_default and name not in history.untouched


def _declared_otherwise(
    measured: ParameterMeasure,
    planned: PlannedParameter,
    defaults: dict[str, Distribution],
    pairs: list[Pair],
    evidence: Evidence,
) -> tuple[str, float]:
    """Return who says that something else was meant, and the std that they say; ("", nan) where nobody does."""
    declared, plan = evidence.subject.declared.std, planned.distribution
    same = _same(plan, defaults[measured.name])
    ours = evidence.subject.drawn_by_us and not isinstance(plan, AsFound)
    if ours and same:  # a scheme that draws just this means it: of some shapes any formula is 1/√fan_in
        return "", math.nan
    if declared and not ours and abs(measured.std / declared - 1) > CLOSE:
        return "the config declares", declared
    if not isinstance(plan, AsFound) and not same:
        return f"the plan draws {planned.parameter.role} from {plan}", plan.std
    # among the layers' matrices alone: a head, a router or an embedding that is left alone is a choice of its own
    layers = [pair for pair in pairs if pair[1].parameter.layer is not None and pair[1].parameter.role != Role.ROUTER]
    others = [pair[0].std for pair in layers if pair[0].name not in defaults]
    if any(pair[0] is measured for pair in layers) and len(others) >= MAJORITY * len(layers):
        return f"{len(others)} of the {len(layers)} matrices in the layers carry another init", statistics.median(
            others
        )
    return "", math.nan


def _same(plan: Distribution, default: Distribution) -> bool:
    return type(plan) is type(default) and abs(plan.std / default.std - 1) <= CLOSE


DEFAULT = Rule(
    id="INIT002",
    name="framework-default",
    severity="error",
    what="A matrix holds what the framework's constructor wrote, U(1/√fan_in) of nn.Linear or N(1) of nn.Embedding, "
    "where something else is declared: by the config, by the plan, or by two thirds of the layers' matrices. A model "
    "that is all defaults and declares nothing passes.",
    why="The init function was never applied, or its isinstance or name test misses a class. nn.Linear's own std is "
    "1/√(3·fan_in), two to three times 0.02 at usual widths, and no depth scaling is in it; the loss hardly moves.",
    example="`self.apply(self._init_weights)` lost in a refactor: std 0.051 instead of 0.02 at d_model 128.",
    instead="Call the init function last in the model's constructor, and let it reach every matrix.",
    references=("torch.nn.Linear.reset_parameters (kaiming_uniform_ with a=√5)",),
    check=_framework_default,
)
