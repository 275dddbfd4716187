"""Whatever is wrong: exit code 2, one clear sentence on stderr, no traceback, nothing half-written."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from initdiag import Settings, UsageError, check, compare
from initdiag.cli.failure import Exit
from tests.cli.conftest import Initdiag

CONFIG = """model:
  vocab_size: 512
  context: 64
  d_model: 64
  n_layers: 1
  n_heads: 4
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("my.yaml")
    path.write_text(CONFIG)
    return path


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("  n_head: 4", r"^my.yaml:7:3: model.n_head: .*did you mean 'n_heads'\?"),
        ("  d_ff: '256'", r"my.yaml:7:3: model.d_ff: found '256' \(a string\), expected a whole number"),
        ("  n_kv_heads: 3", r"my.yaml:7:3: model.n_kv_heads: 3 does not divide n_heads 4"),
        ("init: {std: -0.02, scheme: gpt2}", r"my.yaml:7:8: init.std: .*-0.02, expected more than 0"),
        ("init: {scheme: gtp2}", r"my.yaml:7:8: init.scheme: .*did you mean 'gpt2'\?"),
        ("tokens: {length: 65}", r"my.yaml:7:10: tokens.length: .*65.*64"),
        ("gate: {select: [LOSS9]}", r"my.yaml:7:8: gate.select: unknown rule 'LOSS9'"),
        ("model:", r"my.yaml:7:1: .*model.*line 1"),
    ],
)
def test_a_config_that_is_wrong(initdiag: Initdiag, config: Path, line: str, says: str) -> None:
    config.write_text(f"{CONFIG}{line}\n")
    ran = initdiag("check", str(config))
    assert (ran.code, ran.out) == (2, "")
    assert re.search(says, ran.err), ran.err
    assert "Traceback" not in ran.err


def test_all_problems_at_once(initdiag: Initdiag, config: Path) -> None:
    config.write_text(CONFIG.replace("n_heads: 4", "n_heads: 5").replace("512", "1") + "  typo: 1\n")
    lines = initdiag("check", str(config)).err.splitlines()
    assert len(lines) == 3
    assert [re.search(r"my.yaml:(\d+):", line).group(1) for line in lines] == ["2", "6", "7"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "nowhere.yaml"], "nowhere.yaml: no such file"),
        (["check", "gtp2"], "did you mean 'gpt2'?"),
        (["check", "."], "directory"),
        (["check", "my.yaml", "--scheme", "scald"], "did you mean 'scaled'?"),
        (["check", "my.yaml", "--set", "model.n_layer=2"], "--set model.n_layer=2: "),
        (["check", "my.yaml", "--device", "gpu"], "--device gpu: expected one of auto, cpu, cuda, mps"),
        (["check", "my.yaml", "--dtype", "fp16"], "--dtype fp16: expected one of float32"),
        (["check", "my.yaml", "--output-format", "jsn"], "did you mean 'json'?"),
        (["check", "my.yaml", "--threads", "0"], "--threads 0: expected at least 1"),
        (["check", "my.yaml", "--text", "missing.txt"], "missing.txt: no such file"),
        (["check", "my.yaml", "--tokens", "my.yaml"], "my.yaml: "),
        (["check", "my.yaml", "--text", "a", "--tokens", "b"], "expected one of them"),
        (["check", "my.yaml", "--tokenizer", "t.json"], "tokenizer"),
        (["compare", "my.yaml", "--schemes", ""], "no schemes to compare"),
        (["compare", "my.yaml", "--schemes", "gpt2,gpt2"], "scheme 'gpt2' is named twice"),
        (["compare", "my.yaml", "--schemes", "gpt2,muq"], "unknown scheme 'muq'"),
        (["compare", "my.yaml", "--seeds", "0"], "--seeds 0: expected at least 1"),
        (["compare", "my.yaml", "--seeds", "1000000000"], "expected at least 1 and at most 10,000"),
        (
            ["check", "my.yaml", "--scheme", "default", "--set", "init.std=0.02"],
            "--set init.std=0.02: scheme 'default'",
        ),
        (["check", "my.yaml", "--set", "gate.select=['']"], "--set gate.select=['']: gate.select: unknown rule ''"),
        (["check", "my.yaml", "--set", "init.std=1e200"], "--set init.std=1e200: found 1e+200, expected at most 1e+06"),
        (["check", "my.yaml", "--set", "model.activation=swiglu"], "activation: silu with gated: true"),
        (["check", "my.yaml", "-o", "my.yaml"], "--output-file my.yaml: it is an input (my.yaml)"),
        (["check", "my.yaml", "--text", "nope\nx"], "nope\\nx: no such file"),
        (["plan", "my.yaml", "--output-format", "markdown"], "expected one of table, json"),
        (["rule", "LOGIT02"], "did you mean 'LOGIT002'?"),
        (["scheme", "skaled"], "did you mean 'scaled'?"),
        (["new"], "no file to write"),
    ],
)
def test_an_argument_that_is_wrong(initdiag: Initdiag, config: Path, arguments: list[str], says: str) -> None:
    ran = initdiag(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert len(ran.err.splitlines()) == 1 and "Traceback" not in ran.err


@pytest.mark.parametrize("arguments", [["check"], ["chek", "tiny"], ["check", "tiny", "--seed", "x"]])
def test_a_command_line_that_is_wrong(initdiag: Initdiag, arguments: list[str]) -> None:
    ran = initdiag(*arguments)
    assert ran.code == 2 and ran.out == "" and "Usage: initdiag" in ran.err


def test_a_token_outside_the_vocabulary(initdiag: Initdiag, config: Path) -> None:
    Path("train.bin").write_bytes(struct.pack("<200H", *([7] * 199), 512))
    ran = initdiag("check", str(config), "--tokens", "train.bin", "--set", "tokens.batch=3")
    assert ran.code == 2 and "512" in ran.err and "199" in ran.err


def test_a_model_that_does_not_fit(initdiag: Initdiag, config: Path) -> None:
    huge = ["--set", "model.d_model=65536", "--set", "model.n_layers=1000"]
    ran = initdiag("check", str(config), *huge, "-q", "--engine", "dense")
    assert ran.code == 2
    assert re.search(r"the weights of my need [\d.]+ GiB as float32; cpu has [\d.]+ GiB available", ran.err)


@pytest.mark.parametrize("path", ["my.yaml/out.json", "."])
def test_a_report_is_never_lost(initdiag: Initdiag, config: Path, path: str) -> None:
    """my.yaml is no folder, and . is no file; root can write to read-only files, so this is how to fail as root."""
    before = sorted(Path().iterdir())
    ran = initdiag("check", str(config), "-q", "-o", path)
    assert ran.code == 2
    assert "verdict: PASS" in ran.out
    assert f"can't write the report to {path}" in ran.err
    assert sorted(Path().iterdir()) == before


def test_debug_shows_where(initdiag: Initdiag, config: Path) -> None:
    assert "Traceback" in initdiag("check", "nowhere.yaml", "--debug").err
    assert "Traceback" not in initdiag("check", "nowhere.yaml").err


def test_a_crash_is_no_finding(initdiag: Initdiag, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError("one\ntwo")

    monkeypatch.setattr("initdiag.cli.check.run_check", crash)
    ran = initdiag("check", str(config))
    assert ran.code == Exit.ERROR
    assert ran.err.startswith("initdiag: internal error: ZeroDivisionError: one (--debug")


def test_interrupted(initdiag: Initdiag, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("initdiag.cli.check.run_check", interrupt)
    ran = initdiag("check", str(config))
    assert ran.code == Exit.INTERRUPTED and "Traceback" not in ran.err


def test_a_name_that_is_no_text_loses_no_report(initdiag: Initdiag, config: Path) -> None:
    """Names are bytes; what can't be printed is escaped wherever it is shown."""
    name = os.fsdecode(b"my\xff.yaml")
    Path(name).write_text(CONFIG)
    for format_ in ("table", "json", "markdown", "github"):
        ran = initdiag("check", name, "-q", "-o", "out.txt", "--output-format", format_)
        assert ran.code == 0, ran.err
        assert re.search(r"my\\+udcff", Path("out.txt").read_text())
    assert {path.name for path in Path().iterdir()} == {"my.yaml", name, "out.txt"}


def test_a_name_can_not_speak_to_github(initdiag: Initdiag, config: Path) -> None:
    name = "a\n::error::pwned.yaml"
    Path(name).write_text(CONFIG)
    lines = initdiag("check", name, "--scheme", "default", "-q", "--output-format", "github").out.splitlines()
    assert not [line for line in lines if line.startswith("::error::")]


def test_a_link_keeps_pointing(initdiag: Initdiag, config: Path) -> None:
    Path("real.txt").write_text("old")
    Path("link.txt").symlink_to("real.txt")
    assert initdiag("check", str(config), "-q", "-o", "link.txt").code == 0
    assert Path("link.txt").is_symlink() and "verdict: PASS" in Path("real.txt").read_text()


def test_a_long_name(initdiag: Initdiag, config: Path) -> None:
    assert initdiag("check", str(config), "-q", "-o", "x" * 254).code == 0
    assert "verdict: PASS" in Path("x" * 254).read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"targets": (None,)}, "target: found None"),
        ({"targets": (5,)}, "target: found 5"),
        ({"targets": (["tiny"],)}, "target: found ['tiny']"),
        ({"scheme": 3}, "scheme: found 3"),
        ({"text": b"x"}, "text: found b'x'"),
        ({"overrides": None}, "overrides: found None"),
        ({"overrides": "init.std=1"}, "overrides: found 'init.std=1'"),
        ({"overrides": [1]}, "overrides: found 1"),
        ({"settings": {}}, "settings: found {}"),
        ({"settings": "float32"}, "settings: found 'float32'"),
    ],
)
def test_an_argument_of_the_wrong_type(arguments: dict[str, Any], says: str) -> None:
    targets = arguments.pop("targets", ("tiny",))
    with pytest.raises(UsageError, match="^" + re.escape(says)):
        check(*targets, **arguments)


@pytest.mark.parametrize(
    "wrong", [{"dtype": None}, {"threads": "4"}, {"threads": True}, {"threads": 1.5}, {"device": 3}]
)
def test_settings_of_the_wrong_type(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="found"):
        Settings(**wrong)


@pytest.mark.parametrize("seeds", [1.5, "2", None, True])
def test_seeds_of_the_wrong_type(seeds: Any) -> None:
    with pytest.raises(UsageError, match=r"^seeds: found"):
        compare("tiny", seeds=seeds)


@pytest.mark.parametrize("schemes", [5, None, [3]])
def test_schemes_of_the_wrong_type(schemes: Any) -> None:
    with pytest.raises(UsageError, match=r"^schemes: found"):
        compare("tiny", schemes=schemes)
