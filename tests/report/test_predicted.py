"""What is shown of predictions, against the numbers that they hold; and tables that fit, against rich's."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import pytest

import initdiag
from initdiag.report import Report, Run, Style, layout, render
from initdiag.report.facts import FACTS
from initdiag.report.layout import Column, table
from initdiag.report.numbers import number
from initdiag.report.predicted import predicted_branches, predicted_cells
from initdiag.report.varied import Varied, value_rows
from initdiag.report.varied_formats import as_table


@pytest.fixture(scope="module")
def predicted() -> Run:
    return initdiag.predict("tiny", overrides=["tokens.length=16"], backward=True).run


def test_cells_hold_the_predicted_numbers_and_their_spreads(predicted: Run) -> None:
    cells = {row[0]: row[1:] for row in predicted_cells(predicted)}
    assert predicted.expected.prediction is not None
    values, spreads = predicted.measured, predicted.expected.prediction.spreads
    assert cells["loss"] == (number(values.loss.value, 5), number(spreads.loss, 2), "nats")
    assert cells["logit std"] == (number(values.logits.std), number(spreads.logit_std, 2), "logits")
    last = values.residual.branches[-1].stream_variance
    assert cells["final stream variance"] == (number(last), number(spreads.streams[-1], 2), "variance")
    assert cells["token information"][1] == "–"  # its spread isn't known
    assert cells["scaling ratio"][1] == "0"  # no draw changes it, but for rounding


def test_only_what_theory_knows_is_shown(predicted: Run) -> None:
    shown = {row[0] for row in predicted_cells(predicted)}
    unknown = {"largest |logit|", "largest |activation|", "dead parameters", "order effect", "own loss"}
    assert not shown & unknown
    assert {"loss", "logit std", "attn entropy, min", "gradient ratio per layer"} <= shown
    assert not any(cell == "nan" for row in predicted_cells(predicted) for cell in row)


def test_branches_stand_without_an_expected_column(predicted: Run) -> None:
    body = predicted_branches(predicted)
    headings = [column.heading for column in body.columns]
    assert headings == ["#", "branch", "variance", "stream", "ratio", "reads", "tokens", "entropy", "gradient"]
    for row, branch in zip(body.rows, predicted.measured.residual.branches, strict=True):
        assert row[2] == number(branch.branch_variance) and row[3] == number(branch.stream_variance)


def test_a_loss_that_is_not_finite_is_found_without_weights(predicted: Run) -> None:
    """The largest |logit| of a prediction is nan, which is no fault of the model; of a run it is one."""
    from initdiag import rules
    from initdiag.config import load

    gate = load("tiny").config.gate
    assert math.isnan(predicted.measured.logits.max_abs)
    assert not rules.judge(predicted.subject, predicted.measured, predicted.expected, gate)
    run_like = replace(predicted.measured)  # equal numbers, and yet not the prediction itself
    found = rules.judge(predicted.subject, run_like, predicted.expected, gate)
    assert [one.rule for one in found] == ["NUM001"]


def test_a_hopeless_model_is_predicted_to_be_one() -> None:
    run = initdiag.predict("tiny", overrides=["tokens.length=16", "init.std=3"]).run
    rules = {one.rule for one in run.findings}
    assert {"LOGIT001", "LOSS003"} <= rules and "NUM001" not in rules
    assert run.verdict == "fail" and "verdict: FAIL" in render(Report((run,)), "table")


def test_every_number_of_a_varied_table_is_that_of_its_run() -> None:
    varied = initdiag.vary("tiny", "n_layers", [2, 5], overrides=["tokens.length=16"], backward=True)
    headings, rows = value_rows(varied)
    by_key = {fact.key: fact for fact in FACTS}
    assert headings[0] == "n_layers" and len(headings) == 2 + len(varied.numbers) == 12
    for row, run in zip(rows, varied.runs, strict=True):
        for cell, key in zip(row[1:-1], varied.numbers, strict=True):
            assert cell == number(by_key[key].value(run.measured), by_key[key].digits)
        assert row[-1] == run.verdict
    text = as_table(varied, Style(width=80))
    assert all(cell in text for row in rows for cell in row)
    assert max(map(len, text.splitlines())) <= 80


@pytest.fixture(scope="module")
def varied() -> Varied:
    return initdiag.vary("tiny", "n_layers", [2, 4, 8], scheme="gpt2", overrides=["tokens.length=16"])


def test_what_stays_and_what_drifts_is_all_there_is(varied: Varied) -> None:
    words = " ".join(str(varied).split())
    stay, drift = re.search(r"stay: (.*?) drift: (.*?) warning", words).groups()  # type: ignore[union-attr]
    for key, fit in varied.fits.items():
        assert (key in stay) == fit.stays and (key in drift) != fit.stays
    assert repr(varied) == "<Varied: pass, 3 values of model.n_layers; print() shows it>"


def test_the_miss_of_a_fit_is_told_in_percent(varied: Varied) -> None:
    fit = varied.fits["final stream variance"]
    assert fit.law == "power" and fit.miss > 0.01
    assert re.search(rf"^final stream variance +x\^{fit.exponent:.2f} +{100 * fit.miss:.1f} % ", str(varied), re.M)


WORDS = ("", "x", "±", "…", "12.5", "0.0001 ± 0.02", "日本語", "blocks.0.attention.out", "a b c", "  in", "█▏", "σ²")


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.parametrize("color", [False, True])
def test_a_table_that_fits_is_written_as_rich_writes_it(
    monkeypatch: pytest.MonkeyPatch, color: bool, ascii_only: bool
) -> None:
    """300 random tables each, whose columns all have a heading: one that is empty all the way down is nobody's."""
    generator = random.Random(0)
    plain = layout._plain
    by_hand = 0
    for _ in range(300):
        count = generator.randint(1, 5)
        columns = [Column(generator.choice(WORDS[1:]), generator.random() < 0.6) for _ in range(count)]
        rows = [[generator.choice(WORDS) for _ in columns] for _ in range(generator.randint(0, 4))]
        style = Style(generator.choice([None, 40, 80, 200]), color, ascii_only)
        calls: list[None] = []

        def watched(*arguments: object, calls: list[None] = calls) -> str:
            calls.append(None)
            return plain(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(layout, "_plain", watched)
        written = table(columns, rows, style)
        by_hand += len(calls)
        monkeypatch.setattr(
            layout,
            "_plain",
            lambda columns, cells, widths, style: layout._wrapped(
                columns, cells, widths, max(style.width or 80, sum(widths) + 2 * len(widths)), style
            ),
        )
        assert table(columns, rows, style) == written
    assert by_hand > 200


def test_roles_that_the_model_does_not_have_are_told() -> None:
    roles = ["init.roles.lm_head={normal: 0.9}", "init.roles.mlp_gate={normal: 9}", "init.roles.mlp_out=0"]
    shown = str(initdiag.predict("tiny", overrides=roles))
    assert "init.roles draws mlp_gate and lm_head, of which this model has none" in shown
    assert "of which this model" not in str(initdiag.predict("tiny", overrides=roles[2:]))
