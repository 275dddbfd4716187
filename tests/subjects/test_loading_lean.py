"""Module targets that are built without their large parameters: which are, what is known of them, what is refused."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from initdiag import Settings, Subject, case, check
from initdiag.engines import choose
from initdiag.errors import RunError, UsageError
from initdiag.request import Request
from initdiag.schemes import Constant, Normal, Uniform
from initdiag.subjects import huggingface, lean, loading
from initdiag.subjects.loading import load_module
from initdiag.weightless import Law, Piece, uniform_law

D, VOCAB = 512, 1024
FILE = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, d=512, vocab=1024, pad=3):
        super().__init__()
        self.wte = nn.Embedding(vocab, d, padding_idx=pad)
        self.qkv = nn.Linear(d, 3 * d)
        self.out = nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, vocab, bias=False)
        self.head.weight = self.wte.weight
        nn.init.normal_(self.wte.weight, std=0.05)
        with torch.no_grad():
            self.wte.weight[pad].zero_()
            self.qkv.weight[: 2 * d].normal_(0, 0.01)
            self.qkv.weight[2 * d :].normal_(0, 0.03)

    def forward(self, ids):
        x = self.wte(ids)
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.norm(x + self.out(y)))

model = None

def built():
    global model
    model = model or Model()
    return model

class Reads(Model):
    def __init__(self):
        super().__init__()
        with torch.no_grad():
            self.out.weight.div_(self.out.weight.std().item())

class Orthogonal(Model):
    def __init__(self):
        super().__init__()
        nn.init.orthogonal_(self.out.weight)
"""


@pytest.fixture
def path(tmp_path: Path) -> Callable[[str], str]:
    (tmp_path / "model.py").write_text(FILE)
    return lambda name: f"{tmp_path}/model.py:{name}"


def load(target: Any, how: bool | None = True, **arguments: Any) -> Subject:
    return load_module(target, kwargs=arguments.pop("kwargs", {}), lean=how, **arguments)


def without_memory(subject: Subject) -> set[str]:
    assert subject.module is not None
    return {name for name, parameter in subject.module.named_parameters() if parameter.is_meta}


def test_laws_of_an_import_path(path: Callable[[str], str]) -> None:
    subject = load(path("Model"))
    table = (Piece(0, 3, Normal(0.05)), Piece(3, 4, Constant(0.0)), Piece(4, VOCAB, Normal(0.05)))
    bound = Uniform(D**-0.5)
    assert subject.laws["wte.weight"] == Law(table)  # of the head too: it is tied
    packed = subject.laws["qkv.weight"].pieces
    assert [(one.start, one.stop) for one in packed] == [(0, 2 * D), (2 * D, 3 * D)]
    assert [one.std for one in packed] == pytest.approx([0.01, 0.03])
    (out,) = subject.laws["out.weight"].pieces
    assert isinstance(out.distribution, Uniform) and out.distribution.bound == pytest.approx(bound.bound)
    assert set(subject.laws) == without_memory(subject) == {"wte.weight", "qkv.weight", "out.weight"}
    assert subject.unrecorded == {} and subject.owned and subject.vocab_size == VOCAB
    assert subject.module is not None and subject.module.head.weight is subject.module.wte.weight


def test_arguments_reach_a_lean_build(path: Callable[[str], str]) -> None:
    subject = load(path("Model"), kwargs={"d": 1024, "pad": 0})
    assert subject.laws["wte.weight"].pieces[0] == Piece(0, 1, Constant(0.0))
    assert subject.module is not None and subject.module.qkv.weight.shape == (3072, 1024)


def test_functions_and_hugging_face_configs(tmp_path: Path) -> None:
    subject = load(lambda: nn.Sequential(nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB)))
    assert set(subject.laws) == {"0.weight", "1.weight"}
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 1, "n_embd": D, "n_head": 8}
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": VOCAB, "n_positions": 64}))
    subject = load(str(tmp_path))
    # the class draws residual projections with 0.02/√(2·1), and zeroes biases
    assert subject.laws["transformer.h.0.mlp.c_proj.weight"] == uniform_law(Normal(0.02 / 2**0.5), 4 * D)
    assert subject.laws["transformer.wte.weight"] == uniform_law(Normal(0.02), VOCAB)
    assert subject.declared.std == 0.02 and subject.declared.causal is True


@pytest.mark.parametrize("how", [False, None])
def test_what_is_small_is_built_with_its_weights(how: bool | None, path: Callable[[str], str]) -> None:
    subject = load(path("Model"), how)
    assert subject.laws == {} and subject.unrecorded == {} and without_memory(subject) == set()


def test_what_asks_for_too_much_is_built_without(monkeypatch: pytest.MonkeyPatch, path: Callable[[str], str]) -> None:
    size = 4 * (VOCAB * D * 2 + 3 * D * D + D * D + 3 * D + 4 * D)  # the head's own table is made before it is tied
    for room, without in ((size, False), (size - 2**16, True)):
        monkeypatch.setattr(loading, "LARGE_BUILD", room)
        subject = load(path("Model"), None)
        assert bool(subject.laws) is without is bool(without_memory(subject))
    assert not load(path("Model"), False).laws  # unless somebody asks for its weights


def test_a_large_hugging_face_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2, "n_embd": D, "n_head": 8}
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": VOCAB, "n_positions": 64}))
    count = D * (VOCAB + 12 * 2 * D)
    for large, without in ((count, False), (count - 1, True)):
        monkeypatch.setattr(huggingface, "LARGE", large)
        assert bool(load(str(tmp_path), None).laws) is without
    assert not load(str(tmp_path), False).laws


@pytest.mark.parametrize("target", [nn.Linear(4, 4), Subject(nn.Linear(4, 4))])
def test_a_module_that_is_there_is_refused(target: Any) -> None:
    with pytest.raises(UsageError, match=r"--engine weightless: this module has its weights already; give the class"):
        load(target)
    assert load(target, None, vocab_size=4).module is not None


def test_the_random_state_is_put_back_and_seeds_small_parameters(path: Callable[[str], str]) -> None:
    torch.manual_seed(11)
    random.seed(11)
    states = torch.get_rng_state(), random.getstate()
    one, two, other = load(path("Model"), seed=1), load(path("Model"), seed=1), load(path("Model"), seed=2)
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    biases = [subject.module.qkv.bias for subject in (one, two, other) if subject.module is not None]
    assert torch.equal(biases[0], biases[1]) and not torch.equal(biases[0], biases[2])


def test_what_could_not_be_recorded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "LAWLESS", 0)

    def build() -> nn.Module:
        layers = nn.Sequential(nn.Embedding(VOCAB, D), *(nn.Linear(D, D) for _ in range(3)), nn.Linear(D, VOCAB))
        nn.init.orthogonal_(layers[1].weight)
        with torch.no_grad():
            layers[2].weight.copy_(torch.randn(D, D).cumsum(0))
        layers[3] = copy.deepcopy(layers[2])
        return layers

    subject = load(build)
    assert set(subject.laws) == {"0.weight", "4.weight"}
    assert set(subject.unrecorded) == {"1.weight", "2.weight", "3.weight"}
    assert subject.unrecorded["1.weight"] == "nn.init.orthogonal_"
    assert "cumsum" in subject.unrecorded["2.weight"]
    with pytest.raises(RunError) as error:
        check(build, settings=Settings(engine="weightless"), overrides=["tokens.length=8"])
    said = str(error.value)
    assert "'1.weight'" in said and "nn.init.orthogonal_" in said and "\n" not in said
    assert "--scheme" in said and "--engine dense" in said


def test_all_orthogonal_layers_are_real_whenever_they_are_made() -> None:
    """A function of nn.init draws other matrices on its way once its tensor is real, which may not shift the others."""

    def build() -> nn.Module:
        layers: list[nn.Module] = [nn.Embedding(VOCAB, D)]
        for _ in range(5):
            layers += [nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)]
            nn.init.orthogonal_(layers[-1].weight)  # type: ignore[arg-type]
        return nn.Sequential(*layers, nn.Linear(D, VOCAB))

    subject = load(build)
    assert subject.unrecorded == {} and subject.module is not None
    assert set(subject.laws) == without_memory(subject) == {f"{at}.weight" for at in (0, 1, 3, 5, 7, 9, 11)}
    for at in (2, 4, 6, 8, 10):
        weight = subject.module[at].weight.detach()
        assert torch.allclose(weight @ weight.T, torch.eye(D), atol=1e-5)


def test_no_more_than_so_much_is_real_for_want_of_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "LAWLESS", D * D)

    def build() -> nn.Module:
        layers = nn.Sequential(nn.Embedding(VOCAB, D), *(nn.Linear(D, D, bias=False) for _ in range(6)))
        for layer in layers[1:]:
            nn.init.orthogonal_(layer.weight)  # type: ignore[arg-type]
        return layers

    subject = load(build, vocab_size=VOCAB)
    assert len(subject.unrecorded) == 5 and len(without_memory(subject)) == 6


# --- whom auto builds without its weights, and takes them for after all


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Subject]:
    """Load as `check` does, any model taken for a large one; `free` bytes of memory, and weights that take long."""

    def loaded(target: Any, free: int, slow: bool = True, engine: str | None = None, **given: Any) -> Subject:
        monkeypatch.setattr(loading, "LARGE_BUILD", 0)
        monkeypatch.setattr(choose, "available", lambda device: free)
        monkeypatch.setattr(choose, "costs", lambda shapes, tokens: (9.0, 1.0) if slow else (1.0, 1.0))
        return case.load_module(target, Request(settings=Settings(engine=engine), **given))

    return loaded


@pytest.mark.parametrize("engine", [None, "auto"])
def test_auto_looks_at_memory_and_time(
    engine: str | None, auto: Callable[..., Subject], path: Callable[[str], str]
) -> None:
    assert auto(path("Model"), 2**40, slow=True, engine=engine).laws
    assert not auto(path("Model"), 2**40, slow=False, engine=engine).laws
    assert auto(path("Model"), 2**20, slow=False, engine=engine).laws
    assert not auto(path("Model"), 2**20, engine="dense").laws
    assert auto(path("Model"), 2**40, slow=False, engine="weightless").laws


def test_auto_takes_real_weights_where_a_law_is_missing(
    auto: Callable[..., Subject], path: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before there was another engine, such a module ran; so it must run still."""
    monkeypatch.setattr(lean, "LAWLESS", 0)
    subject = auto(path("Orthogonal"), 2**40)
    assert not subject.laws and not subject.unrecorded and without_memory(subject) == set()
    assert auto(path("Orthogonal"), 2**20).unrecorded  # no memory for it: an error that names the parameter follows
    assert auto(path("Orthogonal"), 2**40, scheme="scaled").laws  # a scheme draws it
    assert auto(path("Orthogonal"), 2**40, engine="weightless").unrecorded


def test_auto_takes_real_weights_where_init_code_reads_them(
    auto: Callable[..., Subject], path: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, "ROOM", 0)
    subject = auto(path("Reads"), 2**40)
    assert not subject.laws and without_memory(subject) == set()
    with pytest.raises(RunError, match=r"reads entries of a large parameter.*model\.py:\d+"):
        auto(path("Reads"), 2**40, engine="weightless")


def test_a_subject_of_its_own_stays_as_it_is(auto: Callable[..., Subject]) -> None:
    module = nn.Sequential(nn.Embedding(VOCAB, D), nn.Linear(D, VOCAB))
    given = replace(Subject(module), name="mine")
    assert auto(given, 2**20).module is module
