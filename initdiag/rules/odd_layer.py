"""INIT007: one layer whose matrix has another std than the same matrix in the rest."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator

from initdiag.measure import ParameterMeasure
from initdiag.rules.matrices import CLOSE, MAJORITY, SIGMAS, code, matrices, more
from initdiag.rules.rule import Evidence, Rule, Trouble, as_python
from initdiag.schemes import Role

FEWEST_LAYERS = 4


def _odd_layer(evidence: Evidence) -> Iterator[Trouble]:
    groups: dict[tuple[str, Role, tuple[int, ...]], dict[int, ParameterMeasure]] = {}
    meant: dict[str, set[float]] = {}  # stds that a scheme of ours gives the layers: LSUV gives each its own
    for measured, planned in matrices(evidence):
        number = re.search(r"(?:^|(?<=\.))\d+(?=\.|$)", measured.name)
        if number:
            pattern = f"{measured.name[: number.start()]}*{measured.name[number.end() :]}"
            key = pattern, planned.parameter.role, planned.parameter.shape
            groups.setdefault(key, {})[int(number[0])] = measured
            if evidence.subject.drawn_by_us:
                meant.setdefault(pattern, set()).add(planned.distribution.std)
    found: dict[tuple[int, ...], list[tuple[str, ParameterMeasure, float, int]]] = {}
    for (pattern, _, shape), layers in groups.items():
        odd, usual = _outliers(layers, math.prod(shape))
        if odd and len(meant.get(pattern, ())) <= 1:
            found.setdefault(odd, []).append((pattern, layers[odd[0]], usual, len(layers)))
    for odd, cases in found.items():
        pattern, measured, usual, count = cases[0]
        names = ", ".join(map(str, odd[:4])) + (", …" if len(odd) > 4 else "")
        yield Trouble(
            f"{pattern} has std {measured.std:.4g} in layer{'s' * (len(odd) > 1)} {names}; expected {usual:.4g}, as in "
            f"the other {count - len(odd)} of {count} layers{more(len(cases) - 1, 'matrices of the same layers')}",
            measured.name,
            "a refactor dropped, doubled or overwrote its init; check that your init function treats all layers "
            "alike: " + (code(measured.name, usual) if usual else f"nn.init.zeros_({as_python(measured.name)})"),
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


ODD_LAYER = Rule(
    id="INIT007",
    name="odd-layer-out",
    severity="error",
    what="One or a few layers hold a matrix with another std than the same matrix has in at least two thirds of four "
    "or more layers, beyond five standard errors and 3 %. Where no such majority agrees, or a scheme says so, the "
    "std is meant to depend on depth, and the rule is silent.",
    why="A refactor or a merge dropped the init of one matrix, applied it twice, or rebuilt the layer after init. One "
    "layer in twelve moves neither the loss nor the mean of the role.",
    example="A layer that is replaced by `model.blocks[3] = Block(config)` after init: nn.Linear's 0.036 among 0.02.",
    instead="Apply the init function once, after all layers are in place.",
    references=("docs/concepts.md, measured std",),
    check=_odd_layer,
)
