"""Which engine runs a subject, and why. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from initdiag.engines.settings import Settings
from initdiag.engines.sizes import is_large
from initdiag.memory import SHARE, available
from initdiag.schemes import Orthogonal
from initdiag.subjects import Subject

ITEM = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
DRAWS = 1.5e8  # normal numbers a second, and
PRODUCTS = 4e10  # floating-point operations a second, of one core or two: only their sum's order of magnitude matters
USUAL = 512  # tokens of a run that nobody has settled yet
CLOSE = 1.0  # seconds; where the engines are no further apart, real weights tell more


@dataclass(frozen=True)
class Choice:
    """An engine, and why it was taken; "" where the caller named it, or nobody asked."""

    engine: str
    why: str = ""


def choose(subject: Subject, tokens: int, settings: Settings) -> Choice:
    """Take the engine of the settings; of "auto", dense where the weights fit in memory and cost no more time.

    Args:
        tokens: B·T of the forward that will be run.
    """
    if settings.engine in ("dense", "weightless"):
        return Choice(settings.engine)
    asked, lean = settings.engine == "auto", bool(subject.laws or subject.unrecorded)
    if not lean and (subject.build is None or settings.device not in ("auto", "cpu")):
        return Choice("dense", "its weights are there" if asked else "")
    if subject.plan.calibration:
        return Choice("dense", f"scheme {subject.plan.scheme} rescales drawn weights on the batch" if asked else "")
    shapes, size, there = _weights(subject, settings)
    if size > SHARE * there:
        most = f"more than {SHARE:g} of the {gibibytes(there)} that are free"
        return Choice("weightless", f"its weights take {gibibytes(size)}, {most}")
    if any(isinstance(entry.distribution, Orthogonal) for entry in subject.plan.entries):
        return Choice("dense", "orthogonal matrices need their entries" if asked else "")
    dense, weightless = costs(shapes, tokens)
    if lean or weightless + CLOSE < dense:
        longer = f"{dense - weightless:.0f} s more"
        return Choice("weightless", f"drawing {gibibytes(size)} of weights would take about {longer}")
    return Choice("dense", f"its weights fit, {gibibytes(size)}, and weightless is no faster" if asked else "")


def fits(subject: Subject, settings: Settings, planned: bool = False) -> bool:
    """Whether a module that was built without its large parameters might as well be built with them.

    Args:
        planned: a scheme draws them; else those whose law wasn't seen can only be had by building them.
    """
    shapes, size, there = _weights(subject, settings)
    if size > SHARE * there:
        return False
    dense, weightless = costs(shapes, USUAL)
    return bool(subject.unrecorded and not planned) or weightless + CLOSE >= dense


def _weights(subject: Subject, settings: Settings) -> tuple[list[tuple[int, ...]], int, float]:
    """Return the shapes of a subject's parameters, the bytes they take, and those that are free (inf: nobody knows)."""
    if subject.module is not None:
        shapes = [tuple(parameter.shape) for parameter in subject.module.parameters()]
    else:
        shapes = [entry.parameter.shape for entry in subject.plan.entries]
    there = available("cpu")
    return shapes, sum(map(math.prod, shapes)) * ITEM[settings.dtype], math.inf if there is None else there


def costs(shapes: Iterable[tuple[int, ...]], tokens: int) -> tuple[float, float]:
    """Estimate the seconds of a forward over B·T tokens with drawn weights, and of one without.

    Both draw, and multiply with what they drew: all entries, or a number for each token and output.
    """
    dense = weightless = 0.0
    for shape in shapes:
        count = math.prod(shape)
        drawn = count / DRAWS + 2 * count * tokens / PRODUCTS
        dense += drawn
        if is_large(shape, tokens):
            outputs, inputs = shape[-2:]
            weightless += tokens * outputs / DRAWS + 2 * tokens**2 * (outputs + inputs) / PRODUCTS
        else:
            weightless += drawn
    return dense, weightless


def gibibytes(size: float) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**27 else f"{size / 2**30:.2g} GiB"
