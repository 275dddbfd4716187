"""Rules on what single matrices hold: framework defaults, damaged distributions, no rank, one layer unlike the rest.

Only matrices whose role says that they are drawn are judged: linear weights, embeddings, routers. Vectors, multipliers
and tensors of no known role (relative-bias tables, SSM parameters, LayerScale) are what their authors made them.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator

from initdiag.measure import ParameterMeasure
from initdiag.rules.rule import Evidence, Rule, Trouble
from initdiag.schemes import AsFound, Constant, Distribution, Normal, PlannedParameter, Role, Uniform
from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS

JUDGED = frozenset({*LINEAR_WEIGHTS, *EMBEDDINGS, Role.ROUTER})
PADDED = frozenset({Role.TOKEN_EMBEDDING, Role.POSITION_EMBEDDING, Role.LM_HEAD})

SIGMAS = 5.0  # two-sided false-alarm rate 6e-7 for each number
CLOSE = 0.03  # two stds that differ by less are the same choice, whatever the sample size

FINGERPRINT = 256  # fewest entries in which a uniform and a normal differ: kurtosis 1.8 ± 0.07 against 3 ± 0.3
EDGE = 0.02  # how near the largest of that many uniform draws comes to the bound, but for one time in 200
MAJORITY = 2 / 3

FEWEST = 1024  # entries whose kurtosis and maximum are judged: below, both are a few draws' work
KURTOSES = 1.7, 3.3  # a uniform has 1.8, truncated normals 1.9 to 3, a normal 3
SKEWED = 8.0  # standard errors above: of 176,000 times 1024 normals one reached 6.7, since the fourth power is skewed
BEYOND_CHANCE = 4.0  # stds that the largest |entry| may be beyond √(2 ln n), where that of n normals is
PADDING = 0.5  # part of an embedding that may be zero rows: kurtosis and max/std see a mixture
HARMLESS_MEAN = 0.01  # of the std: bfloat16's uniform is off by 0.003, and a mean m·std outweighs the random part
# (spectral norm m·n·std against 2·√n·std) only from n = (2/m)² = 40,000 on

LOW_RANK = 0.05  # stable rank over the smaller side: independent entries have 0.25 or more, an orthogonal matrix 1
SPIKY = 30.0  # kurtosis from which it is a few entries that make the rank low (INIT005): u·vᵀ of two normals has 9
RANK_ONE = 1.05  # the same in absolute terms, for matrices of fewer than 21 rows
SAMPLED_SIDE = 256  # of the sample of which it was taken (measure/weights.py)

FEWEST_LAYERS = 4

Pair = tuple[ParameterMeasure, PlannedParameter]


def _matrices(evidence: Evidence) -> list[Pair]:
    """Return the parameters that are judged, those with entries that are not finite left out (NUM001 has them)."""
    plan = evidence.subject.plan.by_name
    pairs = [(measured, plan[measured.name]) for measured in evidence.measured.parameters if measured.name in plan]
    return [
        (measured, planned)
        for measured, planned in pairs
        if planned.parameter.role in JUDGED and len(planned.parameter.shape) > 1 and not measured.not_finite
    ]


def _code(name: str, std: float | None) -> str:
    return f"nn.init.normal_(model.{name}, std={'fan_in ** -0.5' if std is None else f'{std:.3g}'})"


def _more(count: int, what: str) -> str:
    return f", and {count} more {what}" if count else ""


# --- INIT002


def _framework_default(evidence: Evidence) -> Iterator[Trouble]:
    # state-space blocks draw some of theirs like nn.Linear on purpose (Mamba's out_proj and dt_proj)
    others = {branch.projection for branch in evidence.measured.residual.branches if branch.kind == "other"}
    pairs = [pair for pair in _matrices(evidence) if pair[0].std > 0 and pair[0].name not in others]
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
            f"{measured.name}{_more(len(cases) - 1, 'matrices')}: {maker}'s own default {default}, std "
            f"{measured.std:.4g}; expected std {std:.4g}, as {reason}",
            measured.name,
            f"your init function doesn't reach it (never applied, an isinstance or a name that doesn't match, or built "
            f"after it ran); in it: {_code(measured.name, std)}",
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
    if declared and abs(measured.std / declared - 1) > CLOSE:
        return "the config declares", declared
    if not isinstance(plan, AsFound) and not _same(plan, defaults[measured.name]):
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


# --- INIT005


def _damaged(evidence: Evidence) -> Iterator[Trouble]:
    found: dict[Role, list[tuple[ParameterMeasure, list[str]]]] = {}
    for measured, planned in _matrices(evidence):
        if measured.std > 0 and not _degenerate(measured, planned):
            complaints = _complaints(measured, planned)
            if complaints:
                found.setdefault(planned.parameter.role, []).append((measured, complaints))
    for role, cases in found.items():
        measured, complaints = cases[0]
        std = evidence.subject.declared.std
        yield Trouble(
            f"{measured.name}{_more(len(cases) - 1, f'of role {role}')}: {'; '.join(complaints)}",
            measured.name,
            "draw it in float32 and cast afterwards (erfinv in bfloat16 gives inf, and clamp the bounds), and let "
            f"nothing be added to it or written over parts of it; in your init function: {_code(measured.name, std)}",
            "init.scheme",
        )


def _complaints(measured: ParameterMeasure, planned: PlannedParameter) -> list[str]:
    parameter = planned.parameter
    count, complaints = parameter.numel, []
    part = _smallest_part(planned)  # all of the spread may be in it: then n·part entries of std/√part
    if count >= FEWEST:
        least = KURTOSES[0] - SIGMAS * 1.15 / math.sqrt(count)
        most = KURTOSES[1] / part + SKEWED * math.sqrt(24 / count)
        peak = (math.sqrt(2 * math.log(count)) + BEYOND_CHANCE) / math.sqrt(part)
        # a table of sinusoids has kurtosis 1.5 and a mean
        low = measured.kurtosis < least and parameter.role != Role.POSITION_EMBEDDING
        if low or measured.kurtosis > most:
            complaints.append(f"kurtosis {measured.kurtosis:.3g}, expected {least:.2f} to {most:.2f}")
        if measured.max_abs > peak * measured.std:
            complaints.append(
                f"its largest |entry|, {measured.max_abs:.3g}, is {measured.max_abs / measured.std:.3g} times its std, "
                f"expected at most {peak:.3g}"
            )
    allowed = max(SIGMAS / math.sqrt(count), HARMLESS_MEAN) * measured.std
    if abs(measured.mean) > allowed and parameter.role != Role.POSITION_EMBEDDING:
        complaints.append(f"mean {measured.mean:.3g}, expected 0 ± {allowed:.2g} (std {measured.std:.3g})")
    return complaints


def _smallest_part(planned: PlannedParameter) -> float:
    """The smallest part of a matrix that may have a std of its own: q of a packed one, the rows that are no pads."""
    parameter = planned.parameter
    rows = [sum(stop - start for start, stop in part.rows) for part in parameter.parts]
    part = min(rows) / sum(rows) if len(rows) > 1 and min(rows) else 1.0
    return min(part, PADDING) if parameter.role in PADDED else part


# --- INIT006


def _without_rank(evidence: Evidence) -> Iterator[Trouble]:
    found = [pair for pair in _matrices(evidence) if _degenerate(*pair)]
    if found:
        measured, _ = found[0]
        constant = f"every entry is {measured.mean:.4g}"
        rank = f"stable rank {measured.stable_rank or 0:.2g} of its smaller side, expected at least {LOW_RANK:g}"
        yield Trouble(
            f"{measured.name}{_more(len(found) - 1, 'matrices')}: {rank if measured.std else constant}; its "
            "outputs are all alike",
            measured.name,
            f"draw every entry for itself: {_code(measured.name, evidence.subject.declared.std)}; or fill it with 0 "
            "where it is to start silent",
            "init.scheme",
        )


def _degenerate(measured: ParameterMeasure, planned: PlannedParameter) -> bool:
    """Whether a matrix is constant, but not 0, or next to rank 1."""
    if isinstance(planned.distribution, Constant):
        return False
    if measured.std == 0:
        return measured.mean != 0
    rank = measured.stable_rank
    if rank is None or measured.kurtosis > SPIKY:
        return False
    if planned.parameter.role == Role.POSITION_EMBEDDING:  # slow sinusoids are nearly one direction
        return False
    side = min(math.ceil(size / math.ceil(size / SAMPLED_SIDE)) for size in planned.parameter.shape[-2:])
    return rank * side < max(LOW_RANK * side, RANK_ONE)


# --- INIT007


def _odd_layer(evidence: Evidence) -> Iterator[Trouble]:
    groups: dict[tuple[str, Role, tuple[int, ...]], dict[int, ParameterMeasure]] = {}
    for measured, planned in _matrices(evidence):
        number = re.search(r"(?:^|(?<=\.))\d+(?=\.|$)", measured.name)
        if number:
            pattern = f"{measured.name[: number.start()]}*{measured.name[number.end() :]}"
            key = pattern, planned.parameter.role, planned.parameter.shape
            groups.setdefault(key, {})[int(number[0])] = measured
    found: dict[tuple[int, ...], list[tuple[str, ParameterMeasure, float, int]]] = {}
    for (pattern, _, shape), layers in groups.items():
        odd, usual = _outliers(layers, math.prod(shape))
        if odd:
            found.setdefault(odd, []).append((pattern, layers[odd[0]], usual, len(layers)))
    for odd, cases in found.items():
        pattern, measured, usual, count = cases[0]
        names = ", ".join(map(str, odd[:4])) + (", …" if len(odd) > 4 else "")
        yield Trouble(
            f"{pattern} has std {measured.std:.4g} in layer{'s' * (len(odd) > 1)} {names}; expected {usual:.4g}, as in "
            f"the other {count - len(odd)} of {count} layers{_more(len(cases) - 1, 'matrices of the same layers')}",
            measured.name,
            "a refactor dropped, doubled or overwrote its init; check that your init function treats all layers "
            "alike: " + (_code(measured.name, usual) if usual else f"nn.init.zeros_(model.{measured.name})"),
            "init.scheme",
        )


def _outliers(layers: dict[int, ParameterMeasure], count: int) -> tuple[tuple[int, ...], float]:
    """Return the layers whose std is not that of the others, and the std of these.

    Nothing where fewer than two thirds agree within sampling error: then the std is meant to depend on depth.
    """
    usual = statistics.median_low([measured.std for measured in layers.values()])

    def near(measured: ParameterMeasure, slack: float) -> bool:
        spread = max(measured.kurtosis - 1, 0.0) if math.isfinite(measured.kurtosis) else 0.0
        error = math.sqrt(2 * spread / (4 * count))  # of the difference of two
        return abs(measured.std - usual) <= max(SIGMAS * error, slack) * usual

    agree = sum(near(measured, 0.0) for measured in layers.values())
    if len(layers) < FEWEST_LAYERS or agree < MAJORITY * len(layers):
        return (), usual
    return tuple(sorted(layer for layer, measured in layers.items() if not near(measured, CLOSE))), usual


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

DAMAGED = Rule(
    id="INIT005",
    name="damaged-distribution",
    severity="error",
    what="The entries of a matrix are no sample of any usual init: kurtosis outside 1.7 to 3.3, an entry more than "
    "√(2 ln n) + 4 stds out, or a mean that isn't 0, all beyond sampling error. Packed matrices and embeddings with "
    "padding rows may be mixtures.",
    why="A few entries a hundred times too large dominate every product, and a mean adds the same direction to all "
    "outputs. The std alone may look right.",
    example="trunc_normal_ computed in bfloat16: erfinv(±1) is inf and is clamped to ±2, a hundred stds out; kurtosis "
    "464.",
    instead="Draw in float32 with mean 0, then cast.",
    references=("docs/concepts.md, measured std",),
    check=_damaged,
)

DEGENERATE = Rule(
    id="INIT006",
    name="degenerate-matrix",
    severity="error",
    what="A matrix is constant, and not 0, or its stable rank ‖W‖²_F/‖W‖²₂ is below a twentieth of its smaller side. "
    "All zero is a known choice and passes; so does a constant that the plan declares.",
    why="All outputs of such a matrix are the same number: the units of the layer get the same gradient and stay "
    "alike, and the layer works as one unit. The loss does not see it.",
    example="`mlp.up.weight.fill_(0.02)` where `normal_(std=0.02)` was meant: stable rank 1, loss unchanged.",
    instead="`nn.init.normal_(weight, std=0.02)`.",
    references=("docs/concepts.md, measured std",),
    check=_without_rank,
)

ODD_LAYER = Rule(
    id="INIT007",
    name="odd-layer-out",
    severity="error",
    what="One or a few layers hold a matrix with another std than the same matrix has in at least two thirds of four "
    "or more layers, beyond five standard errors and 3 %. Where no such majority agrees, the std is meant to depend "
    "on depth, and the rule is silent.",
    why="A refactor or a merge dropped the init of one matrix, applied it twice, or rebuilt the layer after init. One "
    "layer in twelve moves neither the loss nor the mean of the role.",
    example="A layer that is replaced by `model.blocks[3] = Block(config)` after init: nn.Linear's 0.036 among 0.02.",
    instead="Apply the init function once, after all layers are in place.",
    references=("docs/concepts.md, measured std",),
    check=_odd_layer,
)
