"""A plan as a table, or as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass

from initdiag.measure import ParameterMeasure
from initdiag.report.document import SCHEMA_VERSION, encodable
from initdiag.report.layout import Column, paragraph, table
from initdiag.report.numbers import number
from initdiag.report.style import Style
from initdiag.report.table import parameters
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
                str(entry.distribution),
                number(entry.distribution.std),
                number(measured.std),
            )
        )
    columns = (
        Column("parameter", number=False),
        Column("shape"),
        Column("role", number=False),
        Column("drawn", number=False),
        Column("std"),
        Column("measured"),
    )
    count = sum(entry.parameter.numel for entry in subject.plan.entries)
    settings = ", ".join(f"{name} {value:.4g}" for name, value in subject.plan.settings.items())
    head = f"{subject.target}: scheme {subject.plan.scheme}" + (f" ({settings})" if settings else "")
    note = "N(s): normal with std s; U(b): uniform on ±b, std b/√3; a bare number: constant. std is as planned, "
    note += "measured as drawn."
    return (
        "\n\n".join(
            (
                paragraph(
                    f"{head}, seed {planned.seed}; {len(subject.plan.entries)} tensors, {parameters(count)}", style
                ),
                table(columns, rows, style, gap=1),
                paragraph(note, style),
            )
        )
        + "\n"
    )


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
