"""A Hugging Face config.json: its class, what it promises, and what can be wrong with it. Nothing is downloaded."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from initdiag.errors import InitdiagError, RunError, UsageError
from initdiag.subjects.huggingface import load_hf
from initdiag.subjects.subject import Declared

pytest.importorskip("transformers")

from initdiag.subjects.calling import call
from initdiag.subjects.guard import unchanged
from initdiag.subjects.module import from_module
from initdiag.subjects.quiet import import_transformers
from initdiag.subjects.targets import is_hf_config

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import_transformers()

GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 77}
USUAL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 77,
}
T5 = {"model_type": "t5", "d_model": 32, "num_layers": 2, "num_heads": 2, "d_ff": 64, "d_kv": 16, "vocab_size": 77}
BART = {
    "model_type": "bart",
    "d_model": 32,
    "vocab_size": 77,
    **{
        f"{side}_{key}": value
        for side in ("encoder", "decoder")
        for key, value in (("layers", 2), ("attention_heads", 2), ("ffn_dim", 64))
    },
}
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes a config.json into tmp_path/tiny, where the test runs; no socket opens."""
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path / "tiny")
    monkeypatch.setattr(socket, "socket", lambda *args, **kwargs: pytest.fail("the network was asked"))

    def write(config: Any, **more: Any) -> Path:
        path = Path("config.json")
        path.write_text(config if isinstance(config, str) else json.dumps({**config, **more}, indent=1))
        return path

    return write


def sentence(path: Path, build: bool = False, **options: Any) -> str:
    with pytest.raises(InitdiagError) as caught:
        made = load_hf(path, **options).build
        assert build, "nothing was wrong"
        made()
    assert "\n" not in str(caught.value)
    return str(caught.value)


FAMILIES: list[tuple[dict[str, Any], str, Declared, str, bool]] = [
    (GPT2, "GPT2LMHeadModel", Declared(0.02, True, True, True, 1024, False), "labels", False),
    (
        {"model_type": "llama", "initializer_range": 0.01, **USUAL},
        "LlamaForCausalLM",
        Declared(0.01, False, True, None, 2048, False),
        "labels",
        False,
    ),
    (
        {"model_type": "gemma", "head_dim": 16, **USUAL},
        "GemmaForCausalLM",
        Declared(0.02, True, True, None, 8192, True),
        "labels",
        False,
    ),
    (
        {"model_type": "granite", "embedding_multiplier": 12.0, **USUAL},
        "GraniteForCausalLM",
        Declared(0.02, False, True, None, 2048, True),
        "labels",
        False,
    ),
    (
        {"model_type": "bloom", "n_layer": 2, "n_head": 2, "hidden_size": 32, "vocab_size": 77},
        "BloomForCausalLM",
        Declared(0.02, True, True, None, None, True),
        "labels",
        False,
    ),
    ({"model_type": "bert", **USUAL}, "BertForMaskedLM", Declared(0.02, True, False, None, 512, True), "labels", False),
    (
        {"model_type": "bert", "is_decoder": True, **USUAL},
        "BertLMHeadModel",
        Declared(0.02, True, True, None, 512, True),
        "labels",
        False,
    ),
    (
        {"model_type": "bert", "architectures": ["BertLMHeadModel"], **USUAL},  # promises to be causal, and isn't
        "BertLMHeadModel",
        Declared(0.02, True, True, None, 512, True),
        "labels",
        False,
    ),
    (  # positions begin after the padding id, 1
        {"model_type": "roberta", "max_position_embeddings": 514, **USUAL},
        "RobertaForMaskedLM",
        Declared(0.02, True, False, None, 512, True),
        "labels",
        False,
    ),
    (T5, "T5ForConditionalGeneration", Declared(None, True, True, None, None, False), "labels", True),
    (BART, "BartForConditionalGeneration", Declared(0.02, True, True, None, 1024, True), "labels", True),
    (
        {"model_type": "xlnet", "d_model": 32, "n_layer": 2, "n_head": 2, "d_inner": 64, "vocab_size": 77},
        "XLNetLMHeadModel",
        Declared(0.02, True, False, None, None, False),
        "labels",
        False,
    ),
    (
        {"model_type": "gemma3", "text_config": {"head_dim": 16, **USUAL}},
        "Gemma3ForConditionalGeneration",
        Declared(0.02, True, True, None, 131072, True),
        "labels",
        False,
    ),
]


@pytest.mark.parametrize(
    ("config", "cls", "declared", "argument", "shifted"),
    FAMILIES,
    ids=[f"{f[0]['model_type']}-{f[1]}" for f in FAMILIES],
)
def test_a_config_is_built_and_called(
    config: dict[str, Any],
    cls: str,
    declared: Declared,
    argument: str,
    shifted: bool,
    write: Write,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a word on stdout, stderr or in the log; warnings are errors here."""
    if config["model_type"] == "gemma3":
        config = {
            **config,
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
            },
        }
    read = load_hf(write(config))
    name, vocab_size, found, build = read.name, read.vocab_size, read.declared, read.build
    assert (name, vocab_size, found) == ("tiny", 77, declared)
    module = build()
    assert type(module).__name__ == cls
    assert next(module.parameters()).dtype is torch.float32
    subject = from_module(module, name=name)
    assert (subject.vocab_size, subject.declared) == (77, declared)
    ids = torch.randint(3, 77, (2, 6), generator=torch.Generator().manual_seed(0))
    with unchanged(module, grad=False):
        outcome = call(subject, module, ids, ids.roll(-1, 1))
        plain = call(subject, module, ids)
    assert outcome.logits.shape == (2, 6, 77)
    assert torch.equal(outcome.logits, plain.logits)
    assert outcome.loss is not None
    assert (outcome.argument, outcome.shifted, plain.argument) == (argument, shifted, "")
    if found.causal and argument == "labels":
        logits, targets = (outcome.logits, ids.roll(-1, 1)) if shifted else (outcome.logits[:, :-1], ids[:, 1:])
        entropy = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        assert outcome.loss.item() == pytest.approx(entropy.item(), rel=1e-5)
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_what_is_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "named.json").write_text('{"architectures": ["X"]}')
    (tmp_path / "other.json").write_text('{"model": "gpt2"}')
    (tmp_path / "broken.json").write_text('{"model_type": ')
    (tmp_path / "config.yaml").write_text('"model_type": "gpt2"')
    (tmp_path / "empty").mkdir()
    names = ["", "config.json", "named.json", "broken.json", "other.json", "config.yaml", "empty", "nowhere.json"]
    assert [is_hf_config(tmp_path / name) for name in names] == [True] * 4 + [False] * 4
    assert is_hf_config(str(tmp_path))


def test_names_and_dtypes(write: Write) -> None:
    path = write(GPT2, torch_dtype="bfloat16", quantization_config={"quant_method": "fp8"})
    assert next(load_hf(path).build().parameters()).dtype is torch.float32
    path.rename("mine.json")
    assert load_hf("mine.json").name == "mine"
    path = write(GPT2)
    assert load_hf(".").name == "tiny"


def test_building_twice_is_possible_and_on_the_default_device(write: Write) -> None:
    build = load_hf(write(GPT2)).build
    build()
    with torch.device("meta"):
        assert next(build().parameters()).is_meta


def test_fields_in_place_of_the_file_s(write: Write) -> None:
    path = write(GPT2)
    assert len(load_hf(path, kwargs={"num_hidden_layers": 1}).build().transformer.h) == 1  # by its other name
    found = load_hf(path, kwargs={"vocab_size": 90, "initializer_range": 0.5})
    assert found.vocab_size == 90
    assert found.declared == Declared(0.5, True, True, True, 1024, False)
    assert (
        sentence(path, kwargs={"n_layers": 1}) == "--kwargs: a gpt2 config has no 'n_layers' (did you mean 'n_layer'?)"
    )
    assert sentence(path, kwargs={"n_layer": "x"}) == "--kwargs: n_layer: expected int, got str (value: 'x')"
    path = write({**{key: value for key, value in GPT2.items() if key != "n_layer"}, "num_hidden_layers": 2})
    assert len(load_hf(path, kwargs={"n_layer": 1}).build().transformer.h) == 1
    layers = ["sliding_attention", "full_attention"]
    path = write({"model_type": "gemma3_text", "head_dim": 16, "layer_types": layers, **USUAL})
    assert len(load_hf(path, kwargs={"num_hidden_layers": 1}).build().model.layers) == 1
    path = write({"model_type": "gemma3", "text_config": {"head_dim": 16, **USUAL}})
    assert load_hf(path, kwargs={"text_config": {"vocab_size": 99}}).vocab_size == 99


def test_a_tie_that_nobody_wrote_and_no_code_makes(write: Write) -> None:
    path = write({"model_type": "ctrl", "n_embd": 32, "n_layer": 1, "n_head": 2, "dff": 64, "vocab_size": 77})
    assert load_hf(path).declared.tied is True


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ('{"model_type": "gpt2",\n "n_layer": 2,,}', "config.json:2:15: not JSON: Expecting property name enclosed in"),
        ("[1, 2]", 'config.json: found a list, expected a mapping with "model_type"'),
        ('{"architectures": ["X"]}', 'config.json has no "model_type"; expected one that transformers '),
        ('{"model_type": "gtp2"}', "config.json:1:2: transformers "),
        ('{"model_type": 3}', "config.json:1:2: transformers "),
        (
            '{"model_type": "gpt2",\n "n_layer": "three"}',
            "config.json:2:2: n_layer: expected int, got str (value: 'three')",
        ),
        (
            '{"model_type": "llama", "hidden_size": 65}',
            "config.json: The hidden size (65) is not a multiple of the number of attention heads (32).",
        ),
        (
            '{"model_type": "llama", "rope_scaling": {"rope_type": "yarn"}}',
            "config.json: Missing required keys in `rope_parameters` for 'rope_type'='yarn': {'factor'}",
        ),
        (
            '{"model_type": "vit"}',
            "config.json has model_type vit, which reads no token ids alone; expected a causal, masked or "
            "sequence-to-sequence language model, such as gpt2, bert or t5",
        ),
        (
            '{"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"]}',
            "config.json is for WhisperForConditionalGeneration, which reads no token ids alone; expected a causal",
        ),
        ('{"model_type": "clip"}', "config.json has model_type clip, which reads no token ids alone; expected"),
        ('{"model_type": "llava"}', "config.json has model_type llava, which reads no token ids alone; expected"),
    ],
)
def test_configs_that_are_no_language_model(config: str, expected: str, write: Write) -> None:
    told = sentence(write(config))
    assert told.startswith(expected)
    if "gtp2" in config:
        assert told.endswith("has no model_type 'gtp2' (did you mean 'gpt2'?)")
    if "llava" in config:
        assert told.endswith("its text part is one (llama): save its text_config as a config.json of its own")
    assert "clip_text" not in told


def test_files_that_cannot_be_read(write: Write) -> None:
    assert sentence(Path("nowhere.json")) == "nowhere.json: No such file or directory"
    Path("config.json").write_bytes(b'{"model_type": "\xff"}')
    assert sentence(Path("config.json")) == "config.json: byte 16 is not UTF-8 text"
    assert sentence(write("[" * 100_000)).startswith("config.json: nested too deeply to be a config")


def test_a_class_that_refuses_its_config(write: Write) -> None:
    told = sentence(write(GPT2, n_head=5), build=True)
    assert told.startswith(
        "config.json: GPT2LMHeadModel can't be built from it: ValueError: `embed_dim` must be divisible"
    )
    assert "modeling_gpt2.py:" in told
    with pytest.raises(RunError):
        load_hf("config.json").build()


CODE = """
from transformers import GPT2Config, GPT2LMHeadModel
print("running")
class MyConfig(GPT2Config):
    model_type = "mine"
class MyModel(GPT2LMHeadModel):
    config_class = MyConfig
open("ran", "w").close()
"""
REMOTE = {
    **GPT2,
    "model_type": "mine",
    "auto_map": {"AutoConfig": "code.MyConfig", "AutoModelForCausalLM": "code.MyModel"},
}


def test_remote_code_is_never_run_unless_trusted(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    import transformers.dynamic_module_utils

    monkeypatch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = {
        **REMOTE,
        "auto_map": {key: value.replace("code.", "my_code.") for key, value in REMOTE["auto_map"].items()},
    }
    path = write(config)
    Path("my_code.py").write_text(CODE)
    assert sentence(path) == (
        "config.json:7:2: this model runs code that comes with it (my_code.MyConfig); read it, then allow it with "
        "--trust-remote-code, or remove auto_map where transformers' own class will do"
    )
    nested = write({"model_type": "gemma3", "text_config": {"auto_map": {"AutoModel": "evil.Code"}, **USUAL}})
    assert "runs code that comes with it (evil.Code)" in sentence(nested)
    assert not Path("ran").exists()
    read = load_hf(write(config), trust_remote_code=True, kwargs={"n_layer": 1})
    name, vocab_size, declared, build = read.name, read.vocab_size, read.declared, read.build
    module = build()
    assert Path("ran").exists()
    assert (name, vocab_size, declared.std, type(module).__name__, len(module.transformer.h)) == (
        "tiny",
        77,
        0.02,
        "MyModel",
        1,
    )
    assert capfd.readouterr() == ("", "")


def test_the_switches_of_transformers_are_as_they_were(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    logger = logging.getLogger("transformers")
    monkeypatch.setattr(logger, "level", logging.INFO)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    before = (dict(os.environ), logger.level, huggingface_hub.constants.HF_HUB_OFFLINE, list(warnings.filters))
    load_hf(write(GPT2)).build()
    sentence(write(GPT2, n_layer="x"))
    assert (dict(os.environ), logger.level, huggingface_hub.constants.HF_HUB_OFFLINE, list(warnings.filters)) == before


def test_without_transformers_and_without_torch(write: Write) -> None:
    """What is wrong with the file is told before either is imported."""
    path = write(GPT2).resolve()
    Path("bad.json").write_text('{"auto_map": {"AutoConfig": "a.B"}}')
    code = (
        "import sys\nsys.modules['transformers'] = None\n"
        "from initdiag.subjects.huggingface import load_hf\n"
        "from initdiag.subjects.targets import is_hf_config\n"
        f"assert is_hf_config({str(path)!r})\n"
        f"for name in ({str(path)!r}, {str(Path('bad.json').resolve())!r}):\n"
        "    try: load_hf(name)\n    except Exception as e: print(type(e).__name__, e)\n"
        "assert 'torch' not in sys.modules"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, env={"PYTHONPATH": root}
    )
    lines = done.stdout.splitlines()
    assert not done.stderr
    assert lines[0].endswith("config.json needs transformers: pip install 'initdiag[hf]'")
    assert "--trust-remote-code" in lines[1]
    assert all(line.startswith(UsageError.__name__) for line in lines)
