"""What the pages tell people to write works: configs, Python, command lines, and a distribution with a scheme."""

from __future__ import annotations

import importlib.util
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

import initdiag
from initdiag.cli.main import app
from initdiag.config import load, presets
from initdiag.config.validate import validate
from initdiag.config.yaml import parse
from initdiag.model.planning import planned
from initdiag.schemes import CUSTOM, InitPlan, Normal, Truncated, scheme_named, scheme_names

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def fences(*languages: str) -> list[Any]:
    """The blocks of these languages on all pages, named by page and number."""
    found = [
        (page.name, block)
        for page in PAGES
        for language, block in FENCE.findall(page.read_text(encoding="utf-8"))
        if language in languages
    ]
    return [pytest.param(block, id=f"{name} {number}") for number, (name, block) in enumerate(found)]


# --- YAML: parts of configs, put over those of the config "tiny"


def merged(base: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Put a part of a config over another, which keeps its model's fields; the other sections are taken whole."""
    model = part.get("model", {})
    whole = "d_model" in model
    return {**base, **part, "model": model if whole else {**base["model"], **model}}


def tiny() -> dict[str, Any]:
    value = parse(presets.path_of("tiny").read_text(encoding="utf-8"), "tiny").value
    return {**value, "tokens": {"length": 16}}


CONFIGS = [one for one in fences("yaml") if not one.values[0].startswith("- ")]  # the others are steps of a workflow


@pytest.mark.parametrize("block", CONFIGS)
def test_configs(block: str) -> None:
    """They are valid and can be run, whatever is then found."""
    value = merged(tiny(), parse(block, "page").value)
    report = initdiag.check(value)
    assert report.run.measured.loss.value > 0
    given = parse(block, "page").value.get("init")
    if given:
        assert report.run.subject.plan.scheme.startswith(given["scheme"])


def test_there_are_configs_of_everything() -> None:
    """Or the blocks of a page are no longer found."""
    text = "\n".join(one.values[0] for one in CONFIGS)
    for word in ("torchtitan", "custom", "orthogonal", "corrected", "moe", "mla", "yarn", "biases", "branch", "layer"):
        assert re.search(rf"\b{word}\b", text), word


def plan_of(block_with: str, over: Mapping[str, Any] | None = None) -> InitPlan:
    """The plan of the one YAML block that has these words in it."""
    (block,) = (one.values[0] for one in CONFIGS if block_with in one.values[0])
    config = validate(merged(over or tiny(), parse(block, "page").value))
    assert not isinstance(config, list), config
    return initdiag.plan(config).subject.plan


def test_what_the_pages_say_of_their_configs() -> None:
    """tiny has d_model 64 and 4 layers."""
    plan = plan_of("depth: total")
    assert plan["blocks.0.mlp.out.weight"].distribution == Normal(0.01 / 8**0.5), "all layers, not those up to this one"
    plan = plan_of("corrected: true}\n")
    assert plan.scheme == "gpt2+8 roles"
    assert plan["blocks.3.mlp.out.weight"].distribution == Normal(0.02 / 8**0.5)
    assert plan["blocks.3.mlp.out.weight"].unscaled_std == 0.02
    assert plan["blocks.3.attention.key.weight"].distribution.std == pytest.approx(0.02, rel=1e-12)
    plan = plan_of("scheme: custom")
    assert plan["blocks.0.mlp.input.weight"].distribution == Normal((2 / 64) ** 0.5)
    assert plan["blocks.0.mlp.out.weight"].distribution.std == 0


# --- Python: with a small GPT of 512 tokens in the place of what the reader has

STAND_INS = {
    'check("gpt2"': 'check("tiny"',
    'expect="gpt2"': f'expect="{ROOT}/docs/examples/gpt.yaml"',
    "50257": "512",
    "32000": "512",
    '"path/to/model.py:GPT", "path/to/config.json"': f'"{ROOT}/docs/examples/gpt.py:GPT", "tiny"',
    "path/to/model.py": f"{ROOT}/docs/examples/gpt.py",
}


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a reader has: a model, its class, and a package with both."""
    spec = importlib.util.spec_from_file_location("gpt_of_the_pages", ROOT / "docs" / "examples" / "gpt.py")
    assert spec and spec.loader
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)

    class GPTConfig:
        def __init__(self, n_layer: int = 4) -> None:
            self.n_layer = n_layer

    class GPT(written.GPT):  # type: ignore[name-defined,misc]
        def __init__(self, config: GPTConfig | None = None, n_layer: int = 4) -> None:
            super().__init__(n_layers=config.n_layer if config else n_layer)

        def decode(self, ids: torch.Tensor, cache: None) -> Any:
            return self(ids)

    package, module = types.ModuleType("mypkg"), types.ModuleType("mypkg.model")
    vars(module).update(GPT=GPT, GPTConfig=GPTConfig)
    monkeypatch.setitem(sys.modules, "mypkg", package)
    monkeypatch.setitem(sys.modules, "mypkg.model", module)
    model = GPT()
    return {"initdiag": initdiag, "GPT": GPT, "model": model, "module": model, "source": torch.zeros(1, 4).long()}


@pytest.mark.slow
@pytest.mark.parametrize("block", fences("python"))
def test_python(block: str, stand_ins: dict[str, Any]) -> None:
    for theirs, ours in STAND_INS.items():
        block = block.replace(theirs, ours)
    exec(compile(block, "page", "exec"), stand_ins)
    if "test_init" in stand_ins:
        stand_ins["test_init"]()


# --- command lines

COMMANDS = typer.main.get_command(app()).commands  # type: ignore[attr-defined]
CODE = re.compile(r"`(initdiag [^`]+)`")
PLACEHOLDER = re.compile(r"[A-Z]+|…")
MADE_UP = {"lab"}  # the scheme of the example


def command_lines() -> Iterator[tuple[str, list[str]]]:
    """Yield (page, words) of every command line of the program, in blocks and in running text."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        shown = [
            re.sub(r"^[$\t ]*(- run: )?", "", line) for _, block in FENCE.findall(text) for line in block.splitlines()
        ]
        told = [" ".join(code.split()) for code in CODE.findall(FENCE.sub("", text))]
        for line in [*(line for line in shown if line.startswith("initdiag ")), *told]:
            words = shlex.split(re.split(r" >>? ", line)[0], comments=True)
            if len(words) > 1 and not words[1].startswith("-"):
                yield page.name, words[1:]


LINES = list(command_lines())


@pytest.mark.parametrize(("page", "words"), LINES, ids=[f"{page}: {' '.join(words)}" for page, words in LINES])
def test_command_lines(page: str, words: list[str]) -> None:
    """Commands and options exist and take such values; schemes, shipped configs and files of the checkout are there."""
    name, *arguments = words
    command = COMMANDS[name]
    if not arguments:
        return  # the command is talked about
    values = ["7" if word == "N" else word for word in arguments if word != "…"]
    params = command.make_context(name, values).params
    asked = params.get("schemes") or params.get("scheme") or (params.get("name") if name == "scheme" else None) or ""
    for scheme in re.split(",", asked):
        if scheme and scheme not in MADE_UP and not PLACEHOLDER.fullmatch(scheme):
            scheme_named(scheme)
    targets = params.get("targets") or [params["target"]] if name in ("check", "compare", "plan") else []
    for target in targets:
        if re.fullmatch(r"[a-z0-9.-]+", target) and Path(target).suffix not in (".yaml", ".json", ".py"):
            presets.path_of(target)
        elif target.startswith(("configs/", "docs/")) and target != "configs/my.yaml":
            assert (ROOT / target.partition(":")[0]).exists(), target


def test_command_lines_are_found() -> None:
    assert len(LINES) > 60
    assert {words[0] for _, words in LINES} == set(COMMANDS)


def test_schemes_in_running_text_and_in_configs_exist() -> None:
    for page in PAGES:
        for name in re.findall(r"(?:^ +|\{|init\.)scheme: ([\w-]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
            if name != CUSTOM.name and not PLACEHOLDER.fullmatch(name):
                scheme_named(name)


# --- schemes.md: a scheme from Python


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """What pip would make of the page's pyproject.toml and module; returns the name of the scheme."""
    text = (ROOT / "docs" / "schemes.md").read_text(encoding="utf-8")
    (project,) = (block for language, block in FENCE.findall(text) if language == "toml")
    (module,) = (block for language, block in FENCE.findall(text) if language == "python")
    told = tomllib.loads(project)["project"]
    ((group, points),) = told["entry-points"].items()
    ((name, value),) = points.items()
    info = tmp_path / f"{told['name'].replace('-', '_')}-{told['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {told['name']}\nVersion: {told['version']}\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")
    (tmp_path / f"{value.partition(':')[0]}.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    return str(name)


def test_the_scheme_of_a_distribution(installed: str) -> None:
    """tiny-untied has d_model 64, 2 layers and a head of its own."""
    assert scheme_names()[-1] == installed
    assert installed in MADE_UP
    shape = load("tiny-untied").config.model
    assert (shape.d_model, shape.n_layers, shape.tied) == (64, 2, False)
    changed, plan = planned(shape, scheme_named(installed))
    assert changed.embedding_multiplier == 8
    assert plan["blocks.1.mlp.out.weight"].distribution == Normal(0.02 / 2)
    assert plan["head.weight"].distribution == Truncated(1 / 8, 3)
    _, plan = planned(shape, scheme_named(installed), {"depth": "layer", "std": 0.04})
    assert plan["blocks.0.attention.out.weight"].distribution == Normal(0.04 / 2**0.5)
    assert plan["blocks.1.attention.out.weight"].distribution == Normal(0.02)
    assert initdiag.check("tiny", scheme=installed).run.subject.demands == ("embedding_multiplier 8 (config: 1)",)
    assert initdiag.check("tiny", overrides=[f"init={{scheme: {installed}, depth: layer}}"]).run.scheme == installed
