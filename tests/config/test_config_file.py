"""From a target to a ConfigFile: files, names, encodings, mappings, and the changes of a command line."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from initdiag.config import Config, ConfigFile, from_mapping, load, preset_path, with_init, with_tokens
from initdiag.errors import ConfigError, Location, Option, UsageError
from initdiag.schemes import SCHEMES

Lines = Callable[..., list[str]]

MODEL = "model:\n  vocab_size: 512\n  context: 128\n  d_model: 64\n  n_layers: 2\n  n_heads: 4\n"


def refusal(target: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(target)
    return str(caught.value)


def test_a_file(here: Path) -> None:
    Path("my.config.yml").write_bytes(b"\xef\xbb\xbf# mine\n" + MODEL.encode())
    loaded = load("./my.config.yml")
    assert (loaded.name, loaded.target, loaded.path) == ("my.config", "./my.config.yml", Path("my.config.yml"))
    assert loaded.locate("model.n_heads") == Location("./my.config.yml", 7, 3)
    assert loaded.locate("init.std") == Location("./my.config.yml", 1, 1)
    assert loaded.locate("model.d_ff") == Location("./my.config.yml", 2, 1), "the nearest that is there"
    assert loaded.locate("") == Location("./my.config.yml", 1, 1)


def test_locate_takes_the_first_key_that_anybody_sets(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "init:\n  scheme: scaled\n  std: 0.03\n  roles: {mlp_out: 0}\n")
    loaded = load("a.yaml")
    assert loaded.locate("init.roles.mlp_out", "init.std") == Location("a.yaml", 10, 11)
    assert loaded.locate("init.roles.mlp_in", "init.residual_std", "init.std") == Location("a.yaml", 9, 3)
    assert loaded.locate("init.roles.mlp_in", "init.gain") == Location("a.yaml", 7, 1), "the section of the last"
    option = load("a.yaml", ["init.residual_std=0.01"])
    assert option.locate("init.residual_std", "init.std") == Option("--set init.residual_std=0.01")
    other = with_init(loaded, scheme="gpt2")  # which goes without the roles, but keeps the std
    assert other.locate("init.roles.mlp_out", "init.std") == loaded.locate("init.std")
    other = with_init(loaded, scheme="default")
    assert other.locate("init.roles.mlp_out", "init.std", "init.scheme") == Option("--scheme default")


def test_locate_finds_list_entries(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "gate:\n  ignore:\n    - A\n    - B\n")
    assert load("a.yaml").locate("gate.ignore[1]") == Location("a.yaml", 10, 7)


def test_a_shipped_config_and_a_file_of_the_same_name(here: Path) -> None:
    assert load("gpt2").config.model.d_model == 768
    assert load("gpt2").name == "gpt2"
    line = preset_path("gpt2").read_text().splitlines().index("model:") + 1
    assert load("gpt2").locate("model") == Location(str(preset_path("gpt2")), line, 1)
    Path("gpt2").write_text(MODEL)
    assert load("gpt2").config.model.d_model == 64, "a path wins"


def test_a_shipped_config_below_the_current_directory_has_a_relative_path(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = preset_path("gpt2").parent
    monkeypatch.chdir(folder.parent)
    assert load("gpt2").locate("model").file == f"{folder.name}/gpt2.yaml"


def test_targets_that_are_not_there(here: Path) -> None:
    shipped = "no such file, and no shipped config of that name; 'initdiag new --list' lists them"
    assert refusal("gpt3") == f"gpt3: {shipped} (did you mean 'gpt2'?)"
    assert refusal("qqqq.yaml") == f"qqqq.yaml: {shipped}"
    assert refusal("") == f"'': {shipped}"
    assert refusal("a\0b") == f"a\\x00b: {shipped}"
    Path("model.yaml").write_text(MODEL)
    assert refusal("model.yml").endswith("(did you mean 'model.yaml'?)")
    assert refusal("x" * 5000) == f"{'x' * 79}…: can't be read: File name too long"


def test_a_directory(here: Path) -> None:
    Path("runs").mkdir()
    Path("gpt2").mkdir()
    assert refusal("runs") == "runs: is a directory; expected a YAML file"
    Path("runs/config.json").write_text('{"hidden_size": 64}')
    assert refusal("runs").startswith(
        'runs: is a directory; expected a YAML file; runs/config.json has no "model_type"'
    )
    shipped = f"(the shipped config is {preset_path('gpt2')})"
    assert refusal("gpt2") == f"gpt2: is a directory; expected a YAML file {shipped}"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(here: Path) -> None:
    Path("a.yaml").write_text(MODEL)
    Path("a.yaml").chmod(0)
    assert refusal("a.yaml") == "a.yaml: can't be read: Permission denied"


def test_a_file_that_can_not_be_opened(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.yaml").write_text(MODEL)

    def refuse(*args: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    assert refusal("a.yaml") == "a.yaml: can't be read: Permission denied"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\xff\xfem\0", "a.yaml: is UTF-16; expected UTF-8"),
        (b"\xfe\xff\0m", "a.yaml: is UTF-16; expected UTF-8"),
        (b"\x93NUMPY\x01", "a.yaml:1:1: found the byte 0x93, expected UTF-8 text"),
        (b"a: 1\nb: \xe9\n", "a.yaml:2:4: found the byte 0xe9, expected UTF-8 text"),
        (b"a: \0", "a.yaml:1:4: found the control character '\\x00', expected text"),
        (b"#" * 1_000_001, "a.yaml: has more than 1,000,000 bytes; expected a config"),
    ],
)
def test_what_is_no_text(problems: Lines, data: bytes, expected: str) -> None:
    assert problems(data) == [expected]


SHAPE: dict[str, Any] = {"vocab_size": 512, "context": 128, "d_model": 64, "n_layers": 2, "n_heads": 4}


def test_a_mapping(here: Path) -> None:
    loaded = from_mapping(
        {"model": SHAPE, "gate": {"ignore": ["A"]}, "tokens": {"source": "text", "path": Path("x.txt")}}, "mine"
    )
    assert loaded.name == "mine"
    assert loaded.config.gate.ignore == ("A",)
    assert loaded.tokens_path == Path("x.txt")
    assert loaded.locate("model.n_heads") == Location("mine", 1, 1)


def test_a_ready_config_is_taken_and_checked() -> None:
    config = load("tiny").config
    assert from_mapping(config, "mine").config == config
    wrong = config.model_copy(update={"init": config.init.model_copy(update={"scheme": "zzz"})})
    with pytest.raises(
        ConfigError, match=r"^mine: init\.scheme: found 'zzz', expected one of the \d+ that 'initdiag scheme' lists$"
    ):
        from_mapping(wrong, "mine")


def test_a_copy_of_a_config_computes_its_defaults_again() -> None:
    config = load("tiny").config
    wider = config.model_copy(update={"model": config.model.model_copy(update={"d_model": 128})})
    assert from_mapping(wider, "mine").config.model.d_ff == 512
    odd = config.model_copy(update={"model": config.model.model_copy(update={"n_heads": 5})})
    with pytest.raises(ConfigError, match=r"^mine: model\.n_heads: 5 does not divide d_model 64"):
        from_mapping(odd, "mine")


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({"model": {**SHAPE, "n_layers": "2"}}, "mine: model.n_layers: found '2' (a string), expected a whole number"),
        ({"model": {**SHAPE, "tied": None}}, "mine: model.tied: found nothing (null), expected true or false"),
        ({"model": SHAPE, "init": {1: 2}}, "mine: init[1]: found a key of type int, expected a name"),
        ({"model": SHAPE, "init": {"std": 10**5000}},
         "mine: init.std: found a number of about 5000 digits (a whole number), expected a number or a formula in "
         "quotes"),
        (3, "mine: found 3 (a whole number), expected a mapping or a Config"),
        ({"model": {**SHAPE, "position": "rotary",
                    "rotary_scaling": {"factor": 8, "low": 1, "high": 4, "context": 9, 5: 6}}},
         "mine: model.rotary_scaling[5]: found a key of type int, expected a name"),
        ({"model": {**SHAPE, "rotary_base": 10**5000}},
         "mine: model.rotary_base: found a number of about 5000 digits (a whole number), expected a number"),
    ],
)  # fmt: skip
def test_problems_of_a_mapping_bear_its_name(mapping: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_mapping(mapping, "mine")
    assert str(caught.value) == expected


def test_an_endless_mapping_is_refused() -> None:
    endless: dict[str, Any] = dict(SHAPE)
    endless["d_ff"] = endless
    with pytest.raises(ConfigError, match=r"mine: model\.d_ff: found .* \(a mapping\), expected a whole number"):
        from_mapping({"model": endless}, "mine")


def test_another_scheme_drops_the_parameters_that_it_does_not_have() -> None:
    gpt2 = load("gpt2", ["init.residual_std=0.01", "init.seed=5"])
    with pytest.raises(UsageError, match=r"^--set init.residual_std=0.01: scheme 'default' has no parameter"):
        with_init(gpt2, scheme="default")
    dropped = with_init(gpt2, scheme="default", drop_options=True).config.init
    assert dropped.model_dump(exclude_unset=True) == {"scheme": "default", "seed": 5}
    assert with_init(gpt2, scheme="gpt2", drop_options=True).config.init.parameters == {"std": 0.02}
    assert with_init(load("gpt2"), scheme="default").config.init.parameters == {}
    assert with_init(gpt2, scheme="scaled").config.init.parameters == {"std": 0.02, "residual_std": 0.01}
    assert with_init(gpt2, seed=7).config.init.seed == 7
    assert gpt2.config.init.seed == 5, "the original stays as it is"


def test_no_other_init_is_no_change() -> None:
    file = load("gpt2", ["init.std=0.03"])
    assert with_init(file) is file
    assert with_init(file, seed=0) is not file


def test_a_file_is_read_each_time_and_overrides_stay_out_of_it(here: Path) -> None:
    path = here / "a.yaml"
    path.write_text("{model: {vocab_size: 9, context: 8, d_model: 4, n_heads: 1, n_layers: 1}, init: {std: 0.5}}")
    first = load("a.yaml")
    assert load("a.yaml", ["init.std=0.25", "model.n_layers=3", "gate.ignore=[LOSS001]"]).config != first.config
    assert load("a.yaml") == first
    path.write_text(path.read_text().replace("0.5", "0.75"))
    assert load("a.yaml").config.init.std == 0.75


def test_other_tokens(here: Path) -> None:
    Path("sub").mkdir()
    Path("sub/a.yaml").write_text(MODEL + "tokens: {source: file, path: x.bin, dtype: uint16, batch: 3}\n")
    loaded = load("sub/a.yaml")
    text = with_tokens(loaded, source="text", path="y.txt", tokenizer=Path("t.json"))
    assert (text.tokens_path, text.tokenizer_path) == (here / "y.txt", here / "t.json")
    assert (text.config.tokens.dtype, text.config.tokens.batch) == (None, 3)
    random = with_tokens(loaded, source="random")
    assert (random.tokens_path, random.tokenizer_path) == (None, None)
    assert with_tokens(loaded, path="z.bin").config.tokens.dtype == "uint16"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda c: with_init(c, scheme="gtp2"),
         f"unknown scheme 'gtp2'; expected one of the {len(SCHEMES)} that 'initdiag scheme' lists (did you mean "
         "'gpt2'?)"),
        (lambda c: with_init(c, seed=-1), "init.seed: found -1, expected at least 0"),
        (lambda c: with_tokens(c, source="text"),
         "tokens.path: not found, expected a text file, as the source is text"),
        (lambda c: with_tokens(c, source="foo"),
         "tokens.source: found 'foo', expected one of random, zipf, text, file"),
        (lambda c: with_tokens(c, source="text", path=""), "tokens.path: found '', expected the name of a file"),
        (lambda c: with_tokens(c, path="/x"),
         "tokens.path: found '/x', expected source text or file with it; the source is random"),
    ],
)  # fmt: skip
def test_changes_that_make_no_sense(change: Callable[[ConfigFile], ConfigFile], expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        change(load("tiny"))
    assert str(caught.value) == expected


def test_a_config_file_is_a_value() -> None:
    loaded = load("tiny")
    assert pickle.loads(pickle.dumps(loaded)) == loaded
    assert hash(loaded) == hash(load("tiny"))
    assert isinstance(loaded.config, Config)


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import initdiag.config; initdiag.config.preset_names()", "pydantic yaml torch"),
        ("from initdiag.config import *; load('tiny'); from_mapping", "torch"),
        ("import initdiag.config.starter, initdiag.config.json_schema", "torch"),
    ],
)
def test_what_is_imported(code: str, absent: str) -> None:
    check = f"import sys; {code}; print([name for name in '{absent}'.split() if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_an_unknown_name_of_the_door() -> None:
    import initdiag.config

    with pytest.raises(AttributeError, match="has no attribute 'laod'"):
        initdiag.config.laod  # noqa: B018
    assert "load" in dir(initdiag.config)
