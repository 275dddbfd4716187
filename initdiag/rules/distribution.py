"""INIT005, INIT006: matrices whose entries are no sample of any usual init, or have next to no rank."""

from __future__ import annotations

import math
from collections.abc import Iterator

from initdiag.measure import ParameterMeasure
from initdiag.rules.matrices import PADDED, SIGMAS, code, matrices, more
from initdiag.rules.rule import Evidence, Rule, Trouble
from initdiag.schemes import Constant, PlannedParameter, Role

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


# --- INIT005


def _damaged(evidence: Evidence) -> Iterator[Trouble]:
    found: dict[Role, list[tuple[ParameterMeasure, list[str]]]] = {}
    for measured, planned in matrices(evidence):
        if measured.std > 0 and not _degenerate(measured, planned):
            complaints = _complaints(measured, planned)
            if complaints:
                found.setdefault(planned.parameter.role, []).append((measured, complaints))
    for role, cases in found.items():
        measured, complaints = cases[0]
        std = evidence.subject.declared.std
        yield Trouble(
            f"{measured.name}{more(len(cases) - 1, f'of role {role}')}: {'; '.join(complaints)}",
            measured.name,
            "draw it in float32 and cast afterwards (erfinv in bfloat16 gives inf, and clamp the bounds), and let "
            f"nothing be added to it or written over parts of it; in your init function: {code(measured.name, std)}",
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
    found = [pair for pair in matrices(evidence) if _degenerate(*pair)]
    if evidence.subject.drawn_by_us:  # a scheme says so itself
        found = [(measured, planned) for measured, planned in found if not isinstance(planned.distribution, Constant)]
    if found:
        measured, _ = found[0]
        constant = f"every entry is {measured.mean:.4g}"
        rank = f"stable rank {measured.stable_rank or 0:.2g} of its smaller side, expected at least {LOW_RANK:g}"
        yield Trouble(
            f"{measured.name}{more(len(found) - 1, 'matrices')}: {rank if measured.std else constant}; its "
            "outputs are all alike",
            measured.name,
            f"draw every entry for itself: {code(measured.name, evidence.subject.declared.std)}; or fill it with 0 "
            "where it is to start silent",
            "init.scheme",
        )


def _degenerate(measured: ParameterMeasure, planned: PlannedParameter) -> bool:
    """Whether a matrix is constant, but not 0, or next to rank 1."""
    if measured.std == 0:
        return measured.mean != 0
    rank = measured.stable_rank
    if rank is None or measured.kurtosis > SPIKY:
        return False
    if planned.parameter.role == Role.POSITION_EMBEDDING:  # slow sinusoids are nearly one direction
        return False
    side = min(math.ceil(size / math.ceil(size / SAMPLED_SIDE)) for size in planned.parameter.shape[-2:])
    return rank * side < max(LOW_RANK * side, RANK_ONE)


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
    "All zero is a known choice and passes; so does a constant that a scheme declares.",
    why="All outputs of such a matrix are the same number: the units of the layer get the same gradient and stay "
    "alike, and the layer works as one unit. The loss does not see it.",
    example="`mlp.up.weight.fill_(0.02)` where `normal_(std=0.02)` was meant: stable rank 1, loss unchanged.",
    instead="`nn.init.normal_(weight, std=0.02)`.",
    references=("docs/concepts.md, measured std",),
    check=_without_rank,
)
