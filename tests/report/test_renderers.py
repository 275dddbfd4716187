from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.cells import cell_len

from initdiag.errors import UsageError
from initdiag.report import FORMATS, Report, Style, render
from initdiag.rules import Severity
from tests.report.conftest import finding

GOLDEN = Path(__file__).parent.parent / "golden"
NUMBER = re.compile(r"(?<![\w.])-?\d+\.\d+(?:e-?\d+)?")


@pytest.mark.parametrize("name", ["checked", "compared", "module"])
@pytest.mark.parametrize("format_", FORMATS)
def test_every_format_renders_the_same_report(format_: str, name: str, request: pytest.FixtureRequest) -> None:
    """Layout only: the numbers are the fixture's. INITDIAG_GOLDEN=1 writes the files anew; look at the diff."""
    path = GOLDEN / f"{name}.{format_}.txt"
    text = render(request.getfixturevalue(name), format_)
    if os.environ.get("INITDIAG_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 60, 80, 120, None])
@pytest.mark.parametrize("name", ["checked", "compared"])
def test_no_number_is_ever_cut(name: str, width: int | None, request: pytest.FixtureRequest) -> None:
    report = request.getfixturevalue(name)
    text = render(report, "table", Style(width=width))
    assert "…" not in text
    wanted = {"6.2537", "0.1625", "0.0007812", "1.006"} if name == "checked" else {"6.2587 ± 0.0071", "1.006 ± 0"}
    assert wanted <= {word for word in re.split(r"\s{2,}|\n", text) if word}


@pytest.mark.parametrize("name", ["checked", "compared", "passed", "module"])
@pytest.mark.parametrize("width", [80, 120])
def test_lines_fit(name: str, width: int, request: pytest.FixtureRequest) -> None:
    text = render(request.getfixturevalue(name), "table", Style(width=width))
    assert max(map(cell_len, text.splitlines())) <= width


def test_at_80_columns_nothing_is_dropped(checked: Report) -> None:
    assert render(checked, "table", Style(width=80)) == render(checked, "table", Style(width=200)) or all(
        heading in render(checked, "table", Style(width=80))
        for heading in ("branch", "variance", "expected", "stream", "ratio", "growth", "unit")
    )


def test_a_narrow_terminal_drops_the_bar_first(checked: Report) -> None:
    text = render(checked, "table", Style(width=70))
    assert "growth" not in text
    assert "ratio" in text and "expected" in text


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("name", ["checked", "compared", "broken", "module"])
def test_an_ascii_terminal_gets_ascii(format_: str, name: str, request: pytest.FixtureRequest) -> None:
    assert render(request.getfixturevalue(name), format_, Style(ascii=True)).isascii()


def test_colour_only_where_it_is_wanted(checked: Report) -> None:
    assert "\x1b[" not in render(checked, "table")
    colored = render(checked, "table", Style(color=True))
    assert "\x1b[1;31merror\x1b[0m" in colored
    plain = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert "\n".join(map(str.rstrip, plain.splitlines())) == render(checked, "table").rstrip("\n")


def test_words_stand_beside_colours(checked: Report) -> None:
    text = render(checked, "table")
    assert "verdict: FAIL (1 error, 1 warning)" in text
    assert "error LOSS001 a-rule\n  at configs/tiny.yaml:3:2\n" in text
    assert "warning RES001" in text


def test_json_of_one_target_is_flat(checked: Report) -> None:
    document = json.loads(render(checked, "json"))
    assert document["schema_version"] == 1
    for key in ("target", "name", "scheme", "seed", "engine", "dtype", "verdict", "versions", "command"):
        assert key in document
    assert document["tokens"] | {"source": "random", "batch": 2, "length": 128} == document["tokens"]
    assert set(document["loss"]) >= {"value", "uniform", "excess", "expected", "uniform_targets"}
    assert set(document["logits"]) >= {"std", "self", "max_abs", "entropy_ratio"}
    assert set(document["residual"]) >= {"embedding_variance", "branch_variance_sum", "scaling_ratio", "branches"}
    branch = {
        "index": 1,
        "name": "blocks.0.attention.out",
        "layer": 0,
        "kind": "attention",
        "branch_variance": 3.66e-6,
        "expected_branch_variance": 3.66e-6,
        "stream_variance": 7.852e-4,
        "expected_stream_variance": 7.852e-4,
        "ratio": 3.66e-6 / 7.852e-4,
    }
    assert document["residual"]["branches"][0].items() >= branch.items()
    parameter = {
        "name": "token_embedding.weight",
        "role": "token_embedding",
        "shape": [512, 64],
        "distribution": "N(0.02)",
        "declared_std": 0.02,
        "measured_std": 0.0202,
        "measured_mean": 0.0,
    }
    assert document["parameters"][0].items() >= parameter.items()
    assert document["findings"][0] == {
        "rule": "LOSS001",
        "name": "a-rule",
        "severity": "error",
        "message": "loss 12.345 nats | 100 % of it, expected: 6.2",
        "subject": "loss",
        "help": "write std=0.02, not 1",
        "file": "configs/tiny.yaml",
        "line": 3,
        "column": 2,
        "option": None,
    }
    assert document["verdict"] == "fail"


def test_json_of_several_runs_has_runs(compared: Report, checked: Report) -> None:
    document = json.loads(render(compared, "json"))
    assert document["schema_version"] == 1
    assert [run["scheme"] for run in document["runs"]] == ["default", "gpt2", "scaled"] * 2
    assert document["pick"]["scheme"] == "scaled"
    several = json.loads(render(Report(checked.runs * 2), "json"))
    assert len(several["runs"]) == 2 and "pick" not in several


def test_json_spells_out_what_json_does_not_have(broken: Report) -> None:
    text = render(broken, "json")
    document = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert document["loss"]["value"] == "nan"
    assert document["loss"]["uniform_targets"] == "inf"
    assert document["residual"]["branches"][0]["stream_variance"] == "-inf"
    assert text.endswith("}\n")


@pytest.mark.parametrize("format_", FORMATS)
def test_broken_numbers_are_rendered(broken: Report, format_: str) -> None:
    assert "nan" in render(broken, format_) or format_ == "github"


def test_github_annotations_are_escaped(checked: Report) -> None:
    first = render(checked, "github").splitlines()[0]
    assert first == (
        "::error file=configs/tiny.yaml,line=3,col=2,title=LOSS001 a-rule::tiny (scaled): loss 12.345 nats | 100 %25 "
        "of it, expected: 6.2%0Ainstead: write std=0.02, not 1"
    )


def test_github_shows_no_more_than_github_does(checked: Report) -> None:
    many = tuple(finding(f"LOSS{i:03}", Severity.ERROR) for i in range(13))
    text = render(Report((replace(checked.run, findings=many),)), "github")
    assert text.count("::error ") == 10
    assert "3 more findings" in text


def test_markdown_keeps_its_tables(checked: Report, compared: Report) -> None:
    for report in (checked, compared):
        table = [line for line in render(report, "markdown").splitlines() if line.startswith("|")]
        for line in table:
            columns = len(re.findall(r"(?<!\\)\|", line))
            assert columns in ({5, 8} if report is checked else {5})
    assert "nats \\| 100 %" in render(checked, "markdown")


def test_an_unknown_format_is_an_error(checked: Report) -> None:
    with pytest.raises(UsageError, match=r"--output-format jsn: expected one of .* \(did you mean 'json'\?\)"):
        render(checked, "jsn")


def test_a_report_prints_itself(checked: Report) -> None:
    assert str(checked) == render(checked, "table")
    assert checked.verdict == "fail" and len(checked.findings) == 2


def test_run_is_the_only_run(compared: Report) -> None:
    with pytest.raises(UsageError, match="6 runs"):
        _ = compared.run
