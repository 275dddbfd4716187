"""Changes of a config that theory has verified, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from initdiag.report.numbers import number
from initdiag.report.report import Advice, Run


def heading(run: Run) -> str:
    keys = f" ({run.subject.keys})" if run.subject.keys else ""
    return f"advice, each verified by a prediction of the changed config{keys}:"


def advice_lines(run: Run) -> Iterator[tuple[str, str]]:
    """Yield, for each piece of advice, what to write and what is predicted then."""
    for one in run.advice:
        yield " and ".join(one.lines), _predicted(one)


def _predicted(one: Advice) -> str:
    values = one.run.measured
    said = [f"loss {number(values.loss.value, 5)} nats", f"logit std {number(values.logits.std)}"]
    if math.isfinite(values.residual.scaling_ratio):
        said.append(f"scaling ratio {number(values.residual.scaling_ratio)}")
    left = f"; {', '.join(one.left)} left" if one.left else ""
    return f"{', '.join(one.cured)} gone{left}; {', '.join(said)}"
