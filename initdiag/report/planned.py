"""A plan as a table, or as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass

from initdiag.measure import ParameterMeasure
from initdiag.report.document import SCHEMA_VERSION, encodable
from initdiag.report.layout import Column, paragraph, table
from initdiag.report.numbers import number, parameters
from initdiag.report.style import Style
from initdiag.schemes import Constant, Distribution, Normal, Uniform
from initdiag.schemes.distributions import Truncated
from initdiag.subjects import Subject

FORMATS = ("table", "json")


@dataclass(frozen=True)
class Planned:
    """A subject's plan, and its parameters as drawn with `seed`, in the order of the plan."""

    subject: Subject
    seed: int
    measured: tuple[ParameterMeasure, ...]


def as_table(planned: Planned, style: Style) -> str:
    """Render one row per parameter; its layer stands once, above its parameters."""
    subject = planned.subject
    rows: list[tuple[str, ...]] = []
    block = ""
    for entry, measured in zip(subject.plan.entries, planned.measured, strict=True):
        name = entry.parameter.name
        if entry.parameter.layer is not None:
            head, _, rest = name.partition(f".{entry.parameter.layer}.")
            name = f"  {rest}"
            if block != (block := f"{head}.{entry.parameter.layer}"):
                rows.append((block, "", "", "", "", ""))
        rows.append(
            (
                name,
                "×".join(map(str, entry.parameter.shape)),
                str(entry.parameter.role),
                _drawn(entry.distribution),
                number(measured.std),
            )
        )
    columns = (
        Column("parameter", number=False),
        Column("shape"),
        Column("role", number=False),
        Column("planned", number=False),
        Column("measured"),
    )
    settings = ", ".join(f"{name} {value:.4g}" for name, value in subject.plan.settings.items())
    head = f"{subject.target}: scheme {subject.plan.scheme}" + (f" ({settings})" if settings else "")
    counted = f"{len(subject.plan.entries)} tensors, {parameters(subject.plan.numel)}"
    return (
        "\n\n".join(
            (
                paragraph(f"{head}, seed {planned.seed}; {counted}", style),
                table(columns, rows, style),
                paragraph(NOTE, style),
            )
        )
        + "\n"
    )


NOTE = (
    "planned: N normal, N<c normal cut at c sigmas, U uniform (bound: std·√3), all with mean 0 and the std behind the "
    "letter, which a cut makes smaller than sigma; = a constant. "
    "measured: the std of what was drawn."
)


def _drawn(distribution: Distribution) -> str:
    match distribution:
        case Normal(std=std):
            return f"N {number(std)}"
        case Truncated(cut=cut):
            return f"N<{cut:.3g} {number(distribution.std)}"
        case Uniform():
            return f"U {number(distribution.std)}"
        case Constant(value=value):
            return f"= {value:g}"


def as_json(planned: Planned) -> str:
    """Return the plan as JSON, with a newline at its end."""
    subject = planned.subject
    content = {
        "schema_version": SCHEMA_VERSION,
        "target": subject.target,
        "name": subject.name,
        "scheme": subject.plan.scheme,
        "scheme_parameters": dict(subject.plan.settings),
        "seed": planned.seed,
        "parameters": [
            {
                "name": entry.parameter.name,
                "role": str(entry.parameter.role),
                "layer": entry.parameter.layer,
                "shape": list(entry.parameter.shape),
                "distribution": str(entry.distribution),
                "declared_std": entry.distribution.std,
                "measured_std": measured.std,
                "measured_mean": measured.mean,
            }
            for entry, measured in zip(subject.plan.entries, planned.measured, strict=True)
        ],
    }
    return json.dumps(encodable(content), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
