"""The commands with --engine weightless and auto: what they print, what they refuse, and what they import."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from initdiag import check
from initdiag.engines import choose
from initdiag.subjects import lean
from tests.cli.conftest import Imported, Initdiag
from tests.cli.test_process import CONFIG, ROOT

SHORT = ("--set", "tokens.batch=1", "--set", "tokens.length=16")
TWO = ("--set", "model.n_layers=2", *SHORT)
WEIGHTLESS = ("--engine", "weightless")
EXACT = "exact in distribution: its numbers are drawn as a dense run's are"

MODEL = """
import copy
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, 8, -1).transpose(1, 2) for z in self.qkv(self.norm(x)).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, d=512, n_layer=2, pad=3):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(1024, d, padding_idx=pad), nn.Embedding(64, d)
        self.h = nn.ModuleList(Block(d) for _ in range(n_layer))
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 1024, bias=False)
        self.head.weight = self.wte.weight
        for name, p in self.named_parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)
        with torch.no_grad():
            self.wte.weight[pad].zero_()
            for block in self.h:
                block.qkv.weight[2 * d :].normal_(0, 0.03)
        self.then()

    def then(self):
        pass

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.norm(x))


class Odd(GPT):
    def then(self):
        self.h[1].up = nn.Linear(512, 2048)


class Copied(GPT):
    def then(self):
        self.h[1].up = copy.deepcopy(self.h[0].up)


class Computed(GPT):
    def then(self):
        with torch.no_grad():
            self.h[1].up.weight.copy_(torch.randn(2048, 512).cumsum(0) / 100)


class Orthogonal(GPT):
    def then(self):
        nn.init.orthogonal_(self.h[1].up.weight)


class Zeros(GPT):
    def then(self):
        for block in self.h:
            nn.init.zeros_(block.out.weight)
            nn.init.zeros_(block.down.weight)


class Writes(GPT):
    def forward(self, ids):
        with torch.no_grad():
            self.h[0].up.weight.mul_(0.5)
        return super().forward(ids)


class Listed(GPT):
    def then(self):
        self.mixers = [torch.randn(512, 512) / 512**0.5]

    def forward(self, ids):
        return F.linear(self.norm(self.wte(ids) @ self.mixers[0]), self.head.weight)


class Normed(GPT):
    def forward(self, ids):
        x = self.wte(ids)
        for block in self.h:
            x = block(x)
        return F.linear(self.norm(x), F.normalize(self.head.weight, dim=1))


class Wide(nn.Module):
    def __init__(self, wide=16384, factor=3):
        super().__init__()
        self.wte, self.block = nn.Embedding(1024, 512), Block(512)
        self.mlp = nn.Sequential(nn.Linear(512, wide), nn.ReLU(), nn.Linear(wide, factor * wide), nn.ReLU())
        self.down = nn.Linear(factor * wide, 512)
        self.head = nn.Linear(512, 1024, bias=False)

    def forward(self, ids):
        x = self.block(self.wte(ids))
        return self.head(x + self.down(self.mlp(x)))


model = GPT()
"""


@pytest.fixture
def model(elsewhere: Path) -> Path:
    (elsewhere / "m.py").write_text(MODEL)
    return elsewhere


def strict(text: str) -> Any:
    """Parse JSON as other languages do: NaN and Infinity are none."""

    def refuse(word: str) -> float:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


# --- which engine, and why


def test_auto_says_which_engine_and_why(initdiag: Initdiag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "available", lambda device: 2**36)
    ran = initdiag("check", "tiny", "-q", "--engine", "auto")
    assert "chosen: dense, since its weights fit, 0.0009 GiB, and weightless is no faster" in ran.out
    found = strict(initdiag("check", "tiny", "-q", "--engine", "auto", "--output-format", "json").out)
    assert found["engine"] == "dense" and found["weightless"] is None
    assert found["engine_reason"] == "its weights fit, 0.0009 GiB, and weightless is no faster"


def test_a_dense_run_that_nobody_asked_about_says_nothing(initdiag: Initdiag) -> None:
    for arguments in ((), ("--engine", "dense")):
        ran = initdiag("check", "tiny", "-q", *arguments)
        assert "chosen" not in ran.out and "weightless" not in ran.out and "engine: dense, float32" in ran.out
    found = strict(initdiag("check", "tiny", "-q", "--output-format", "json").out)
    assert (found["engine"], found["engine_reason"], found["weightless"]) == ("dense", "", None)


def test_what_doesnt_fit_says_so(initdiag: Initdiag, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "available", lambda device: 2**27)
    ran = initdiag("check", "gpt2", "-q", *TWO)
    size = (50_257 * 768 + 1_024 * 768 + 2 * (12 * 768**2 + 13 * 768) + 2 * 768) * 4 / 2**30
    assert (
        f"chosen: weightless, since its weights take {size:.1f} GiB, more than 0.8 of the 0.1 GiB that are free"
        in flat(ran.out)
    )


def test_progress_names_the_engine_that_was_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "available", lambda device: 2**27)
    stages: list[str] = []
    check("gpt2", overrides=["model.n_layers=2", "tokens.batch=1", "tokens.length=16"], progress=stages.append)
    assert "seed 0: weightless, one forward" in stages[-1]
    assert "drawing weights" not in stages[-1]


# --- reports


@pytest.fixture
def gpt2(initdiag: Initdiag) -> Any:
    return strict(initdiag("check", "gpt2", "-q", *WEIGHTLESS, *TWO, "--output-format", "json", "--backward").out)


def test_json(gpt2: Any) -> None:
    assert gpt2["engine"] == "weightless" and gpt2["engine_reason"] == ""
    large = [one for one in gpt2["parameters"] if not one["drawn"]]
    # two tables, and of two layers: query, key, value, out, in and out of the MLP
    assert len(large) == gpt2["weightless"]["parameters"] == 2 + 2 * 6
    assert gpt2["weightless"]["entries"] == sum(math.prod(one["shape"]) for one in large)
    assert all(math.prod(one["shape"]) >= 2**18 for one in large)
    assert all(math.prod(one["shape"]) < 2**18 for one in gpt2["parameters"] if one["drawn"])
    assert gpt2["weightless"]["asymptotic"] == [] and gpt2["weightless"]["made_real"] == []
    for one in large:
        assert one["measured_std"] == one["declared_std"] and one["kurtosis"] == 3 and one["max_abs"] == "nan"
        assert one["stable_rank"] is None
    assert set(gpt2["gradients"]["norms"]) == {one["name"] for one in gpt2["parameters"]}


def test_json_says_why_nothing_was_trained(model: Path, initdiag: Initdiag, gpt2: Any) -> None:
    assert gpt2["gradients"]["skipped"] == "" and gpt2["gradients"]["zero"] == []
    arguments = ("check", "m.py:Zeros", "-q", *WEIGHTLESS, *SHORT, "--backward")
    found = strict(initdiag(*arguments, "--output-format", "json").out)["gradients"]
    assert found["zero"] and found["dead"] == [] and found["steps"] == 0
    assert found["skipped"] == "parameters without entries can't be trained (--engine dense)"
    table = initdiag(*arguments).out
    assert not re.search(r"^dead parameters +0", table, re.MULTILINE)
    assert "parameters without entries can't be trained" in flat(table)


@pytest.mark.parametrize("form", ["table", "markdown", "github"])
def test_formats(form: str, initdiag: Initdiag) -> None:
    ran = initdiag("check", "gpt2", "-q", *WEIGHTLESS, *TWO, "--output-format", form)
    assert ran.code == 0 and ran.err == "" and "nan" not in ran.out.lower()
    if form != "github":
        assert EXACT in flat(ran.out) and "14 of " in ran.out


def test_a_comparison(initdiag: Initdiag) -> None:
    """Of default, whose matrices are uniform, all but the table (a Gaussian) are exact only as widths grow."""
    arguments = ("compare", "llama-3-70b", "-q", "--schemes", "default,gpt2,scaled", *TWO, "--output-format", "json")
    ran = initdiag(*arguments)
    found = strict(ran.out)
    assert ran.code in (0, 1) and [one["scheme"] for one in found["runs"]] == ["default", "gpt2", "scaled"]
    default, gpt2, scaled = found["runs"]
    assert all(one["engine"] == "weightless" and one["engine_reason"] for one in found["runs"])
    uniform = {one["name"] for one in default["parameters"] if one["distribution"].startswith("U")}
    assert set(default["weightless"]["asymptotic"]) == uniform and len(uniform) == 2 * 7 + 1
    assert gpt2["weightless"]["asymptotic"] == scaled["weightless"]["asymptotic"] == []
    assert gpt2["attention"][0]["logit_std"] == scaled["attention"][0]["logit_std"]
    assert default["attention"][0]["logit_std"] != gpt2["attention"][0]["logit_std"]
    # U(±1/√n) has variance 1/(3n): logits of std 3^-½ after a norm that leaves a length of √n
    assert default["logits"]["std"] == pytest.approx(3**-0.5, rel=5 / math.sqrt(2 * 128_256 * 16))
    assert default["residual"]["embedding_variance"] == pytest.approx(1.0, rel=5 * math.sqrt(2 / (8192 * 16)))


@pytest.mark.parametrize("form", ["table", "markdown"])
def test_a_comparison_says_what_its_numbers_are(form: str, initdiag: Initdiag) -> None:
    arguments = ("compare", "gpt2", "-q", *WEIGHTLESS, *TWO, "--schemes", "default,gpt2", "--output-format", form)
    out = flat(initdiag(*arguments).out).replace("\\", "").lower()
    assert out.count(EXACT) == 1
    assert out.count("default: asymptotic, since entries are uniform or truncated, and products gaussian only ") == 1
    assert "gpt2: asymptotic" not in out


def test_asymptotic_ones_are_named_in_the_table(initdiag: Initdiag) -> None:
    ran = initdiag("check", "gpt2", "-q", *WEIGHTLESS, *TWO, "--scheme", "default")
    assert "products Gaussian only up to about 1/width: blocks.*.attention.query.weight, " in flat(ran.out)


def test_a_plan_without_entries(initdiag: Initdiag) -> None:
    out = initdiag("plan", "llama-3.1-405b", "-q").out
    assert "405.9 B parameters" in out and "blocks.125" in out
    row = next(line for line in out.splitlines() if "mlp.gate.weight" in line)
    assert row.split()[1:] == ["53248×16384", "mlp_gate", "N", "0.02000", "–"]
    found = strict(initdiag("plan", "llama-3.1-405b", "-q", "--output-format", "json").out)
    assert sum(math.prod(one["shape"]) for one in found["parameters"]) == 405_853_388_800


# --- modules


def test_a_module_by_its_import_path(model: Path, initdiag: Initdiag) -> None:
    ran = initdiag("check", "m.py:GPT", "-q", *WEIGHTLESS, *SHORT, "--output-format", "json")
    found = strict(ran.out)
    assert found["weightless"]["parameters"] == 1 + 2 * 4 and found["weightless"]["made_real"] == []
    assert found["wiring"]["tied"] and found["wiring"]["placement"] == "pre"
    by_name = {one["name"]: one for one in found["parameters"]}
    # rows 0–1023 have std 0.02, 1024–1535 0.03; one row of the table is zero
    packed = math.sqrt((2 * 0.02**2 + 0.03**2) / 3)
    assert by_name["h.0.qkv.weight"]["measured_std"] == pytest.approx(packed, rel=1e-6)
    assert by_name["wte.weight"]["measured_std"] == pytest.approx(0.02 * math.sqrt(1023 / 1024), rel=1e-6)
    assert by_name["wpe.weight"]["drawn"] and not by_name["wte.weight"]["drawn"]


def test_a_padding_row_is_zero(model: Path, initdiag: Initdiag) -> None:
    (model / "ids.npy").write_bytes(_npy([3] * 17))
    arguments = ("--tokens", "ids.npy", *SHORT, "--output-format", "json")
    found = strict(initdiag("check", "m.py:GPT", "-q", *WEIGHTLESS, *arguments).out)
    # what is left is the table of positions
    assert found["residual"]["embedding_variance"] == pytest.approx(0.02**2, rel=5 * math.sqrt(2 / (16 * 512)))
    assert found["loss"]["value"] > math.log(1024)


def _npy(ids: list[int]) -> bytes:
    header = f"{{'descr': '<i4', 'fortran_order': False, 'shape': ({len(ids)},), }}"
    text = header.ljust(128 - 10 - 1) + "\n"
    body = b"".join(one.to_bytes(4, "little") for one in ids)
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode() + body


def test_rules_on_weights_still_find_an_odd_layer(model: Path, initdiag: Initdiag) -> None:
    ran = initdiag("check", "m.py:Odd", "-q", *WEIGHTLESS, *SHORT, "--output-format", "json")
    found = strict(ran.out)
    rules = {one["rule"]: one for one in found["findings"]}
    assert ran.code == 1 and rules["INIT002"]["severity"] == "error"
    assert "h.1.up.weight" in rules["INIT002"]["message"] + (rules["INIT002"]["subject"] or "")
    assert "RES001" in rules
    assert found["weightless"]["asymptotic"] == ["h.1.up.weight"]


@pytest.mark.parametrize(
    ("name", "parameter", "why"),
    [
        ("Copied", "h.1.up.weight", "the same draw as h.0.up.weight"),
        ("Computed", "h.1.up.weight", "cumsum"),
        ("Orthogonal", "h.1.up.weight", "orthogonal_"),
    ],
)
def test_what_could_not_be_recorded(
    name: str, parameter: str, why: str, model: Path, initdiag: Initdiag, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, "LAWLESS", 0)
    ran = initdiag("check", f"m.py:{name}", "-q", *WEIGHTLESS, *SHORT)
    assert ran.code == 2 and ran.out == "" and len(ran.err.strip().splitlines()) == 1
    assert f"'{parameter}'" in ran.err and why in ran.err
    assert "--scheme" in ran.err and "--engine dense" in ran.err
    drawn = initdiag("check", f"m.py:{name}", "-q", *WEIGHTLESS, *SHORT, "--scheme", "scaled")
    assert drawn.code == 0 and "engine: weightless" in drawn.out
    both = initdiag("compare", f"m.py:{name}", "-q", *WEIGHTLESS, *SHORT, "--schemes", "gpt2,scaled")
    assert both.code == 0, both.err
    assert initdiag("check", f"m.py:{name}", "-q", "--engine", "dense", *SHORT).code in (0, 1)


def test_a_forward_that_writes_into_a_weight(model: Path, initdiag: Initdiag) -> None:
    ran = initdiag("check", "m.py:Writes", "-q", *WEIGHTLESS, *SHORT)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.strip() == (
        "initdiag: the forward writes into 'h.0.up.weight' (aten::mul_), which has no entries under the weightless "
        "engine; use --engine dense"
    )


def test_a_weight_that_is_no_parameter(model: Path, initdiag: Initdiag) -> None:
    """It was left on the meta device, where torch would compute a loss of nothing."""
    ran = initdiag("check", "m.py:Listed", *WEIGHTLESS, *SHORT)
    assert (ran.code, ran.out) == (2, "")
    assert re.search(r"a large weight that is no parameter of a module \(aten::mm, of \(512, 512\)\)", ran.err), ran.err
    assert "register it, or use --engine dense" in ran.err and "Traceback" not in ran.err


def test_what_was_made_real_is_told(model: Path, initdiag: Initdiag) -> None:
    ran = initdiag("check", "m.py:Normed", "-q", *WEIGHTLESS, *SHORT)
    assert re.search(r"made real, since \w+: wte\.weight", flat(ran.out))
    found = strict(initdiag("check", "m.py:Normed", "-q", *WEIGHTLESS, *SHORT, "--output-format", "json").out)
    assert [one["parameter"] for one in found["weightless"]["made_real"]] == ["wte.weight"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("m.py:GPT", "--engine", "weihgtless"), "--engine weihgtless: expected one of auto, dense, weightless (did"),
        (
            ("m.py:GPT", *WEIGHTLESS, "--device", "cuda"),
            "--device cuda: the weightless engine runs on cpu; use --engin",
        ),
        (("tiny", *WEIGHTLESS, "--device", "cuda"), "--device cuda: the weightless engine runs on cpu; use --engine d"),
        (("m.py:model", *WEIGHTLESS), "--engine weightless: "),
    ],
)
def test_refusals(arguments: tuple[str, ...], says: str, model: Path, initdiag: Initdiag) -> None:
    ran = initdiag("check", *arguments, "-q", *SHORT)
    assert ran.code == 2 and ran.out == "" and ran.err.startswith(f"initdiag: {says}"), ran


# --- processes


def peak(folder: Path, *arguments: str) -> tuple[str, int]:
    """Run the program in a process of its own; returns its JSON and the most memory that it held, in bytes.

    getrusage won't do: its ru_maxrss is at least that of the process that forked this one.
    """
    code = (
        "import sys\n"
        f"sys.argv = ['initdiag', 'check', *{list(arguments)!r}, '-q', '--output-format', 'json']\n"
        "from initdiag.cli.main import run\n"
        "code = run()\n"
        "status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n"
        "sys.stderr.write(status['VmHWM'].split()[0])\n"
        "sys.exit(code)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode in (0, 1), ran.stderr
    return ran.stdout, int(ran.stderr) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_factory_of_three_gibibytes_runs_in_less_than_one(model: Path) -> None:
    """Nobody asks for an engine. torch itself takes 0.25 GiB; the vectors of 49,152 features for 16 tokens 3 MiB."""
    out, memory = peak(model, "m.py:Wide", *SHORT)
    found = strict(out)
    assert found["engine"] == "weightless" and found["engine_reason"]
    assert found["weightless"]["entries"] * 4 > 3 * 2**30
    assert memory < 0.6 * 2**30


def test_a_smaller_factory_has_its_weights(model: Path, initdiag: Initdiag) -> None:
    ran = initdiag("check", "m.py:Wide", "-q", *SHORT, "--kwargs", '{"wide": 1024}', "--output-format", "json")
    assert strict(ran.out)["engine"] == "dense"


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", CONFIG, *WEIGHTLESS, "--set", "model.d_model=-1"],
        ["check", str(ROOT / "configs" / "no-such.yaml"), *WEIGHTLESS],
        ["check", CONFIG, "--engine", "weihgtless"],
        ["compare", CONFIG, *WEIGHTLESS, "--schemes", "x"],
    ],
    ids=" ".join,
)
def test_nothing_that_needs_no_model_imports_torch(arguments: list[str], imported: Imported) -> None:
    packages = imported(arguments)
    assert "initdiag" in packages
    assert "torch" not in packages and "numpy" not in packages
