"""The commands on a module of the user's own, and on a Hugging Face config."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

from initdiag import assert_healthy
from tests.cli.conftest import Initdiag
from tests.cli.test_process import ROOT

MODEL = """
import math
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm2 = nn.LayerNorm(d)
        self.up = nn.Linear(d, 4 * d)
        self.down = nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, 4, d // 4).transpose(1, 2) for z in self.qkv(self.norm(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, n_layer=2, d=32, std=0.02):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(128, d), nn.Embedding(64, d)
        self.h = nn.ModuleList(Block(d) for _ in range(n_layer))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 128, bias=False)
        self.head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                residual = name.endswith(("out.weight", "down.weight"))
                nn.init.normal_(p, std=std / math.sqrt(2 * n_layer) if residual else std)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


def hot():
    return GPT(std=1.0)


def fails():
    raise ValueError("no such thing")


NUMBER = 3
"""
CONFIG = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "vocab_size": 128,
    "n_positions": 64,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
}
SHORT = ("-q", "--set", "tokens.length=32")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("hf").mkdir()
    Path("hf/config.json").write_text(json.dumps(CONFIG))
    return tmp_path


@pytest.mark.usefixtures("here")
def test_check_a_class(initdiag: Initdiag) -> None:
    ran = initdiag("check", "model.py:GPT", *SHORT)
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert lines[0] == "model.py:GPT: as built, seed 0"
    assert lines[2] == "wiring: pre-norm, 2 layers, 4 branches; head wte.weight, tied"
    assert lines[3] == "init code: seen to fill 28 of 28 parameters"
    for name in ("h.0.out", "h.0.down", "h.1.out", "h.1.down", "attention_query/key/value", "future leak"):
        assert name in ran.out
    assert "gradient ratio" not in ran.out and "own loss" not in ran.out


@pytest.mark.usefixtures("here")
def test_check_a_function_that_is_wrong(initdiag: Initdiag) -> None:
    ran = initdiag("check", "model.py:hot", *SHORT)
    assert ran.code == 1 and "verdict: FAIL" in ran.out and "instead:" in ran.out
    for format_ in ("json", "markdown", "github"):
        assert initdiag("check", "model.py:hot", *SHORT, "--output-format", format_).code == 1
    assert initdiag("check", "model.py:hot", *SHORT, "--exit-zero").code == 0


@pytest.mark.usefixtures("here")
def test_what_was_measured_is_in_the_json(initdiag: Initdiag) -> None:
    ran = initdiag("check", "model.py:GPT", *SHORT, "--backward", "--output-format", "json")
    document = json.loads(ran.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert (ran.code, document["schema_version"], document["scheme"]) == (0, 1, "as built")
    assert document["wiring"]["placement"] == "pre" and document["wiring"]["tied"] is True
    branches = document["residual"]["branches"]
    assert [branch["name"] for branch in branches] == ["h.0.out", "h.0.down", "h.1.out", "h.1.down"]
    line = next(i for i, text in enumerate(MODEL.splitlines(), 1) if "x = x + self.out" in text)
    assert (branches[0]["module"], branches[0]["source"]) == ("h.0", f"model.py:{line}")
    assert branches[0]["reads"][0]["reader"] == "h.0.qkv.weight" and branches[0]["residue"] < 1e-5
    assert all(branch["gradient_norm"] > 0 for branch in branches)
    assert document["gradients"]["norms"].keys() == {one["name"] for one in document["parameters"]}
    qkv = next(one for one in document["parameters"] if one["name"] == "h.1.qkv.weight")
    assert [part["rows"] for part in qkv["parts"]] == [[[0, 32]], [[32, 64]], [[64, 96]]]
    assert qkv["distribution"] == "N(0.02)" and qkv["measured_std"] == pytest.approx(0.02, rel=0.1)
    assert qkv["kurtosis"] == pytest.approx(3, abs=0.5) and 0 < qkv["stable_rank"] <= 1
    assert document["probe"]["leak"] < 1e-3 and document["history"]["watched"] is True
    assert "drawn" not in document["history"]


@pytest.mark.usefixtures("here")
def test_backward_adds_its_numbers(initdiag: Initdiag) -> None:
    out = initdiag("check", "model.py:GPT", *SHORT, "--backward").out
    assert re.search(r"gradient ratio per layer +[\d.]+", out) and re.search(r"dead parameters +0 +0", out)
    assert re.search(r"^# +branch .* gradient", out, re.MULTILINE)


@pytest.mark.usefixtures("here")
def test_kwargs_from_json_and_from_a_file(initdiag: Initdiag) -> None:
    ran = initdiag("check", "model.py:GPT", *SHORT, "--kwargs", '{"n_layer": 3}')
    assert "3 layers, d_model 32" in ran.out and "h.2.down" in ran.out
    Path("sizes.yaml").write_text("n_layer: 1\nd: 16\n")
    assert "1 layer, d_model 16" in initdiag("check", "model.py:GPT", *SHORT, "--kwargs", "sizes.yaml").out
    plan = initdiag("plan", "model.py:GPT", "-q", "--kwargs", '{"n_layer": 1}', "--output-format", "json")
    assert len(json.loads(plan.out)["parameters"]) == 16


@pytest.mark.usefixtures("here")
def test_bidirectional_expects_no_mask(initdiag: Initdiag) -> None:
    text = Path("model.py").read_text()
    Path("both.py").write_text(text.replace("is_causal=True", "is_causal=False"))
    causal = initdiag("check", "both.py:GPT", *SHORT, "--output-format", "json")
    assert causal.code == 1 and json.loads(causal.out)["probe"]["causal"] is True
    both = initdiag("check", "both.py:GPT", *SHORT, "--bidirectional", "--output-format", "json")
    assert json.loads(both.out)["probe"]["causal"] is False and both.code == 0


@pytest.mark.usefixtures("here")
def test_compare_schemes_on_a_module(initdiag: Initdiag) -> None:
    ran = initdiag("compare", "model.py:GPT", "--schemes", "default,gpt2,scaled", *SHORT)
    assert ran.code == 1  # tied to N(1)
    assert ran.out.startswith("model.py:GPT: default, gpt2, scaled; seed 0")
    assert re.search(r"attention_out +U\(1 / sqrt\(fan_in\)\) +N\(std\) +N\(residual_std\)", ran.out)
    assert "pick: scaled" in ran.out
    document = json.loads(
        initdiag("compare", "model.py:GPT", "--schemes", "gpt2,scaled", *SHORT, "--output-format", "json").out
    )
    gpt2, scaled = ({one["name"]: one["measured_std"] for one in run["parameters"]} for run in document["runs"])
    assert gpt2["h.0.out.weight"] / scaled["h.0.out.weight"] == pytest.approx(2, rel=1e-5)  # √(2·2)


@pytest.mark.usefixtures("here")
def test_plan_of_a_module(initdiag: Initdiag) -> None:
    ran = initdiag("plan", "model.py:GPT", "-q")
    assert (ran.code, ran.err) == (0, "")
    rows = [line.split() for line in ran.out.splitlines()]
    row = next(row for row in rows if row[:2] == ["down.weight", "32×128"])
    assert row[2:5] == ["mlp_out", "N", "0.01000"] and float(row[5]) == pytest.approx(0.01, rel=0.1)
    assert "rows 0–31 attention_query, rows 32–63" in ran.out.replace("\n  ", " ")
    assert "scheme gpt2" in initdiag("plan", "model.py:GPT", "-q", "--scheme", "gpt2").out


def executed(code: str, model: nn.Module) -> None:
    names: dict[str, object] = {}
    exec(code, names)
    torch.manual_seed(0)
    names["init_weights"](model)  # type: ignore[operator]


@pytest.mark.usefixtures("here")
def test_an_init_function_for_a_module(initdiag: Initdiag) -> None:
    ran = initdiag("scheme", "scaled", "--for", "model.py:GPT", "-q", "--kwargs", '{"n_layer": 8}')
    assert (ran.code, ran.err) == (0, "") and "n_layers = 8" in ran.out
    names: dict[str, type[nn.Module]] = {}
    exec(MODEL, names)
    model = names["GPT"](n_layer=8, d=64, std=5.0)
    executed(ran.out, model)
    stds = {name: float(parameter.detach().std()) for name, parameter in model.named_parameters()}
    assert stds["h.1.down.weight"] == pytest.approx(0.005, rel=0.03)  # 16,384 draws: 0.6 % is one σ
    assert stds["h.1.up.weight"] == pytest.approx(0.02, rel=0.03)


def test_an_init_function_for_a_config(initdiag: Initdiag) -> None:
    ran = initdiag("scheme", "gpt2", "--for", "tiny", "-q")
    assert ran.code == 0 and "def init_weights(model" in ran.out and "blocks.*.mlp.out.weight" in ran.out


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("target", ["hf", "hf/config.json"])
def test_a_hugging_face_config(initdiag: Initdiag, target: str) -> None:
    ran = initdiag("check", target, *SHORT)
    assert ran.code == 0, ran.out + ran.err
    assert ran.out.startswith(f"{target}: as built, seed 0\n2 layers, d_model 32, vocabulary 128")
    assert "wiring: pre-norm, 2 layers, 4 branches; head transformer.wte.weight, tied" in ran.out
    assert "transformer.h.1.mlp.c_proj" in ran.out and re.search(r"own loss +4\.\d+ +4\.\d+", ran.out)


@pytest.mark.usefixtures("here")
def test_the_other_commands_on_a_hugging_face_config(initdiag: Initdiag) -> None:
    assert "pick: scaled" in initdiag("compare", "hf", "--schemes", "gpt2,scaled", *SHORT).out
    plan = initdiag("plan", "hf", "-q", "--kwargs", '{"n_layer": 1}').out
    assert "attention_query/key/value" in plan and "transformer.h.1" not in plan
    assert "transformer.h.*.attn.c_attn.weight" in initdiag("scheme", "scaled", "--for", "hf", "-q").out


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["check", "model.py:Gpt"], "model.py has no 'Gpt' (did you mean 'GPT'?). It has nn.Module classes Block, GPT"),
        (["check", "model.py"], "which model?"),
        (["check", "nowhere.py:GPT"], "nowhere.py"),
        (["check", "no.such.module:GPT"], "no module named 'no'"),
        (["check", "model.py:NUMBER"], "model.py:NUMBER is an int (3)"),
        (["check", "model.py:fails"], "no such thing"),
        (["check", "model.py:GPT", "--kwargs", "{n_layr: 2}"], "n_layr"),
        (["check", "model.py:GPT", "--kwargs", "nowhere.yaml"], "--kwargs nowhere.yaml: no such file"),
        (["check", "model.py:GPT", "--kwargs", "[1]"], "--kwargs [1]: no such file, nor JSON"),
        (["check", "model.py:GPT", "--vocab-size", "0"], "vocab_size 0: expected at least 1"),
        (["check", "model.py:GPT", "-o", "model.py"], "--output-file model.py: it is an input (model.py:GPT)"),
        (["check", "hf", "-o", "hf/config.json"], "--output-file hf/config.json: it is an input (hf)"),
        (["check", "tiny", "--kwargs", '{"a": 1}'], "--kwargs: only for modules"),
        (["compare", "tiny", "--vocab-size", "5"], "--vocab-size: only for modules"),
        (["plan", "tiny", "--trust-remote-code"], "--trust-remote-code: only for modules"),
        (["scheme", "--for", "model.py:GPT"], "--for model.py:GPT: no scheme is named"),
        (["scheme", "skaled", "--for", "model.py:GPT"], "did you mean 'scaled'?"),
        (["scheme", "scaled", "--for", "model.py:Gpt"], "model.py has no 'Gpt'"),
        (["scheme", "scaled", "--kwargs", "{}"], "--kwargs: it belongs to a model"),
    ],
)
def test_what_is_wrong_is_one_sentence(initdiag: Initdiag, arguments: list[str], says: str) -> None:
    before = Path("model.py").read_text()
    ran = initdiag(*arguments, *(["-q"] if "-q" not in arguments else []))
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err, ran.err
    assert len(ran.err.splitlines()) == 1 and "Traceback" not in ran.err
    assert Path("model.py").read_text() == before


@pytest.mark.usefixtures("here")
def test_an_assertion_says_what_is_wrong() -> None:
    assert assert_healthy("model.py:GPT", overrides=["tokens.length=32"]).verdict == "pass"
    with pytest.raises(AssertionError) as raised:
        assert_healthy("model.py:hot", overrides=["tokens.length=32"])
    lines = str(raised.value).splitlines()
    assert re.fullmatch(r"initdiag: FAIL model.py:hot \(\d+ errors?, \d+ warnings?\)", lines[0])
    assert any(line.startswith("error LOGIT00") for line in lines) and "  instead: " in str(raised.value)


def test_commands_that_are_named_are_about_this_very_model(initdiag: Initdiag) -> None:
    """Words may be broken over lines, so all is read as one line."""

    def said(*arguments: str) -> str:
        return " ".join(initdiag(*arguments).out.split())

    target, layers = str(ROOT / "docs/examples/gpt.py") + ":GPT", "--kwargs '{\"n_layers\": 12}'"
    found = said("check", target, "--kwargs", '{"n_layers": 12}', "--scheme", "gpt2", "-q")
    assert f"`initdiag scheme scaled --for {target} {layers}` writes the init function" in found
    compared = said("compare", target, "--kwargs", '{"n_layers": 12}', "--schemes", "scaled,gpt2", "-q")
    assert f"what to write instead: initdiag check {target} {layers} --scheme gpt2" in compared
    two = ("--set", "model.n_layers=2")
    compared = said("compare", "tiny", "--schemes", "scaled,default", *two, "-q")
    assert "what to write instead: initdiag check tiny --set model.n_layers=2 --scheme default" in compared


def test_the_head_is_cured_where_its_init_stands(initdiag: Initdiag) -> None:
    """A module has an init function, and no config of ours."""
    target = str(ROOT / "docs/examples/gpt.py") + ":GPT"
    for scheme, rule in (("default", "LOGIT002"), ("gpt2", "LOGIT001")):
        gate = () if scheme == "default" else ("--set", "gate.warn_logit_std=0.01")
        found = " ".join(initdiag("check", target, "--scheme", scheme, *gate, "-q").out.split())
        cure = found[found.index(rule) :]
        assert "in its init function, `nn.init.normal_(model." in cure, cure
        assert "init: {scheme" not in cure.partition("verdict")[0] and "model.tied" not in cure.partition("verdict")[0]
    ours = " ".join(initdiag("check", "tiny", "--scheme", "default", "-q").out.split())
    assert "in the config, init.roles: {token_embedding: {normal: 0.02}}" in ours and "(model.tied: false)" in ours
