from __future__ import annotations

import json
from dataclasses import replace

import pytest
from rich.cells import cell_len

from initdiag.measure import ParameterMeasure
from initdiag.report import Report, Style
from initdiag.report.compared import compared as side_by_side
from initdiag.report.header import drawn_by
from initdiag.report.planned import Planned, as_json, as_table
from initdiag.schemes import (
    AsFound,
    Constant,
    Distribution,
    InitPlan,
    Normal,
    Orthogonal,
    Parameter,
    Part,
    PlannedParameter,
    Role,
    Truncated,
    Uniform,
)
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


SETTINGS = {"depth": "layer", "std": 0.02, "scale": 0.00123456}


def test_words_among_the_parameters_of_a_scheme_are_shown_as_words(planned: Planned) -> None:
    drawn = replace(planned.subject, plan=replace(planned.subject.plan, scheme="mine", settings=SETTINGS))
    planned = replace(planned, subject=drawn)
    head = as_table(planned, Style(width=200)).splitlines()[0]
    assert head.startswith("model.py:GPT: scheme mine (depth layer, std 0.02, scale 0.001235), seed 0; ")
    assert json.loads(as_json(planned))["scheme_parameters"] == SETTINGS


def test_words_among_the_parameters_in_other_reports(compared: Report) -> None:
    def worded(name: str, word: str, **numbers: float) -> Report:
        runs = []
        for run in compared.runs:
            settings = {"depth": word, **numbers} if run.scheme == name else run.subject.plan.settings
            runs.append(replace(run, subject=replace(run.subject, plan=replace(run.subject.plan, settings=settings))))
        return replace(compared, runs=tuple(runs))

    report = worded("gpt2", "layer", std=0.02)
    assert drawn_by(next(run for run in report.runs if run.scheme == "gpt2")) == "scheme gpt2 (depth layer, std 0.02)"
    rows = [line.split() for line in side_by_side(report, Style(width=120)).splitlines()]
    assert ["depth", "–", "layer", "–"] in rows
    assert ["std", "–", "0.02000", "0.02000"] in rows


def test_what_a_scheme_of_the_users_own_draws_is_told_from_its_plan(compared: Report) -> None:
    """It is in no table of ours, so there are no formulas: the first layer's and the last one's, if they differ."""
    runs = []
    for run in compared.runs:
        plan, entries = run.subject.plan, []
        for entry in plan.entries:
            if entry.parameter.role is Role.MLP_IN:
                entries += [replace(entry, distribution=Normal(0.25)), replace(entry, distribution=Normal(0.125))]
            else:
                entries.append(replace(entry, distribution=Normal(0.5)))
        own = replace(plan, scheme="mine", entries=tuple(entries))
        runs.append(replace(run, subject=replace(run.subject, plan=own)) if run.scheme == "default" else run)
    rows = [line.split("  ") for line in side_by_side(replace(compared, runs=tuple(runs)), Style()).splitlines()]
    found = {row[0].strip(): [cell.strip() for cell in row[1:] if cell.strip()] for row in rows}
    assert found["mlp_in"] == ["N(0.25) … N(0.125)", "N(std)", "N(std)"]
    assert found["mlp_out"] == ["N(0.5)", "N(std)", "N(residual_std)"]


@pytest.mark.parametrize(
    ("distribution", "words"),
    [
        (Orthogonal(2.0, 64), ["O", "0.2500"]),  # entries of std 2/√64
        (Truncated(0.02, 2.0), ["N<2", "0.01759"]),  # 0.8796 · 0.02
        (Uniform(0.3), ["U", "0.1732"]),  # 0.3/√3
    ],
)
def test_every_distribution_has_its_letter(planned: Planned, distribution: Distribution, words: list[str]) -> None:
    first, *others = planned.subject.plan.entries
    plan = replace(planned.subject.plan, entries=(replace(first, distribution=distribution), *others))
    planned = replace(planned, subject=replace(planned.subject, plan=plan))
    text = as_table(planned, Style(width=120))
    assert ["wte.weight", "512×64", "token_embedding", *words, "0.01990"] in [
        line.split() for line in text.splitlines()
    ]
    assert f"{words[0].replace('<2', '<c')} " in text.partition("\n\n")[2], "the note explains the letter"
