"""What a user types after `initdiag check`: a file or a module, and a name in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch  # noqa: F401  # before any test looks at sys.modules

from initdiag.errors import InitdiagError, RunError, UsageError
from initdiag.subjects.import_path import load_factory, read_kwargs
from initdiag.subjects.targets import is_import_path

NANO = """
from dataclasses import dataclass
import torch
from torch import nn
from layers import Block

@dataclass
class GPTConfig:
    block_size: int = 16
    vocab_size: int = 50
    n_layer: int = 2
    n_embd: int = 8

class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.blocks = nn.ModuleList([Block(config.n_embd) for _ in range(config.n_layer)])

    def forward(self, idx):
        return self.wte(idx)
"""
LAYERS = """
from torch import nn

class Block(nn.Linear):
    def __init__(self, d):
        super().__init__(d, d)
"""
PLAIN = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, width, depth=2):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(depth)])

def make(width=4):
    return Net(width)

def broken():
    size = 3
    return nn.Linear(size, "wide")

def number():
    return 42

ready = Net(3)
answer = 42
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return tmp_path


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)


def sentence(target: str, build: bool = False, **kwargs: Any) -> str:
    with pytest.raises(InitdiagError) as caught:
        made = load_factory(target, kwargs)[1]
        assert build, "nothing was wrong with the target"
        made()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("model.py:GPT", True),
        ("path/to/model.py:make.inner", True),
        (r"C:\code\model.py:GPT", True),
        ("model.py", True),
        ("pkg.mod:attr", True),
        ("pkg:attr", True),
        ("gpt2", False),
        ("configs/gpt2.yaml", False),
        (r"C:\configs\gpt2", False),
        ("C:gpt2", False),
        ("odd.yaml:name", False),
        ("a/config.json", False),
        ("pkg.mod:GPT()", False),
        ("a:b:c", False),
        ("", False),
        (":GPT", False),
    ],
)
def test_what_is_an_import_path(target: str, expected: bool) -> None:
    assert is_import_path(target) is expected


def test_a_forgotten_ending_is_seen_and_named(here: Path) -> None:
    (here / "sub").mkdir()
    write(here / "sub", model=PLAIN)
    assert is_import_path("sub/model:Net")
    assert sentence("sub/model:Net") == "sub/model: no such file (did you mean 'sub/model.py'?)"


def test_a_file_is_built_with_its_neighbours_and_leaves_nothing(here: Path) -> None:
    """The neighbour is imported, once more when the model is built, and is in no module table afterwards."""
    folder = here / "nano"
    folder.mkdir()
    lazy = NANO + "\n\ndef late():\n    import layers\n    model = GPT(GPTConfig())\n"
    write(folder, model=lazy + "    assert type(model.blocks[0]) is layers.Block\n    return model\n", layers=LAYERS)
    path, modules = list(sys.path), set(sys.modules)
    name, build = load_factory("nano/model.py:late", {})
    module = build()
    assert name == "late"
    assert len(module.blocks) == 2
    assert sys.path == path
    (left,) = set(sys.modules) - modules
    assert left.startswith("_initdiag_")
    assert not list(folder.rglob("*.pyc"))
    assert not sys.dont_write_bytecode


def test_two_files_of_one_name_don_t_meet(here: Path) -> None:
    for folder, width in (("a", 4), ("b", 6)):
        (here / folder).mkdir()
        write(
            here / folder, model=NANO, layers=LAYERS.replace("super().__init__(d, d)", f"super().__init__(d, {width})")
        )
    (_, first), (_, second) = (load_factory(f"{folder}/model.py:GPT", {}) for folder in "ab")
    assert second().blocks[0].out_features == 6
    assert first().blocks[0].out_features == 4


def test_a_neighbour_wins_over_a_module_of_its_name_from_elsewhere(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = type(sys)("layers")
    elsewhere.__file__ = "/elsewhere/layers.py"
    monkeypatch.setitem(sys.modules, "layers", elsewhere)
    write(here, model=NANO, layers=LAYERS)
    assert len(load_factory("model.py:GPT", {})[1]().blocks) == 2
    assert sys.modules["layers"] is elsewhere


def test_a_file_of_a_package_has_its_relative_imports(here: Path) -> None:
    inner = here / "pkg" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner.parent, inner):
        (folder / "__init__.py").write_text("")
    write(inner, model=NANO.replace("from layers", "from ..layers") + "\nfrom pkg import layers as same\n")
    write(inner.parent, layers=LAYERS)
    assert len(load_factory("pkg/inner/model.py:GPT", {})[1]().blocks) == 2
    assert "pkg" not in sys.modules


def test_a_file_is_read_anew(here: Path) -> None:
    write(here, model=PLAIN)
    assert len(load_factory("model.py:make", {})[1]().layers) == 2
    write(here, model=PLAIN.replace("depth=2", "depth=3"))
    assert len(load_factory("model.py:make", {})[1]().layers) == 3


def test_a_module_is_found_in_the_current_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(here, plain_of_mine=PLAIN)
    path = list(sys.path)
    try:
        assert load_factory("plain_of_mine:Net", {"width": 5})[1]().layers[0].in_features == 5
    finally:
        sys.modules.pop("plain_of_mine", None)
    assert sys.path == path


def test_no_torch_is_imported_for_an_error(here: Path) -> None:
    write(here, model="x = 1\n")
    code = (
        "import sys\nfrom initdiag.subjects.import_path import load_factory\n"
        "for t in ('nowhere.py:GPT', 'model.py:GPT', 'no_such_module_at_all:x'):\n"
        "    try: load_factory(t, {})\n    except Exception as e: print(type(e).__name__)\n"
        "assert 'torch' not in sys.modules"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env={"PYTHONPATH": root}, cwd=here
    )
    assert done.stdout.split() == ["UsageError"] * 3, done.stderr
    assert not done.stderr


def test_what_is_not_there_is_told_with_what_is(here: Path) -> None:
    write(here, model=PLAIN, other="")
    assert sentence("modle.py:Net") == "modle.py: no such file (did you mean 'model.py'?)"
    assert sentence("x.py:Net") == "x.py: no such file; that folder has model.py, other.py"
    assert sentence("sub/x.py:Net") == "sub/x.py: no such file, nor a folder sub"
    assert sentence("modle:Net").startswith(
        "no module named 'modle', neither here nor installed (did you mean 'model'?)"
    )
    assert sentence("model.py:Nett") == (
        "model.py has no 'Nett' (did you mean 'Net'?). It has nn.Module classes Net and functions make, broken, "
        "number: write model.py:Net"
    )
    assert sentence("model.py:mak").endswith("number: write model.py:make")
    assert sentence("model.py").startswith("model.py: which model? It has nn.Module classes Net")
    assert sentence("other.py:x").endswith("It has neither an nn.Module class nor a function of its own.")
    assert sentence("model.py:answer").startswith(
        "model.py:answer is an int (42); expected an nn.Module class, a function"
    )


def test_a_failing_import_is_told_with_its_line(here: Path) -> None:
    write(here, model="import torch\nfrom helper import x\n", helper="def f():\n    return 1 / 0\n\nx = f()\n")
    assert sentence("model.py:GPT") == (
        "model.py fails when it is imported: ZeroDivisionError: division by zero (helper.py:2, in f: return 1 / 0)"
    )
    write(here, missing="import flash_attn_of_nobody\n")
    assert sentence("missing.py:GPT") == (
        "missing.py fails when it is imported: ModuleNotFoundError: No module named 'flash_attn_of_nobody' "
        "(missing.py:1: import flash_attn_of_nobody)"
    )
    write(here, syntax="class GPT:\n    def forward(self:\n        pass\n")
    assert "SyntaxError" in sentence("syntax.py:GPT")
    assert "syntax.py:2" in sentence("syntax.py:GPT")
    write(here, script="import sys\nsys.exit(2)\n")
    assert sentence("script.py:GPT").startswith(
        "script.py ends the process when it is imported (script.py:2: sys.exit(2))"
    )
    with pytest.raises(RunError) as caught:
        load_factory("helper.py:x", {})
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert not [name for name in sys.modules if name.startswith("_initdiag_") and name.endswith("helper")]


def test_arguments_that_are_missing_or_unknown(here: Path) -> None:
    write(here, model=PLAIN)
    assert sentence("model.py:Net") == "model.py:Net needs 'width': --kwargs '{\"width\": …}'"
    assert sentence("model.py:Net", width=3, dept=2) == (
        "model.py:Net takes no argument 'dept' (did you mean 'depth'?); it takes width, depth"
    )
    assert (
        sentence("model.py:ready", width=3) == "model.py:ready is a module that is built already; it takes no --kwargs"
    )
    assert len(load_factory("model.py:Net", {"width": 3, "depth": 5})[1]().layers) == 5
    build = load_factory("model.py:ready", {})[1]
    assert build() is build()


def test_a_factory_that_fails_or_returns_something_else(here: Path) -> None:
    write(here, model=PLAIN)
    told = sentence("model.py:broken", build=True)
    assert told.startswith("model.py:broken fails when it is called: TypeError: empty()")
    assert told.endswith('(model.py:15, in broken: return nn.Linear(size, "wide"))')
    assert sentence("model.py:number", build=True) == "model.py:number returned an int (42), expected an nn.Module"


@pytest.mark.parametrize("future", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize("annotation", ["", ": GPTConfig", ": GPTConfig | None", ": 'GPTConfig'"])
def test_a_config_class_is_built_from_the_names_of_its_fields(here: Path, annotation: str, future: str) -> None:
    write(here, model=future + NANO.replace("self, config)", f"self, config{annotation})"), layers=LAYERS)
    assert len(load_factory("model.py:GPT", {})[1]().blocks) == 2
    assert len(load_factory("model.py:GPT", {"n_layer": 3})[1]().blocks) == 3
    assert len(load_factory("model.py:GPT", {"config": {"n_layer": 4}})[1]().blocks) == 4
    assert sentence("model.py:GPT", n_layers=3) == (
        "model.py:GPT: GPTConfig has no field 'n_layers' (did you mean 'n_layer'?); it has block_size, vocab_size, "
        "n_layer, n_embd"
    )


def test_a_config_class_with_fields_of_its_own(here: Path) -> None:
    text = NANO.replace("vocab_size: int = 50", "vocab_size: int").replace("block_size: int = 16", "block_size: int")
    write(here, model=text + "\n@dataclass\nclass OtherConfig:\n    pass\n", layers=LAYERS)
    assert sentence("model.py:GPT") == (
        "model.py:GPT: GPTConfig needs 'block_size', 'vocab_size': --kwargs '{\"block_size\": …, \"vocab_size\": …}'"
    )
    write(here, two=text.replace("GPTConfig", "AConfig") + "\n@dataclass\nclass BConfig:\n    pass\n", layers=LAYERS)
    assert sentence("two.py:GPT").startswith("two.py:GPT needs 'config', which could be AConfig or BConfig")
    write(here, none="from torch import nn\nclass Net(nn.Module):\n    def __init__(self, config):\n        pass\n")
    assert sentence("none.py:Net") == "none.py:Net needs 'config': --kwargs '{\"config\": …}'"


def test_an_optional_config_and_nested_ones(here: Path) -> None:
    write(
        here,
        model="""
from dataclasses import dataclass, field
from torch import nn

@dataclass
class Attention:
    heads: int = 2

@dataclass
class Config:
    attention: Attention = field(default_factory=Attention)
    width: int = 4

class Net(nn.Module):
    def __init__(self, config: Config | None = None, bias: bool = True):
        super().__init__()
        config = config or Config()
        self.heads, self.linear = config.attention.heads, nn.Linear(config.width, 1, bias=bias)
""",
    )
    assert load_factory("model.py:Net", {})[1]().heads == 2
    built = load_factory("model.py:Net", {"attention": {"heads": 7}, "width": 3, "bias": False})[1]()
    assert (built.heads, built.linear.in_features, built.linear.bias) == (7, 3, None)
    assert "Attention has no field 'head' (did you mean 'heads'?)" in sentence("model.py:Net", attention={"head": 7})


def test_building_twice_gives_two_modules_of_the_same_arguments(here: Path) -> None:
    write(here, model="from torch import nn\ndef make(sizes):\n    return nn.Linear(sizes.pop(), 1)\n")
    build = load_factory("model.py:make", {"sizes": [3, 4]})[1]
    assert (build().in_features, build().in_features) == (4, 4)


def test_what_the_user_s_code_prints_is_not_on_stdout(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(
        here,
        model="from torch import nn\nprint('importing')\ndef make():\n    print('making')\n    return nn.Linear(1, 1)",
    )
    load_factory("model.py:make", {})[1]()
    assert capsys.readouterr() == ("", "importing\nmaking\n")


def test_kwargs_of_json_yaml_and_files(here: Path) -> None:
    (here / "a.yaml").write_text("n_layer: 6\nstd: 2e-2\n")
    (here / "a.json").write_text(json.dumps({"n_layer": 6}, indent="\t"))
    assert read_kwargs(None) == read_kwargs("") == {}
    assert read_kwargs('{"n_layer": 6, "bias": false}') == {"n_layer": 6, "bias": False}
    assert read_kwargs("{n_layer: 6}") == {"n_layer": 6}
    assert read_kwargs("a.yaml") == {"n_layer": 6, "std": 0.02}
    assert read_kwargs("a.json") == {"n_layer": 6}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nowhere.yaml", "--kwargs nowhere.yaml: no such file, nor JSON; expected text such as '{\"n_layer\": 6}'"),
        ("n_layer=6", "--kwargs n_layer=6: no such file, nor JSON"),
        ('{"n_layer": ', "--kwargs:1:13: "),
        ("list.json", "list.json: found a list ([1, 2]), expected a mapping such as"),
        ("bytes.yaml", "--kwargs bytes.yaml: byte 0 is not UTF-8 text"),
        (".", "--kwargs .: no such file, nor JSON"),
    ],
)
def test_kwargs_that_are_none(here: Path, text: str, expected: str) -> None:
    (here / "list.json").write_text("[1, 2]")
    (here / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError) as caught:
        read_kwargs(text)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)
