"""What is shipped: the configs, their JSON schema, and the starter file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
import yaml as pyyaml

from initdiag.config import json_schema, load, presets
from initdiag.config.annotations import section_of, sections
from initdiag.config.schema import Config
from initdiag.config.starter import starter_text, write_starter
from initdiag.config.validate import validate
from initdiag.config.yaml import parse
from initdiag.errors import ConfigError, UsageError

VALIDATOR = jsonschema.Draft202012Validator(json_schema.json_schema())


def test_the_names() -> None:
    assert presets.names() == tuple(sorted(path.stem for path in presets.folder().glob("*.yaml")))
    assert {"bad", "gpt2", "llama-3-8b", "llama-3.1-405b", "tiny", "tiny-untied"} < set(presets.names())
    with pytest.raises(
        UsageError, match=r"^no shipped config 'gpt3'; expected one of the \d+ that .* \(did you mean 'gpt2'"
    ):
        presets.path_of("gpt3")


def test_an_installed_package_has_them_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "initdiag"
    (package / "configs").mkdir(parents=True)
    (package / "configs" / "one.yaml").touch()
    monkeypatch.setattr(presets, "_PACKAGE", package)
    assert presets.names() == ("one",)


@pytest.mark.parametrize("name", presets.names())
def test_every_shipped_config(name: str) -> None:
    """What it says is checked in test_counts.py."""
    text = presets.path_of(name).read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=initdiag.schema.json\n# ")
    assert max(map(len, text.splitlines())) <= 120
    VALIDATOR.validate(parse(text, name).value)
    keys = [line.partition(":")[0] for line in text.splitlines() if line and line[0] not in "# "]
    assert keys in (["about", "model", "init"], ["about", "model", "init", "tokens"])


def test_the_committed_schema_is_that_of_the_code() -> None:
    committed = presets.schema_path().read_text(encoding="utf-8")
    assert committed == json_schema.text(), "run: initdiag schema > configs/initdiag.schema.json"
    jsonschema.Draft202012Validator.check_schema(json.loads(committed))


@pytest.mark.parametrize(
    "text",
    [
        "model: 3", "init: {}", "extra: 1", "model: {vocab_size: '2'}", "init: {scheme: gtp2}",
        "gate: {ignore: A}", "tokens: {source: web}",
    ],
)  # fmt: skip
def test_the_schema_refuses_what_the_loader_refuses(text: str, tmp_path: Path) -> None:
    value = parse(text, "f").value
    if text.startswith(("extra", "init: {scheme", "gate", "tokens")):
        value = {"model": load("tiny").config.model.model_dump(), **value}
    assert not VALIDATOR.is_valid(value)
    (tmp_path / "a.yaml").write_text(pyyaml.dump(value))
    with pytest.raises(ConfigError):
        load(str(tmp_path / "a.yaml"))


@pytest.mark.parametrize(
    ("scaling", "allowed"),
    [
        ("null", True),
        ("{factor: 8, low: 1, high: 4, context: 8192}", True),
        ("{factor: 8, context: 8192}", True),
        ("{low: 1, high: 4, context: 8192}", False),
        ("{factor: 8, low: 1, high: 4, context: 8192, type: llama3}", False),
        ("{factor: 0.5, low: 1, high: 4, context: 8192}", False),
        ("llama3", False),
    ],
)
def test_the_schema_knows_the_rotary_scaling(scaling: str, allowed: bool) -> None:
    shape = "vocab_size: 512, context: 128, d_model: 64, n_layers: 2, n_heads: 4"
    value = parse(f"model: {{{shape}, position: rotary, rotary_scaling: {scaling}}}", "f").value
    assert VALIDATOR.is_valid(value) == allowed
    assert isinstance(validate(value), Config) == allowed


def test_the_starter_loads_and_is_gpt2(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "my.yaml"
    write_starter(path)
    assert path.read_text(encoding="utf-8") == starter_text()
    loaded, gpt2 = load(str(path)).config, load("gpt2").config
    assert (loaded.model, loaded.init, loaded.tokens, loaded.gate) == (gpt2.model, gpt2.init, gpt2.tokens, gpt2.gate)
    assert loaded.about.summary == "my model"


def test_the_starter_names_its_schema() -> None:
    first = starter_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema={presets.schema_path().absolute().as_uri()}"
    assert presets.schema_path().is_file()


OF_SCALED = {"scheme", "std", "residual_std", "seed", "roles"}  # other schemes have other parameters


def test_the_starter_has_every_field_with_its_description() -> None:
    text = starter_text()
    words = " ".join(text.replace("#", " ").split())
    for name, section in sections():
        assert f"\n{name}:\n" in text
        for key, field in section.model_fields.items():
            if name != "init" or key in OF_SCALED:
                assert re.search(rf"^  #?{key}: ", text, re.MULTILINE), key
                assert str(field.description) in words
    for key in ("moe", "mla", "rotary_scaling", "biases", "roles"):
        inner = section_of(Config.model_fields["init" if key == "roles" else "model"].annotation)
        assert inner is not None
        part = section_of(inner.model_fields[key].annotation)
        assert part is not None
        for name, field in part.model_fields.items():
            assert re.search(rf"^  #   {name}: ", text, re.MULTILINE), name
            assert str(field.description) in words
    assert max(map(len, text.splitlines())) <= 120


def test_the_defaults_in_the_comments_are_the_defaults() -> None:
    everything = re.sub(r"^  #(?=\w+: )", "  ", starter_text(), flags=re.MULTILINE)
    value = parse(everything, "f").value
    assert {name: OF_SCALED if name == "init" else set(section.model_fields) for name, section in sections()} == {
        name: set(section) for name, section in value.items()
    }
    VALIDATOR.validate(value)
    config, gpt2 = Config.model_validate_json(json.dumps(value)), load("gpt2").config
    assert config.model_copy(update={"about": gpt2.about}) == gpt2


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("init: {std: 1 / sqrt(d_model), roles: {mlp_out: {normal: 0.02 / n_layers}, bias: 0, lm_head: null}}", True),
        ("init: {scheme: custom, roles: {mlp_out: {truncated: 0.02, cut: 3, corrected: true, unscaled: 0.1}}}", True),
        ("init: {scheme: torchtitan, depth: total}", True),
        ("init: {scheme: torchtitan, depth: totl}", False),
        ("init: {zzz: 1}", False),
        ("init: {roles: {mlp_otu: 0}}", False),
        ("init: {roles: {mlp_out: {nrmal: 0}}}", False),
        ("init: {roles: {mlp_out: {normal: -1}}}", False),
        ("init: {roles: {mlp_out: zero}}", False),
        ("init: {std: true}", False),
        ("about: {summary: mine, parameters: 3, source: here, trained_with: gpt2}", True),
        ("about: {parameters: many}", False),
        ("about: {paramters: 3}", False),
    ],
)
def test_the_schema_knows_init_and_about(text: str, allowed: bool) -> None:
    shape = "vocab_size: 512, context: 128, d_model: 64, n_layers: 2, n_heads: 4"
    value = parse(f"model: {{{shape}}}\n{text}", "f").value
    assert VALIDATOR.is_valid(value) == allowed
    faults = validate(value)
    if "custom" not in text:  # which lacks roles, as no JSON schema can know
        assert isinstance(faults, Config) == allowed


def test_the_starter_does_not_overwrite(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("precious")
    with pytest.raises(UsageError) as caught:
        write_starter(path)
    assert str(caught.value) == f"{path} exists; expected a new file, or --force to overwrite it"
    assert path.read_text() == "precious"
    write_starter(path, force=True)
    assert path.read_text(encoding="utf-8") == starter_text()


def test_places_where_no_starter_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"is a directory; expected the name of a file to write$"):
        write_starter(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"^can't write .*/file/my\.yaml: (Not a directory|File exists)$"):
        write_starter(tmp_path / "file" / "my.yaml")

    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match=r"^can't write .*/new\.yaml: Permission denied$"):
        write_starter(tmp_path / "new.yaml")
