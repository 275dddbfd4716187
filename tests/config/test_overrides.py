"""`--set`: what it changes, and that its problems bear its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from initdiag.config import load
from initdiag.config.overrides import apply

Lines = Callable[..., list[str]]

MODEL = "model:\n  vocab_size: 512\n  context: 128\n  d_model: 64\n  n_layers: 2\n  n_heads: 4\n"


def test_values_are_yaml_and_the_last_one_wins(here: Path) -> None:
    Path("a.yaml").write_text(MODEL)
    overrides = ["init.std=0.01", "init.std=1e-3", "gate.ignore=[A, B]", "tokens.length=", "init.scheme = scaled"]
    config = load("a.yaml", overrides).config
    assert config.init.std == 0.001
    assert config.init.scheme == "scaled"
    assert config.gate.ignore == ("A", "B")
    assert config.tokens.length is None
    assert load("a.yaml", ["init={std: 0.5}", "init.seed=3"]).config.init.parameters == {"std": 0.5}


def test_the_mapping_itself_is_left_alone() -> None:
    raw = {"init": {"std": 1.0}}
    assert apply(raw, ["init.std=2.0"]).raw == {"init": {"std": 2.0}}
    assert raw == {"init": {"std": 1.0}}


def test_a_section_that_is_set_replaces_what_was_set_in_it(problems: Lines) -> None:
    whole = "init={scheme: default, std: 0.1}"
    assert problems(MODEL, "init.std=abc", whole) == [
        f"--set {whole}: init.std: scheme 'default' has no parameters, expected none"
    ]


def test_an_override_repairs_the_file(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "init:\n  std: abc\n")
    assert load("a.yaml", ["init.std=0.1"]).config.init.std == 0.1


def test_token_paths_of_overrides_are_relative_to_the_current_directory(here: Path) -> None:
    Path("sub").mkdir()
    Path("sub/a.yaml").write_text(MODEL + "tokens: {source: text, path: in.txt, tokenizer: t.json}\n")
    assert load("sub/a.yaml").tokens_path == Path("sub/in.txt")
    overridden = load("sub/a.yaml", ["tokens.path=out.txt"])
    assert overridden.tokens_path == here / "out.txt"
    assert overridden.tokenizer_path == Path("sub/t.json")


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("init.std=true", "--set init.std=true: found true (a boolean), expected a number or a formula in quotes"),
        ("init.sdt=1", "--set init.sdt=1: unknown key (did you mean 'std'?)"),
        ("foo.bar=1", "--set foo.bar=1: foo: unknown key, expected one of about, model, init, tokens, gate"),
        ("n_layers=3", "--set n_layers=3: unknown key here, expected model.n_layers"),
        ("init={std: []}",
         "--set init={std: []}: init.std: found [] (a list), expected a number or a formula in quotes"),
        ("gate.ignore=[A, 2]", "--set gate.ignore=[A, 2]: gate.ignore[1]: found 2 (a whole number), expected a string"),
        ("model.n_layers.x=1",
         "--set model.n_layers.x=1: found 2 (a whole number) at model.n_layers, expected a section"),
        ("init", "--set init: expected KEY=VALUE, such as init.std=0.01"),
        ("=3", "--set =3: expected KEY=VALUE, such as init.std=0.01"),
        ("init..std=3", "--set init..std=3: expected KEY=VALUE, such as init.std=0.01"),
        ("init.seed='", "--set init.seed=': found a quote that is never closed"),
        ("init.std=" + "x" * 1000,
         f"--set init.std={'x' * 70}…: found a formula of 1,000 characters, expected at most 200"),
        # the override is to blame for what it makes of the other keys
        ("model.d_model=65",
         "--set model.d_model=65: model.n_heads: 4 does not divide d_model 65; expected a divisor of it, or "
         "a head_dim"),
        ("model.context=9", "--set model.context=9: tokens.length: found 10, expected at most the model's context, 9"),
        ("tokens.source=text",
         "--set tokens.source=text: tokens.path: not found, expected a text file, as the source is text"),
        ("init.scheme=default",
         "--set init.scheme=default: init.std: scheme 'default' has no parameters, expected none"),
    ],
)  # fmt: skip
def test_problems_bear_the_name_of_the_override(problems: Lines, override: str, expected: str) -> None:
    assert problems(MODEL + "tokens: {length: 10}\ninit: {std: 0.1}\n", override) == [expected]


ROTARY = "  position: rotary\n  rotary_scaling: {factor: 8, low: 1, high: 4, context: 64}\n"


def test_overrides_of_rotary_positions(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + ROTARY)
    model = load("a.yaml", ["model.rotary_base=500000", "model.rotary_scaling.factor=32"]).config.model
    assert model.rotary_base == 500_000
    assert model.rotary_scaling is not None
    assert (model.rotary_scaling.factor, model.rotary_scaling.high) == (32, 4)
    assert load("a.yaml", ["model.rotary_scaling="]).config.model.rotary_scaling is None
    assert load("a.yaml", ["model.rotary_scaling=null", "model.position=none"]).config.model.position == "none"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("model.rotary_scaling.low=5", "found 5, expected less than rotary_scaling.high, 4"),
        ("model.rotary_scaling.high=0.5",
         "model.rotary_scaling.low: found 1, expected less than rotary_scaling.high, 0.5"),
        ("model.rotary_scaling={factor: 8, low: 2, high: 1, context: 9}",
         "model.rotary_scaling.low: found 2, expected less than rotary_scaling.high, 1"),
        ("model.rotary_scaling.fctor=5", "unknown key (did you mean 'factor'?)"),
        ("model.rotary_scaling.low.x=5", "found 1 (a whole number) at model.rotary_scaling.low, expected a section"),
        ("model.position=learned",
         "model.rotary_scaling: found with position learned, expected position rotary, or no rotary_scaling"),
    ],
)  # fmt: skip
def test_problems_of_a_section_in_a_section(problems: Lines, override: str, expected: str) -> None:
    assert problems(MODEL + ROTARY, override) == [f"--set {override}: {expected}"]


def test_an_override_is_to_blame_for_what_its_own_section_lacks(problems: Lines) -> None:
    override = "model.moe.shared=1"
    lines = problems(MODEL, override)
    assert [line.split(": ")[:2] for line in lines] == [
        [f"--set {override}", f"model.moe.{name}"] for name in ("experts", "top_k")
    ]
    (line,) = problems(MODEL + "  moe: {experts: 4}\n", override)
    assert line.startswith("a.yaml:7:3: model.moe.top_k: not found"), "here the file lacks it"


def test_problems_of_the_file_come_first(problems: Lines) -> None:
    lines = problems(MODEL.replace("128", "x"), "init.seed=[", "init.std=[]", "gate.zzz=1")
    assert [line.split(": ")[0] for line in lines] == [
        "a.yaml:3:3",
        "--set init.std=[]",
        "--set gate.zzz=1",
        "--set init.seed=[",
    ]
