"""The matrices that are judged by what they hold, and words that several rules on them share.

Only matrices whose role says that they are drawn are judged: linear weights, embeddings, routers. Vectors, multipliers
and tensors of no known role (relative-bias tables, SSM parameters, LayerScale) are what their authors made them.
"""

from __future__ import annotations

from initdiag.measure import ParameterMeasure
from initdiag.rules.rule import Evidence, as_python
from initdiag.schemes import PlannedParameter, Role
from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS

JUDGED = frozenset({*LINEAR_WEIGHTS, *EMBEDDINGS, Role.ROUTER})
PADDED = frozenset({Role.TOKEN_EMBEDDING, Role.POSITION_EMBEDDING, Role.LM_HEAD})

SIGMAS = 5.0  # two-sided false-alarm rate 6e-7 for each number
CLOSE = 0.03  # two stds that differ by less are the same choice, whatever the sample size
MAJORITY = 2 / 3  # of layers or matrices: what so many hold is what was meant for the others

Pair = tuple[ParameterMeasure, PlannedParameter]


def matrices(evidence: Evidence) -> list[Pair]:
    """Return the parameters that are judged, those with entries that are not finite left out (NUM001 has them)."""
    plan = evidence.subject.plan.by_name
    pairs = [(measured, plan[measured.name]) for measured in evidence.measured.parameters if measured.name in plan]
    return [
        (measured, planned)
        for measured, planned in pairs
        if planned.parameter.role in JUDGED and len(planned.parameter.shape) > 1 and not measured.not_finite
    ]


def code(name: str, std: float | None) -> str:
    """Return the line of an init function that draws a parameter; at 1/√fan_in where no std is declared."""
    return f"nn.init.normal_({as_python(name)}, std={'fan_in ** -0.5' if std is None else f'{std:.3g}'})"


def more(count: int, what: str) -> str:
    """Return the end of a sentence that names the first of several: ", and 3 more matrices"."""
    return f", and {count} more {what}" if count else ""
