from __future__ import annotations

import math
from dataclasses import replace

import pytest

from initdiag.measure import Read, RouterMeasure
from initdiag.report import Report, Run, findings_text, render
from initdiag.report.compared import by_scheme, comparison_rows
from initdiag.report.facts import FACTS, expectation, fact_cells, shown
from initdiag.report.header import _of_layers
from initdiag.rules.gradients import IMBALANCE
from initdiag.rules.rule import Evidence
from tests.report.conftest import module_run, run

FACT = {fact.key: fact for fact in FACTS}
OF_A_MODULE = {
    "order effect": (0.0123, "–"),
    "future leak": (0.25, "0"),
    "norm output RMS, worst": (1.5, "1.000"),
    "largest |activation|": (17.25, "–"),
    "own loss": (6.2641, "6.2537"),
    "router share, max": (0.3125, "–"),
    "token information": (0.4321, "–"),
    "dead parameters": (1, "0"),
}


@pytest.mark.parametrize("key", OF_A_MODULE)
def test_what_a_module_shows(key: str) -> None:
    measured, expected = OF_A_MODULE[key]
    assert FACT[key].measured(module_run()) == measured
    assert expectation(FACT[key], module_run()) == expected
    assert key in [cells[0] for cells in fact_cells(module_run())]


def test_loss_and_excess_are_one_number_and_have_one_spread() -> None:
    loss, excess = (expectation(FACT[key], run()).partition(" ± ")[2] for key in ("loss", "excess over ln V"))
    assert loss == excess != ""


@pytest.mark.parametrize("key", OF_A_MODULE)
def test_what_was_not_measured_is_left_out(key: str) -> None:
    assert math.isnan(FACT[key].measured(run()))
    assert key not in [fact.key for fact in shown([run()])]
    for format_ in ("table", "markdown"):
        assert key not in render(Report((run(),)), format_)


def test_a_loss_that_is_nan_is_never_left_out(broken: Report) -> None:
    assert {"loss", "loss, uniform targets", "logit std"} <= {fact.key for fact in shown(broken.runs)}
    assert fact_cells(broken.run)[0][1] == "nan"


def test_a_comparison_leaves_out_what_no_run_has() -> None:
    one, other = run("gpt2"), run("scaled")
    probe = module_run().measured.probe
    labels, rows = comparison_rows(by_scheme([one, other]))
    assert "order effect" not in labels and "  expected" in labels
    labels, rows = comparison_rows(by_scheme([one, replace(other, measured=replace(other.measured, probe=probe))]))
    assert rows[labels.index("order effect")] == ["–", "0.01230"]


def test_a_leak_is_expected_where_positions_see_later_ones() -> None:
    causal = module_run()
    assert causal.measured.probe is not None
    both = replace(causal, measured=replace(causal.measured, probe=replace(causal.measured.probe, causal=False)))
    assert expectation(FACT["future leak"], both) == "–"


@pytest.mark.parametrize(("reads", "worst"), [((1.4, 0.5), 0.5), ((3.0, 0.5), 3.0), ((1.1, 0.0), 0.0)])
def test_the_worst_norm_is_the_one_furthest_from_1_by_factor(reads: tuple[float, ...], worst: float) -> None:
    whole = run()
    first, second = whole.measured.residual.branches
    read = tuple(Read("w", True, None, rms) for rms in reads)
    branches = (replace(first, reads=(*read, Read("w", False, None, 99.0))), second)
    measured = replace(whole.measured, residual=replace(whole.measured.residual, branches=branches))
    assert FACT["norm output RMS, worst"].measured(replace(whole, measured=measured)) == worst


def test_the_router_that_is_worst() -> None:
    whole = run()
    routers = tuple(RouterMeasure(f"r{share}", 8, 100, share, 0.0) for share in (0.2, 0.9, 0.3))
    assert FACT["router share, max"].measured(replace(whole, measured=replace(whole.measured, routers=routers))) == 0.9


def with_gradients(norms: list[float]) -> Run:
    """Two branches per layer; the second one's norm is the layer's."""
    whole = run()
    branch = whole.measured.residual.branches[0]
    branches = tuple(
        replace(branch, index=2 * layer + i + 1, layer=layer, gradient_norm=(99.0, norm)[i], carried="scaled")
        for layer, norm in enumerate(norms)
        for i in (0, 1)
    )
    measured = replace(whole.measured, residual=replace(whole.measured.residual, branches=branches))
    return replace(whole, measured=measured)


def test_the_gradient_ratio_is_the_rules() -> None:
    """Growing by 2.5 per layer on its way down: 3.2, 8, 20 at the top."""
    grown = with_gradients([20.0, 8.0, 3.2])
    assert FACT["gradient ratio per layer"].measured(grown) == pytest.approx(2.5)
    (told,) = IMBALANCE.check(Evidence(grown.subject, grown.measured, grown.expected, ()))
    assert "by 2.5 per block" in told.message
    assert math.isnan(FACT["gradient ratio per layer"].measured(with_gradients([3.0])))
    assert math.isnan(FACT["gradient ratio per layer"].measured(with_gradients([3.0, 0.0])))
    assert FACT["gradient ratio per layer"].measured(with_gradients([0.0, 2.0])) == 0


def test_findings_as_text(checked: Report, passed: Report) -> None:
    text = findings_text(checked)
    assert text.splitlines()[0] == "initdiag: FAIL tiny (1 error, 1 warning)"
    assert text.splitlines()[1] == (
        "error LOSS001 a-rule (at configs/tiny.yaml:3:2): loss 12.345 nats | 100 % of it, expected: 6.2"
    )
    assert text.count("  instead: write std=0.02, not 1") == 2 and "\x1b" not in text
    assert findings_text(passed) == "initdiag: PASS tiny (0 errors, 0 warnings)"
    assert findings_text(Report(checked.runs + passed.runs)).count("initdiag: ") == 2


def test_names_that_layers_share_are_counted() -> None:
    names = ["h.0.up.weight", "h.1.up.weight", "h.3.down.weight", "wte.weight"]
    assert _of_layers(names) == "h.*.up.weight (2), h.3.down.weight, wte.weight"
