"""`initdiag predict`, as a shell sees it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Imported, Initdiag, Ran

ROOT = Path(__file__).parents[2]
TINY = str(ROOT / "configs" / "tiny.yaml")
BAD = str(ROOT / "configs" / "bad.yaml")
CHEAP = ("--set", "tokens.length=32", "-q")  # without -q, whoever waits a second is told something
MOST_MEMORY = 120  # MB, as issue 6 asks; numpy, pydantic and the Grams take about 65


def process(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the program in a process of its own, which tells at its end what it has imported and its peak memory."""
    code = (
        "import sys, atexit, pathlib\n"
        f"sys.argv = ['initdiag', *{list(arguments)!r}]\n"
        "from initdiag.cli.entry import main\n"
        "def told():\n"
        # not getrusage: its ru_maxrss is at least that of the process that forked this one
        "    status = pathlib.Path('/proc/self/status').read_text()\n"
        "    peak = int(status.partition('VmHWM:')[2].split()[0]) // 1024\n"
        "    sys.stderr.write(f'\\nMB {peak} IMPORTED ' + ' '.join(sorted(sys.modules)))\n"
        "atexit.register(told)\n"
        "main()\n"
    )
    environment = {"COLUMNS": "80", **environment}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **environment}, check=False
    )


def modules_of(ran: subprocess.CompletedProcess[str]) -> set[str]:
    return set(ran.stderr.rpartition("IMPORTED ")[2].split())


def test_the_largest_model_needs_no_torch_and_little_memory() -> None:
    ran = process("predict", "llama-3.1-405b", "--scheme", "gpt2", "-q", "--exit-zero")
    assert ran.returncode == 0 and "405.9 B parameters" in ran.stdout
    modules = modules_of(ran)
    assert "numpy" in modules
    assert not {"torch", "rich.console", "rich.table"} & modules  # what takes long, and isn't needed
    assert int(ran.stderr.rpartition("MB ")[2].split()[0]) < MOST_MEMORY


@pytest.mark.parametrize(
    "arguments",
    [
        ["predict", "--help"],
        ["predict", "no-such-config"],
        ["predict", "model.py:GPT"],
        ["predict", TINY, "--vary", "n_layer=2,4"],
        ["predict", TINY, "--vary", "n_layers=2,0"],
        ["predict", TINY, "--scheme", "nope"],
        ["predict", TINY, "--text", "no-such-file"],
    ],
    ids=" ".join,
)
def test_nothing_is_imported_for_an_error(arguments: list[str], imported: Imported) -> None:
    packages = imported(arguments)
    assert "initdiag" in packages
    assert not {"torch", "numpy"} & packages


def test_one_thread_of_openblas_unless_asked_otherwise() -> None:
    code = "import os, sys; sys.argv = ['initdiag', '--version']; from initdiag.cli.entry import main\ntry: main()\n"
    code += "except SystemExit: print(os.environ['OPENBLAS_NUM_THREADS'])"
    for given, kept in ((None, "1"), ("3", "3")):
        environment = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
        environment |= {"OPENBLAS_NUM_THREADS": given} if given else {}
        ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
        assert ran.stdout.split()[-1] == kept


@pytest.mark.parametrize("more", [[], ["--vary", "n_layers=2,4"]], ids=["one", "varied"])
def test_an_ascii_terminal(more: list[str]) -> None:
    ran = process("predict", TINY, *CHEAP, *more, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert ran.returncode == 0
    assert ran.stdout.isascii() and "?" not in ran.stdout and "sum of branch" in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= 80


def test_a_prediction_fits_a_terminal_and_says_what_it_is(initdiag: Initdiag) -> None:
    ran = initdiag("predict", "tiny", *CHEAP)
    assert ran.code == 0 and ran.err == ""
    lines = ran.out.splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(ran.out.split())
    assert "engine: theory" in words and "measured" not in words and "torch" not in words
    assert "weights: all N(0.02); out N(0.007071); none is drawn" in words
    assert "verdict: PASS (0 errors, 0 warnings), predicted" in words
    assert "Only a run shows the largest |logit|, the largest activation, dead parameters and damaged tensors" in words
    heading = next(line for line in lines if "predicted  " in line)
    assert heading.split() == ["predicted", "±", "1", "std", "over", "draws", "unit"]
    assert re.search(r"^logit std +0\.16\d\d +0\.000\d+ +logits$", ran.out, re.M)
    assert len([line for line in lines if re.search(r"blocks\.\d\.(attention|mlp)\.out", line)]) == 8
    assert not re.search(r"^(largest|dead)", ran.out, re.M)


def test_the_gradient_is_there_where_it_is_asked_for(initdiag: Initdiag) -> None:
    assert "gradient" not in initdiag("predict", "tiny", *CHEAP).out
    out = initdiag("predict", "tiny", *CHEAP, "--backward").out
    assert re.search(r"variance +stream .*gradient", out) and "gradient ratio per layer" in out
    assert not re.search(r"^dead", out, re.M)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([TINY, *CHEAP], 0),
        ([BAD, *CHEAP], 1),
        ([BAD, *CHEAP, "--exit-zero"], 0),
        ([BAD, *CHEAP, "--vary", "n_layers=2,3"], 1),
        ([BAD, *CHEAP, "--vary", "n_layers=2,3", "--exit-zero"], 0),
        ([TINY, *CHEAP, "--vary", "init.std=0.02,1"], 1),
    ],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, list) else str(value),
)
def test_exit_codes(initdiag: Initdiag, arguments: list[str], code: int) -> None:
    assert initdiag("predict", *arguments).code == code


def test_rules_point_at_the_config_as_in_check(initdiag: Initdiag) -> None:
    out = initdiag("predict", BAD, *CHEAP).out
    assert re.search(r"^error LOGIT001 hot-logits\n  at .*bad\.yaml:\d+:\d+$", out, re.M)


def refused(ran: Ran) -> str:
    """What was said of bad input: a single sentence on stderr."""
    assert ran.code == 2 and ran.out == ""
    assert len(ran.err.strip().splitlines()) == 1 and "internal error" not in ran.err
    return ran.err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["model.py:GPT"], "model.py:GPT: theory needs an architecture that it knows; expected a config file"),
        (["tiny", "--output-format", "html"], "expected one of table, json, markdown, github"),
        (["tiny", "--scheme", "lsuv"], "lsuv rescales the weights on a batch"),
        (["tiny", "--set", "init.roles.mlp_out=0.5"], "is the constant 0.5"),
        (["tiny", "--vary", "n_layers"], "--vary n_layers: expected KEY=VALUE,VALUE"),
        (["tiny", "--vary", "n_layers="], "found no value, expected two values or more"),
        (["tiny", "--vary", "n_layers=6"], "found only 6, expected two values or more"),
        (["tiny", "--vary", "n_layers=6,6"], "6 is there twice"),
        (["tiny", "--vary", "n_layers=6,,7"], "--vary n_layers=6,,7: not valid YAML"),
        (["tiny", "--vary", "n_layers=[6,7"], "is never closed"),
        (["tiny", "--vary", "n_layers=6]"], "--vary n_layers=6]: "),
        (["tiny", "--vary", "n_layers=six,7"], "--vary n_layers=six: found 'six' (a string), expected a whole number"),
        (["tiny", "--vary", "n_layer=6,7"], "(did you mean 'n_layers'?)"),
        (["tiny", "--vary", "=6,7"], "--vary =6,7: expected KEY=VALUE,VALUE"),
        (["tiny", "--vary", "d_model=64,65"], "--vary d_model=65: n_heads, 4 at d_model 64, would be 4.0625"),
        (["tiny", "--vary", "n_layers=2,4", "--vary", "d_model=64,128"], "expected one --vary"),
        (["tiny", "--vary", "n_layers=2,4", "--set", "model.n_layers=3"], "model.n_layers is varied"),
        (["tiny", "--vary", "position=learned,null"], "found nothing (null), expected one of learned"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_clear_sentence(initdiag: Initdiag, arguments: list[str], says: str) -> None:
    assert says in refused(initdiag("predict", *arguments))


def test_a_varied_key_has_a_row_for_each_value_and_its_growth(initdiag: Initdiag) -> None:
    ran = initdiag("predict", "tiny", *CHEAP, "--scheme", "gpt2", "--vary", "n_layers=2,4,8", "--backward")
    assert ran.code == 0 and ran.err == ""
    assert max(map(len, ran.out.splitlines())) <= 80
    for n_layers, ratio in ((2, "4.000"), (4, "8.000"), (8, "16.00")):  # 2N unscaled branches
        rows = re.findall(rf"^ +{n_layers}  .*$", ran.out, re.M)
        assert len(rows) == 2 and ratio in rows[1].split() and rows[1].endswith("pass, warns")
    assert re.search(r"^scaling ratio +x\^1\.00 +< 0\.1 % +grows like x$", ran.out, re.M)
    assert re.search(r"^logit std +x\^−?0\.00 +[<\d. ]+ % +stays$", ran.out, re.M)
    words = " ".join(ran.out.split())
    assert "growth with x = n_layers, 2 … 8" in words and "within ±0.07 stays" in words
    assert "drift: " in words and "scaling ratio (x^1.00)" in words
    assert "warning RES001 unscaled-residual, n_layers 2, 4, 8: at 2, the stream" in words
    assert "verdict: PASS, predicted Only a run shows" in words


@pytest.mark.parametrize("width", ["40", "60", "80", "120", "200"])
def test_no_width_cuts_a_number(initdiag: Initdiag, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    def numbers(columns: str) -> set[str]:
        monkeypatch.setenv("COLUMNS", columns)
        return set(re.findall(r"\d\.\d{2,}", initdiag("predict", "tiny", *CHEAP, "--vary", "std=0.01,0.02").out))

    assert numbers(width) == numbers("500") != set()


def test_json_of_a_prediction(initdiag: Initdiag) -> None:
    document = json.loads(initdiag("predict", "tiny", *CHEAP, "--output-format", "json").out)
    assert document["engine"] == "theory" and document["verdict"] == "pass"
    assert document["logits"]["max_abs"] is None and document["parameters"] == []
    assert document["loss"]["value"] == document["loss"]["expected"] > document["loss"]["uniform"]
    assert document["spreads"]["logit_std"] > 0 and len(document["spreads"]["streams"]) == 8
    assert document["command"] == "initdiag predict tiny --set tokens.length=32 -q --output-format json"


def test_json_of_varied_values(initdiag: Initdiag) -> None:
    ran = initdiag("predict", "tiny", *CHEAP, "--vary", "n_layers=2,4", "--output-format", "json", "--scheme", "gpt2")
    document = json.loads(ran.out)
    assert (document["key"], document["values"], document["verdict"]) == ("model.n_layers", [2, 4], "pass")
    alone = json.loads(
        initdiag(*"predict tiny --scheme gpt2 --output-format json".split(), *CHEAP, "--set", "model.n_layers=4").out
    )
    own = {"command": "", "advice": []}  # of a single prediction
    assert {**document["runs"][1], **own} == {**alone, **own}
    fit = document["fits"]["scaling ratio"]
    assert fit["law"] == "power" and fit["exponent"] == pytest.approx(1) and fit["words"] == "grows like x"


@pytest.mark.parametrize("more", [[], ["--vary", "n_layers=2,4"]], ids=["one", "varied"])
@pytest.mark.parametrize("format_", ["markdown", "github"])
def test_other_formats(initdiag: Initdiag, format_: str, more: list[str]) -> None:
    ran = initdiag("predict", BAD, *CHEAP, *more, "--output-format", format_)
    assert ran.code == 1
    assert "damaged tensors" in ran.out and "predicted" in ran.out and "LOGIT002" in ran.out
    if format_ == "github":
        assert re.search(r"^::error file=.*bad\.yaml,line=\d+", ran.out, re.M)
    else:
        tables = [line for line in ran.out.splitlines() if line.startswith("|")]
        assert tables and all(line.endswith(" |") for line in tables)
        assert ("excess over ln V" in ran.out) and ("off by" in ran.out) == bool(more)


@pytest.mark.parametrize("more", [[], ["--vary", "n_layers=2,4"]], ids=["one", "varied"])
def test_a_report_goes_to_a_file(initdiag: Initdiag, tmp_path: Path, more: list[str]) -> None:
    ran = initdiag("predict", "tiny", *CHEAP, *more, "-o", str(tmp_path / "report.txt"))
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == f"initdiag: pass; report in {tmp_path / 'report.txt'}\n"
    assert "verdict: PASS" in (tmp_path / "report.txt").read_text()
    ran = initdiag("predict", TINY, *more, "-o", TINY)
    assert ran.code == 2 and "it is an input" in ran.err


def test_colour_is_as_in_check(initdiag: Initdiag) -> None:
    out = initdiag("predict", "tiny", *CHEAP, "--color", "always").out
    assert "verdict: \x1b[1;32mPASS\x1b[0m" in out and "\x1b[1m" in out
    assert "\x1b[1;32mPASS" in initdiag("predict", "tiny", *CHEAP, "--color", "always", "--vary", "n_layers=2,4").out


def test_a_text_is_read(initdiag: Initdiag) -> None:
    ran = initdiag("predict", "tiny", *CHEAP, "--text", str(ROOT / "README.md"))
    assert ran.code == 0
    assert "README.md: 2 windows × 32 bytes of" in " ".join(ran.out.split())
