from __future__ import annotations

import json

import pytest
from rich.cells import cell_len

from initdiag.measure import ParameterMeasure
from initdiag.report import Style
from initdiag.report.planned import Planned, as_json, as_table
from initdiag.schemes import AsFound, Constant, Distribution, InitPlan, Normal, Parameter, Part, PlannedParameter, Role
from initdiag.subjects import Subject

ROWS = (Part(Role.ATTENTION_QUERY, ((0, 64),)), Part(Role.ATTENTION_KEY, ((64, 128),)))
PACKED = "packed: its outputs are queries; its outputs are keys"
PARAMETERS: tuple[tuple[Parameter, Distribution, float], ...] = (
    (Parameter("wte.weight", (512, 64), Role.TOKEN_EMBEDDING, 64, evidence="rows are looked up"), Normal(0.02), 0.0199),
    (Parameter("h.0.qk.weight", (128, 64), Role.ATTENTION_QUERY, 64, 0, False, ROWS, PACKED), Normal(0.02), 0.0201),
    (Parameter("h.0.qk.bias", (128,), Role.BIAS, 64, 0, evidence="added to h.0.qk.weight"), Constant(0.0), 0.0),
    (Parameter("h.1.qk.weight", (128, 64), Role.ATTENTION_QUERY, 64, 1, False, ROWS, PACKED), Normal(0.02), 0.0202),
    (Parameter("h.1.qk.bias", (128,), Role.BIAS, 64, 1, evidence="added to h.1.qk.weight"), AsFound(0.5), 0.5),
)


@pytest.fixture
def planned() -> Planned:
    entries = tuple(PlannedParameter(parameter, of, of.std) for parameter, of, _ in PARAMETERS)
    subject = Subject(name="GPT", target="model.py:GPT", plan=InitPlan("as built", {}, entries))
    return Planned(subject, 0, tuple(ParameterMeasure(one.name, 0.0, std, 0) for one, _, std in PARAMETERS))


def test_what_the_code_draws(planned: Planned) -> None:
    rows = [line.split() for line in as_table(planned, Style(width=120)).splitlines()]
    assert ["parameter", "shape", "role", "drawn", "measured"] in rows
    assert ["wte.weight", "512×64", "token_embedding", "N", "0.02000", "0.01990"] in rows
    assert ["qk.weight", "128×64", "attention_query/key", "N", "0.02000", "0.02010"] in rows
    assert ["qk.bias", "128", "bias", "=", "0", "0"] in rows
    assert ["qk.bias", "128", "bias", "as", "found", "0.5000"] in rows
    assert as_table(planned, Style()).startswith("model.py:GPT: as built, seed 0; 5 tensors, ")


def test_how_roles_were_found_out_once_per_pattern(planned: Planned) -> None:
    text = as_table(planned, Style(width=200))
    assert text.partition("one forward:\n\n")[2].splitlines() == [
        "wte.weight: token_embedding; rows are looked up",
        "h.*.qk.weight: attention_query/key; packed: its outputs are queries; its outputs are keys; rows 0–63 "
        "attention_query, rows 64–127 attention_key",
        "h.*.qk.bias: bias; added to h.*.qk.weight",
    ]


@pytest.mark.parametrize("width", [80, 100])
def test_lines_fit(planned: Planned, width: int) -> None:
    assert max(map(cell_len, as_table(planned, Style(width=width)).splitlines())) <= width
    assert as_table(planned, Style(width=width, ascii=True)).isascii()


def test_json_has_evidence_and_parts(planned: Planned) -> None:
    first, packed, _, _, found = json.loads(as_json(planned))["parameters"]
    assert first["evidence"] == "rows are looked up" and first["parts"] == []
    assert packed["parts"] == [
        {"role": "attention_query", "rows": [[0, 64]]},
        {"role": "attention_key", "rows": [[64, 128]]},
    ]
    assert first["declared_std"] == 0.02
    assert (found["distribution"], found["declared_std"]) == ("as found, std 0.5", None)
