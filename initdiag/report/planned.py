"""A plan as a table, or as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass

from initdiag.measure import ParameterMeasure
from initdiag.report.document import SCHEMA_VERSION, encodable
from initdiag.report.document_model import declared_std
from initdiag.report.document_model import parts as parts_of
from initdiag.report.layout import Column, paragraph, table
from initdiag.report.names import parts_in_words, pattern, role_of, starred
from initdiag.report.numbers import number, parameters, settings
from initdiag.report.style import Style
from initdiag.schemes import AsFound, Constant, Distribution, Normal, Orthogonal, Packed, Truncated, Uniform
from initdiag.subjects import Subject


@dataclass(frozen=True)
class Planned:
    """A subject's plan, and its parameters as drawn with `seed`, in the order of the plan."""

    subject: Subject
    seed: int
    measured: tuple[ParameterMeasure, ...]


def as_table(planned: Planned, style: Style) -> str:
    """Render one row per parameter; its layer stands once, above its parameters. Of a module, also how its roles were
    found out."""
    subject = planned.subject
    columns = (
        Column("parameter", number=False),
        Column("shape"),
        Column("role", number=False),
        Column("planned" if subject.drawn_by_us else "drawn", number=False),
        Column("measured"),
    )
    parts = [
        paragraph(_head(planned), style),
        table(columns, _rows(planned), style),
        paragraph(NOTE if subject.drawn_by_us else f"{NOTE} {SEEN}", style),
    ]
    if evidence := _evidence(planned):
        parts += [f"{FOUND}:\n\n" + "\n".join(paragraph(line, style, indent="  ", first="") for line in evidence)]
    return "\n\n".join(parts) + "\n"


def _head(planned: Planned) -> str:
    subject, plan = planned.subject, planned.subject.plan
    said = settings(plan.settings)
    scheme = f"scheme {plan.scheme}" if subject.drawn_by_us else plan.scheme
    head = f"{subject.target}: {scheme}" + (f" ({said})" if said else "")
    return f"{head}, seed {planned.seed}; {len(plan.entries)} tensors, {parameters(plan.numel)}"


def _rows(planned: Planned) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    block = ""
    for entry, measured in zip(planned.subject.plan.entries, planned.measured, strict=True):
        name, layer = entry.parameter.name, entry.parameter.layer
        head, number_, rest = name.partition(f".{layer}.")
        if layer is not None and number_:
            name = f"  {rest}"
            if block != (block := f"{head}.{layer}"):
                rows.append((block, "", "", "", ""))
        rows.append(
            (
                name,
                "×".join(map(str, entry.parameter.shape)),
                role_of(entry.parameter),
                _drawn(entry.distribution),
                number(measured.std if measured.drawn else None),
            )
        )
    return rows


def _evidence(planned: Planned) -> list[str]:
    """Return a line per pattern of names: the role, how it was found out, and of a packed matrix the rows of each."""
    lines = []
    for entry in planned.subject.plan.entries:
        parameter = entry.parameter
        if said := "; ".join(filter(None, (starred(parameter.evidence), parts_in_words(parameter.parts)))):
            lines.append(f"{pattern(parameter.name)}: {role_of(parameter)}; {said}")
    return list(dict.fromkeys(lines))


FOUND = "How the roles were found out, in the operations of one forward"
NOTE = (
    "N normal, N<c normal cut at c sigmas, U uniform (bound: std·√3), O orthogonal, all with mean 0 and the std of "
    "the entries behind the letter, which a cut makes smaller than sigma; = a constant. "
    "measured: the std of what was drawn; – has no entries (weightless engine)."
)
SEEN = (
    "drawn: what the module's own code was seen to draw; as found: nobody saw it drawn, so nothing is expected of it."
)


def _drawn(distribution: Distribution) -> str:
    match distribution:
        case Normal(std=std):
            return f"N {number(std)}"
        case Truncated(cut=cut):
            return f"N<{cut:.3g} {number(distribution.std)}"
        case Uniform():
            return f"U {number(distribution.std)}"
        case Orthogonal():
            return f"O {number(distribution.std)}"
        case Constant(value=value):
            return f"= {value:g}"
        case Packed(pieces=pieces):
            return ", ".join(dict.fromkeys(_drawn(piece.distribution) for piece in pieces))
        case AsFound():
            return "as found"


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
                "evidence": entry.parameter.evidence,
                "parts": parts_of(entry.parameter.parts),
                "layer": entry.parameter.layer,
                "shape": list(entry.parameter.shape),
                "distribution": str(entry.distribution),
                "declared_std": declared_std(entry.distribution),
                "measured_std": measured.std if measured.drawn else None,
                "measured_mean": measured.mean if measured.drawn else None,
            }
            for entry, measured in zip(subject.plan.entries, planned.measured, strict=True)
        ],
    }
    return json.dumps(encodable(content), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
