"""A Hugging Face config, predicted without its class."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import initdiag

GPT2 = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 3, "vocab_size": 900, "n_embd": 128}
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 344,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 900,
    "initializer_range": 0.03,
}


def written(path: Path, config: dict[str, Any]) -> str:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    return str(path)


@pytest.mark.parametrize(("config", "std"), [({**GPT2, "n_head": 4}, 0.02), (LLAMA, 0.03)], ids=["gpt2", "llama"])
def test_it_is_what_the_class_does(tmp_path: Path, config: dict[str, Any], std: float) -> None:
    target = written(tmp_path / "model", config)
    predicted, checked = initdiag.predict(target).run, initdiag.check(target).run
    assert predicted.measured.positions[0].std == pytest.approx(std * math.sqrt(128), rel=0.01)  # eps
    # one seed of 900 tokens: √(1/2V) of the logit std if all tokens are alike
    assert checked.measured.logits.std == pytest.approx(predicted.measured.logits.std, rel=6 * math.sqrt(1 / 1800))
    for foreseen, expected in zip(
        predicted.measured.residual.branches, checked.expected.branches.values(), strict=True
    ):
        assert foreseen.branch_variance == pytest.approx(expected.branch_variance, rel=1e-3)


def test_overrides_scheme_and_vary_are_about_the_translation(tmp_path: Path) -> None:
    target, short = written(tmp_path / "model", LLAMA), ["tokens.length=32"]
    assert initdiag.predict(target, overrides=["init.std=0.06", *short]).run.measured.positions[0].std == pytest.approx(
        0.06 * math.sqrt(128), rel=0.01
    )
    assert initdiag.predict(target, scheme="wang", overrides=short).run.scheme == "wang"
    assert len(initdiag.vary(target, "n_layers", [2, 4], overrides=short).runs) == 2
    assert (
        initdiag.predict(target, kwargs={"num_hidden_layers": 5}, overrides=short).run.subject.architecture.n_layers
        == 5
    )


def test_families_that_are_not_known_are_refused(tmp_path: Path) -> None:
    bert = written(tmp_path / "bert", {"model_type": "bert", "architectures": ["BertForMaskedLM"], "vocab_size": 90})
    with pytest.raises(initdiag.UsageError, match="no architecture for model_type 'bert', a family that isn't known"):
        initdiag.predict(bert)
    odd = written(tmp_path / "odd", {**LLAMA, "hidden_act": "relu6"})
    with pytest.raises(initdiag.UsageError, match="'llama', a variant of it that isn't known"):
        initdiag.predict(odd)


def test_findings_point_into_the_file_and_advice_says_whose_keys_it_has(tmp_path: Path) -> None:
    target = written(tmp_path / "hot", {**GPT2, "n_head": 4, "initializer_range": 0.3})
    report = initdiag.predict(target)
    hot = next(one for one in report.run.findings if one.rule == "LOGIT001")
    assert str(hot.location).startswith(f"{target}/config.json:1:") and hot.location != report.run.subject.locate(
        "model"
    )
    assert "initializer_range of config.json" in " ".join(str(report).split())
    (first, *_) = report.run.advice
    (line,) = first.lines
    key, _, std = line.partition(": ")
    assert key == "init.std" and not first.left
    again = initdiag.predict(target, kwargs={"initializer_range": float(std)})
    assert again.verdict == "pass" and "keys are" not in str(again)
    given = initdiag.predict(target, kwargs={"initializer_range": 0.4}).run
    assert str(next(one.location for one in given.findings if one.rule == "LOGIT001")) == "--kwargs initializer_range"


def test_a_json_that_is_no_yaml_has_places_too(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "tabs", GPT2)) / "config.json"
    path.write_text(json.dumps({**GPT2, "n_head": 4, "initializer_range": 0.3}, indent="\t"))
    hot = next(one for one in initdiag.predict(str(path)).run.findings if one.rule == "LOGIT001")
    assert str(hot.location).startswith(f"{path}:")
