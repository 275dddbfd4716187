"""The commands, run as a user would, on models that take no time."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
import yaml

import initdiag as library
from initdiag.rules import RULES
from initdiag.schemes import SCHEMES
from tests.cli.conftest import Initdiag

TWO_LAYERS = ("--set", "model.n_layers=2", "-q")
SMALL = (*TWO_LAYERS, "--set", "tokens.length=32")


def test_check_passes(initdiag: Initdiag) -> None:
    ran = initdiag("check", "tiny", *SMALL)
    assert ran.code == 0
    assert "verdict: PASS (0 errors, 0 warnings)" in ran.out
    assert ran.err == ""


def test_check_fails_and_says_why(initdiag: Initdiag) -> None:
    ran = initdiag("check", "tiny", "--scheme", "default", *SMALL)
    assert ran.code == 1
    assert "error LOGIT002 head-predicts-input\n  at --scheme default\n" in ran.out
    assert "instead:" in ran.out and "verdict: FAIL" in ran.out


@pytest.mark.parametrize("format_", ["table", "json", "markdown", "github"])
def test_the_exit_code_is_the_same_in_every_format(initdiag: Initdiag, format_: str) -> None:
    assert initdiag("check", "tiny", *SMALL, "--output-format", format_).code == 0
    assert initdiag("check", "bad", *SMALL, "--output-format", format_).code == 1
    assert initdiag("check", "bad", *SMALL, "--output-format", format_, "--exit-zero").code == 0
    assert initdiag("check", "none", *SMALL, "--output-format", format_, "--exit-zero").code == 2


def test_several_targets_into_a_file(initdiag: Initdiag, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out.json"
    ran = initdiag("check", "tiny", "tiny-untied", "--output-format", "json", "-o", str(out))
    assert (ran.code, ran.out) == (0, "")
    assert str(out) in ran.err
    document = json.loads(out.read_text())
    assert [run["target"] for run in document["runs"]] == ["tiny", "tiny-untied"]
    assert document["runs"][0]["command"].startswith("initdiag check tiny")
    assert list(tmp_path.glob("new/.*")) == []


def test_compare_shares_its_draws(initdiag: Initdiag) -> None:
    ran = initdiag("compare", "tiny", "--schemes", "gpt2,scaled", *SMALL, "--output-format", "json")
    first, second = json.loads(ran.out)["runs"]
    for one, other in zip(first["parameters"], second["parameters"], strict=True):
        if one["role"] not in ("attention_out", "mlp_out"):
            assert one["measured_std"] == other["measured_std"]
        else:  # the same normals: measured/declared agree to the rounding of float32
            ratio = one["measured_std"] / one["declared_std"]
            assert other["measured_std"] / other["declared_std"] == pytest.approx(ratio, rel=1e-5)


def test_compare_gives_what_check_gives(initdiag: Initdiag) -> None:
    """A scheme drawn over another one holds what it would hold alone."""
    ran = initdiag("compare", "tiny", "--schemes", "default,gpt2,scaled", *SMALL, "--output-format", "json")
    assert ran.code == 1  # default is tied to N(1)
    for run in json.loads(ran.out)["runs"]:
        alone = json.loads(initdiag("check", "tiny", "--scheme", run["scheme"], *SMALL, "--output-format", "json").out)
        for key in ("loss", "logits", "residual", "parameters", "attention"):
            assert run[key] == alone[key]


def test_compare_over_seeds(initdiag: Initdiag) -> None:
    arguments = ("compare", "tiny", "--schemes", "gpt2,scaled", "--seeds", "3", "--seed", "5", *SMALL)
    ran = initdiag(*arguments, "--output-format", "json")
    document = json.loads(ran.out)
    assert [(run["seed"], run["scheme"]) for run in document["runs"]] == [
        (seed, scheme) for seed in (5, 6, 7) for scheme in ("gpt2", "scaled")
    ]
    assert len({run["loss"]["value"] for run in document["runs"]}) == 6
    assert document["pick"]["scheme"] == "scaled"
    table = initdiag(*arguments)
    assert "3 seeds (5 to 7), mean ± std" in table.out and "pick: scaled" in table.out


def test_the_same_command_gives_the_same_numbers(initdiag: Initdiag) -> None:
    arguments = ("check", "tiny", *SMALL, "--output-format", "json")
    first, second = json.loads(initdiag(*arguments).out), json.loads(initdiag(*arguments, "--threads", "3").out)
    for document in (first, second):
        del document["command"], document["versions"]
    assert first == second
    other = json.loads(initdiag(*arguments, "--seed", "1").out)
    assert other["loss"]["value"] != first["loss"]["value"] and other["seed"] == 1


def test_tokens_from_text_and_files(initdiag: Initdiag, tmp_path: Path) -> None:
    text, ids = tmp_path / "text.txt", tmp_path / "train.bin"
    text.write_text("the quick brown fox " * 60)
    ids.write_bytes(struct.pack("<600H", *[i % 500 for i in range(600)]))
    for option, file, source, total in (("--text", text, "text", 1200), ("--tokens", ids, "file", 600)):
        ran = initdiag("check", "tiny", *SMALL, option, str(file), "--output-format", "json")
        tokens = json.loads(ran.out)["tokens"]
        assert (tokens["source"], tokens["path"], tokens["total"]) == (source, str(file), total)
        assert ran.code == 0
    assert "tokens: " + str(ids) in initdiag("check", "tiny", *SMALL, "--tokens", str(ids)).out.replace("\n  ", " ")


def test_text_through_a_tokenizer(initdiag: Initdiag, tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "the": 1, "fox": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "text.txt").write_text("the fox saw " * 200)
    ran = initdiag(
        *("check", "tiny", *SMALL, "--output-format", "json"),
        *("--text", str(tmp_path / "text.txt"), "--tokenizer", str(tmp_path / "tokenizer.json")),
    )
    assert json.loads(ran.out)["tokens"]["distinct"] == 3


def test_plan_lists_every_parameter(initdiag: Initdiag) -> None:
    document = json.loads(initdiag("plan", "tiny", *SMALL, "--output-format", "json").out)
    assert len(document["parameters"]) == 2 + 2 * 16 + 2
    by_name = {parameter["name"]: parameter for parameter in document["parameters"]}
    out = by_name["blocks.1.mlp.out.weight"]
    assert out["role"] == "mlp_out" and out["shape"] == [64, 256] and out["layer"] == 1
    assert out["declared_std"] == pytest.approx(0.02 / 2)
    assert out["measured_std"] == pytest.approx(0.01, rel=5 / (2 * 64 * 256) ** 0.5)
    table = initdiag("plan", "tiny", *SMALL).out
    assert table.count("attention.query.weight") == 2 and "position_embedding.weight" in table


def test_rules_and_schemes_explain_themselves(initdiag: Initdiag) -> None:
    rules, schemes = initdiag("rule").out, initdiag("scheme").out
    assert all(rule in rules for rule in RULES)
    assert all(scheme in schemes for scheme in SCHEMES)
    for name in ("RES001", "res001", "unscaled-residual"):
        page = initdiag("rule", name).out
        assert all(heading in page for heading in ("What it does", "Why it is bad", "Example", "Use instead"))
    assert "N(residual_std)" in initdiag("scheme", "scaled").out


def test_new_writes_a_config_that_passes(initdiag: Initdiag, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    assert initdiag("new", str(mine)).code == 0
    assert yaml.safe_load(mine.read_text())["model"]["d_model"] == 768
    assert initdiag("plan", str(mine), "--set", "model.n_layers=1", "-q").code == 0
    assert initdiag("new", str(mine)).code == 2
    assert initdiag("new", str(mine), "--force").code == 0


def test_schema_is_the_committed_one(initdiag: Initdiag) -> None:
    committed = Path(__file__).parents[2] / "configs" / "initdiag.schema.json"
    assert initdiag("schema").out == committed.read_text()


def test_every_command_has_help_and_every_option_an_explanation(initdiag: Initdiag) -> None:
    top = initdiag("--help")
    assert top.code == 0
    for command in ("check", "compare", "plan", "rule", "scheme", "schema", "new"):
        assert command in top.out
        help_ = initdiag(command, "--help").out
        assert "Usage: initdiag " + command in help_
    assert initdiag("--version").out == f"initdiag {library.__version__}\n"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_every_dtype_runs(initdiag: Initdiag, dtype: str) -> None:
    document = json.loads(initdiag("check", "tiny", *SMALL, "--dtype", dtype, "--output-format", "json").out)
    assert document["dtype"] == dtype and document["verdict"] == "pass"
    reference = json.loads(initdiag("check", "tiny", *SMALL, "--output-format", "json").out)
    # bfloat16 has 8 bits: each branch is rounded to 0.4 %, statistics are not
    assert document["loss"]["value"] == pytest.approx(reference["loss"]["value"], rel=2e-3)
    assert document["logits"]["std"] == pytest.approx(reference["logits"]["std"], rel=1e-2)


def test_python_returns_the_same_report(initdiag: Initdiag) -> None:
    report = library.check("tiny", overrides=["model.n_layers=2"])
    document = json.loads(initdiag("check", "tiny", *TWO_LAYERS, "--output-format", "json").out)
    assert report.run.measured.loss.value == document["loss"]["value"]
    assert isinstance(report, library.Report)
    compared = library.compare("tiny", schemes=["gpt2", "scaled"], overrides=["model.n_layers=2"])
    assert isinstance(compared, library.Report) and compared.pick is not None and len(compared.runs) == 2
    mapping = yaml.safe_load((Path(__file__).parents[2] / "configs" / "tiny.yaml").read_text())
    mapping["model"]["n_layers"] = 2
    assert library.check(mapping).run.measured.loss.value == document["loss"]["value"]


def test_findings_point_at_who_sets_the_value(initdiag: Initdiag) -> None:
    """A line of the file, or the option that stands in its place."""
    arguments = ("check", "tiny", "--output-format", "json", *SMALL)
    by_option = json.loads(initdiag(*arguments, "--scheme", "default").out)["findings"]
    assert {(one["file"], one["line"], one["option"]) for one in by_option} == {(None, None, "--scheme default")}
    by_set = json.loads(initdiag(*arguments, "--set", "init.std=0.5").out)["findings"]
    assert "--set init.std=0.5" in {one["option"] for one in by_set}
    by_file = json.loads(initdiag("check", "bad", "--output-format", "json", *SMALL).out)["findings"]
    assert {one["file"] for one in by_file} == {"configs/bad.yaml"} and by_file[0]["line"] > 1


@pytest.mark.usefixtures("elsewhere")
def test_text_says_that_bytes_are_its_tokens(initdiag: Initdiag) -> None:
    Path("my text.txt").write_text("the quick brown fox " * 60)
    ran = initdiag("check", "tiny", *TWO_LAYERS, "--text", "my text.txt")
    assert "tokens: my text.txt: 2 windows × 128 bytes of 1,200; 16 distinct" in ran.out


def test_compare_says_what_it_means(initdiag: Initdiag) -> None:
    ran = initdiag("compare", "tiny", "--schemes", "gpt2,scaled", "--seeds", "2", *SMALL)
    assert "(seed 0; in 2 of 2 seeds)" in ran.out.replace("\n    ", " ")
    assert "all schemes on one scale, seed 0" in ran.out.replace("\n", " ")
    assert "Picked by, in this order: fewest errors" in ran.out.replace("\n  ", " ")
    assert re.search(r"initdiag check tiny --set .* --scheme gpt2", ran.out.replace("\n", " "))
    alone = initdiag("compare", "tiny", "--schemes", "scaled", *SMALL)
    assert alone.code == 0 and "same weights" not in alone.out


def test_compare_drops_what_only_some_schemes_have(initdiag: Initdiag) -> None:
    ran = initdiag("compare", "tiny", *SMALL, "--set", "init.std=0.03", "--output-format", "json")
    settings = {run["scheme"]: run["scheme_parameters"] for run in json.loads(ran.out)["runs"]}
    assert settings["default"] == {} and settings["gpt2"] == {"std": 0.03}


def test_the_python_interface_is_what_it_says() -> None:
    assert set(dir(library)) >= {"check", "compare", "plan", "Report", "Settings", "InitdiagError"}
    assert not {"Any", "TYPE_CHECKING"} & set(dir(library))
    compared = library.compare("tiny", schemes="gpt2,scaled", overrides=["model.n_layers=1"])
    assert [run.scheme for run in compared.runs] == ["gpt2", "scaled"]
    assert repr(compared) == "<Report: pass, 2 runs; print() shows it>"
    mapping = {"model": {"vocab_size": 64, "context": 16, "d_model": 16, "n_layers": 1, "n_heads": 2}}
    layers = library.check(mapping, overrides=["model.n_layers=3"]).run.subject.architecture.n_layers
    assert layers == 3
