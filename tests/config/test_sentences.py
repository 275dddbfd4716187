"""The exact sentence for every way in which a config can be wrong, with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from initdiag.config import load
from initdiag.model.sections import RotaryScaling
from initdiag.schemes import SCHEMES

Lines = Callable[..., list[str]]

MODEL = "model:\n  vocab_size: 512\n  context: 128\n  d_model: 64\n  n_layers: 2\n  n_heads: 4\n"


SCALING = "{factor: 8, low: 1, high: 4, context: 64}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MODEL.replace("4", "'4'", 1).replace("6'4'", "64").replace("n_heads: 4", "n_heads: '12'"),
         "a.yaml:6:3: model.n_heads: found '12' (a string), expected a whole number"),
        (MODEL.replace("128", "1e3"),
         "a.yaml:3:3: model.context: found 1000.0 (a number with a decimal point or an exponent), "
         "expected a whole number (write 1000)"),
        (MODEL.replace("128", "1.5"),
         "a.yaml:3:3: model.context: found 1.5 (a number with a decimal point or an exponent), expected a "
         "whole number"),
        (MODEL.replace("128", "true"), "a.yaml:3:3: model.context: found true (a boolean), expected a whole number"),
        (MODEL.replace("128", ""), "a.yaml:3:3: model.context: found nothing (null), expected a whole number"),
        (MODEL.replace("128", "[1, 2]"), "a.yaml:3:3: model.context: found [1, 2] (a list), expected a whole number"),
        (MODEL.replace("128", "{a: 1}"),
         "a.yaml:3:3: model.context: found {'a': 1} (a mapping), expected a whole number"),
        (MODEL.replace("128", "0"), "a.yaml:3:3: model.context: found 0, expected at least 1"),
        (MODEL + "  eps: 0\n", "a.yaml:7:3: model.eps: found 0, expected more than 0"),
        (MODEL + "  eps: 1\n", "a.yaml:7:3: model.eps: found 1, expected less than 1"),
        (MODEL + "  eps: .inf\n", "a.yaml:7:3: model.eps: found .inf, expected a finite number"),
        (MODEL + "  eps: .nan\n", "a.yaml:7:3: model.eps: found .nan, expected a finite number"),
        (MODEL + "  eps: small\n", "a.yaml:7:3: model.eps: found 'small' (a string), expected a number"),
        (MODEL + "  tied: yes\n",
         "a.yaml:7:3: model.tied: found 'yes' (a string), expected true or false (write true)"),
        (MODEL + "  tied: 1\n", "a.yaml:7:3: model.tied: found 1 (a whole number), expected true or false"),
        (MODEL + "  norm: layernrm\n",
         "a.yaml:7:3: model.norm: found 'layernrm', expected one of layernorm, rmsnorm (did you mean 'layernorm'?)"),
        (MODEL + "  norm: 3\n", "a.yaml:7:3: model.norm: found 3 (a whole number), expected one of layernorm, rmsnorm"),
        (MODEL + "  n_head: 4\n", "a.yaml:7:3: model.n_head: unknown key (did you mean 'n_heads'?)"),
        (MODEL + "  length: 4\n", "a.yaml:7:3: model.length: unknown key here, expected tokens.length"),
        (MODEL + "init:\n  xyz: 4\n",
         "a.yaml:8:3: init.xyz: unknown key, expected one of scheme, std, seed, roles"),
        ("seed: 1\n" + MODEL, "a.yaml:1:1: seed: unknown key here, expected init.seed or tokens.seed"),
        (MODEL + "ini:\n  std: 1\n", "a.yaml:7:1: ini: unknown key (did you mean 'init'?)"),
        (MODEL + "zzz: 1\n", "a.yaml:7:1: zzz: unknown key, expected one of about, model, init, tokens, gate"),
        ("init: {seed: 1}\n",
         "a.yaml:1:1: model: not found, expected a section with vocab_size, context, d_model, n_layers, n_heads"),
        ("init: {seed: 1}\n" + MODEL.replace("  context: 128\n", ""),
         "a.yaml:2:1: model.context: not found, expected a whole number: "
         "the longest sequence that the model takes, in tokens"),
        ("model: 3\n",
         "a.yaml:1:1: model: found 3 (a whole number), expected a section with keys such as vocab_size, "
         "context, d_model"),
        (MODEL + "gate:\n",
         "a.yaml:7:1: gate: found nothing (null), expected a section with keys such as max_excess, max_logit_std, "
         "warn_logit_std, or no such key at all"),
        (MODEL + "gate:\n  ignore: A\n",
         "a.yaml:8:3: gate.ignore: found 'A' (a string), expected a list of strings, such as [A, B]"),
        (MODEL + "gate:\n  select: [A, 1]\n",
         "a.yaml:8:15: gate.select[1]: found 1 (a whole number), expected a string"),
        (MODEL + "gate:\n  min_attention_entropy: 2\n",
         "a.yaml:8:3: gate.min_attention_entropy: found 2, expected at most 1"),
        (MODEL + "init:\n  seed: 9223372036854775808\n",
         "a.yaml:8:3: init.seed: found 9223372036854775808, expected less than 9223372036854775808"),
        (MODEL + "tokens:\n  source: text\n  path: 3\n",
         "a.yaml:9:3: tokens.path: found 3 (a whole number), expected a string"),
        (MODEL + "init:\n  scheme: gtp2\n",
         f"a.yaml:8:3: init.scheme: found 'gtp2', expected one of the {len(SCHEMES)} that 'initdiag scheme' lists "
         "(did you mean 'gpt2'?)"),
        (MODEL + "init:\n  scheme: default\n  std: 0.02\n",
         "a.yaml:9:3: init.std: scheme 'default' has no parameters, expected none"),
        (MODEL + "init:\n  scheme: gpt2\n  residual_std: 0.02\n",
         "a.yaml:9:3: init.residual_std: scheme 'gpt2' has no such parameter, expected one of std"),
        (MODEL + "tokens:\n  length: 129\n",
         "a.yaml:8:3: tokens.length: found 129, expected at most the model's context, 128"),
        (MODEL + "tokens:\n  batch: 3\n  source: text\n",
         "a.yaml:9:3: tokens.path: not found, expected a text file, as the source is text"),
        (MODEL + "tokens:\n  source: file\n",
         "a.yaml:8:3: tokens.path: not found, expected a .bin or .npy file, as the source is file"),
        (MODEL + "tokens:\n  path: x.txt\n",
         "a.yaml:8:3: tokens.path: found 'x.txt', expected source text or file with it; the source is random"),
        (MODEL + "tokens:\n  source: file\n  path: x\n  tokenizer: t.json\n",
         "a.yaml:10:3: tokens.tokenizer: found 't.json', expected source text with it; the source is file"),
        (MODEL + "tokens:\n  source: text\n  path: x\n  dtype: uint16\n",
         "a.yaml:10:3: tokens.dtype: found 'uint16', expected source file with it; the source is text"),
        (MODEL + "tokens:\n  source: text\n  path: ''\n",
         "a.yaml:9:3: tokens.path: found '', expected the name of a file"),
        (MODEL.replace("n_heads: 4", "n_heads: 5"),
         "a.yaml:6:3: model.n_heads: 5 does not divide d_model 64; expected a divisor of it, or a head_dim"),
        (MODEL + "  n_kv_heads: 3\n",
         "a.yaml:7:3: model.n_kv_heads: 3 does not divide n_heads 4; expected a divisor of it"),
        (MODEL + "  position: rotary\n  head_dim: 3\n",
         "a.yaml:7:3: model.position: rotary turns pairs of features; expected an even head_dim, found 3"),
        (MODEL + "  rotary_base: 500000\n",
         "a.yaml:7:3: model.rotary_base: found 500000 with position learned, expected position rotary, or no "
         "rotary_base"),
        (MODEL + "  position: rotary\n  rotary_base: 1\n",
         "a.yaml:8:3: model.rotary_base: found 1, expected more than 1"),
        (MODEL + "  position: rotary\n  rotary_base: x\n",
         "a.yaml:8:3: model.rotary_base: found 'x' (a string), expected a number"),
        (MODEL + f"  rotary_scaling: {SCALING}\n",
         "a.yaml:7:3: model.rotary_scaling: found with position learned, expected position rotary, or no "
         "rotary_scaling"),
        (MODEL + f"  rotary_scaling: {SCALING}\n  position: none\n",
         "a.yaml:7:3: model.rotary_scaling: found with position none, expected position rotary, or no rotary_scaling"),
        (MODEL + f"  position: rotary\n  rotary_scaling: {SCALING.replace('4', '1')}\n",
         "a.yaml:8:31: model.rotary_scaling.low: found 1, expected less than rotary_scaling.high, 1"),
        (MODEL + "  position: rotary\n  rotary_scaling:\n    factor: 8\n    low: 4.5\n    high: 4\n    context: 64\n",
         "a.yaml:10:5: model.rotary_scaling.low: found 4.5, expected less than rotary_scaling.high, 4"),
        (MODEL + f"  position: rotary\n  rotary_scaling: {SCALING.replace('8', '0.5')}\n",
         "a.yaml:8:20: model.rotary_scaling.factor: found 0.5, expected at least 1"),
        (MODEL + f"  position: rotary\n  rotary_scaling: {SCALING.replace('1', '0')}\n",
         "a.yaml:8:31: model.rotary_scaling.low: found 0, expected more than 0"),
        (MODEL + f"  position: rotary\n  rotary_scaling: {SCALING.replace('1', '.inf')}\n",
         "a.yaml:8:31: model.rotary_scaling.low: found .inf, expected a finite number"),
        (MODEL + f"  position: rotary\n  rotary_scaling: {SCALING.replace('low: 1, high: 4', 'low: true, high: 3')}\n",
         "a.yaml:8:31: model.rotary_scaling.low: found true (a boolean), expected a number"),
        (MODEL + f"  position: rotary\n  rotary_scaling: {SCALING.replace('64', '1e3')}\n",
         "a.yaml:8:48: model.rotary_scaling.context: found 1000.0 (a number with a decimal point or an exponent), "
         "expected a whole number (write 1000)"),
        (MODEL + f"  position: rotary\n  rotary_scaling: {SCALING.replace('}', ', contxt: 9}')}\n",
         "a.yaml:8:61: model.rotary_scaling.contxt: unknown key (did you mean 'context'?)"),
        (MODEL + f"  position: rotary\n  rotary_scaling: {SCALING.replace('{', '{zzz: 1, ')}\n",
         "a.yaml:8:20: model.rotary_scaling.zzz: unknown key, expected one of kind, factor, low, high, "
         "context, rounded"),
        (MODEL + f"  position: rotary\n  rotary_scaling: {SCALING.replace('{', '{rotary_base: 1, ')}\n",
         "a.yaml:8:20: model.rotary_scaling.rotary_base: unknown key here, expected model.rotary_base"),
        (MODEL + f"  position: rotary\n  rotary_scaling: {SCALING.replace(', context: 64', '')}\n",
         "a.yaml:8:3: model.rotary_scaling.context: not found, expected a whole number: the context before the "
         "scaling (llama3)"),
        (MODEL + "  position: rotary\n  rotary_scaling: llama3\n",
         "a.yaml:8:3: model.rotary_scaling: found 'llama3' (a string), expected a section with keys such as kind, "
         "factor, low"),
        (MODEL + "  position: rotary\n  rotary_scaling: {low: {a: 1}, factor: 8, high: 4, context: 64}\n",
         "a.yaml:8:20: model.rotary_scaling.low: found {'a': 1} (a mapping), expected a number"),
        (MODEL + f"  position: rope\n  rotary_scaling: {SCALING}\n",
         "a.yaml:7:3: model.position: found 'rope', expected one of learned, sinusoidal, rotary, alibi, none "
         "(here it is rotary)"),
    ],
)  # fmt: skip
def test_one_sentence(problems: Lines, text: str, expected: str) -> None:
    assert problems(text) == [expected]


def test_the_bounds_themselves_are_allowed(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "tokens: {length: 128, batch: 65536}\ngate: {min_attention_entropy: 1}\n")
    assert load("a.yaml").config.length == 128


def test_the_fields_of_rotary_positions(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "  position: rotary\n  rotary_base: 5e5\n  rotary_scaling: " + SCALING + "\n")
    model = load("a.yaml").config.model
    assert (model.rotary_base, model.rotary_scaling) == (500_000, RotaryScaling(factor=8, low=1, high=4, context=64))
    assert hash(model) == hash(model.model_copy())
    Path("a.yaml").write_text(MODEL + "  rotary_base: 10000\n  rotary_scaling: null\n")
    assert load("a.yaml").config.model.rotary_scaling is None, "defaults may stand anywhere"


def test_all_problems_come_at_once_in_the_order_of_the_file(problems: Lines) -> None:
    text = (
        MODEL.replace("n_heads: 4", "n_heads: 5").replace("context: 128", "context: x")
        + "tokens:\n  source: text\n  length: 0\ninit:\n  scheme: none\n"
    )
    assert [line.split(": ")[:2] for line in problems(text)] == [
        ["a.yaml:3:3", "model.context"],
        ["a.yaml:6:3", "model.n_heads"],
        ["a.yaml:8:3", "tokens.path"],
        ["a.yaml:9:3", "tokens.length"],
        ["a.yaml:11:3", "init.scheme"],
    ]


def test_long_values_and_keys_are_cut(problems: Lines) -> None:
    value = "x" * 100_000
    (line,) = problems(MODEL + f"  norm: {value}\n")
    assert line == f"a.yaml:7:3: model.norm: found '{'x' * 60}'…, expected one of layernorm, rmsnorm"
    (line,) = problems(MODEL + f'  "{value[:1000]}\\n": 1\n')
    assert line.startswith(f"a.yaml:7:3: model.{'x' * 39}…: unknown key, expected one of")
    (line,) = problems(MODEL + f"  context: [{'[' * 30}{']' * 30}, {value}]\n".replace("context", "d_ff"))
    assert len(line) < 200


def test_a_value_stays_on_one_line(problems: Lines) -> None:
    (line,) = problems(MODEL + '  norm: "a\\nb\\x1b[31m"\n')
    assert line == r"a.yaml:7:3: model.norm: found 'a\nb\x1b[31m', expected one of layernorm, rmsnorm"


def test_a_merged_value_is_reported_where_it_is_written(problems: Lines) -> None:
    text = "model: &base\n  vocab_size: 512\n" + MODEL.split("512\n")[1] + "init:\n  <<: {std: -1}\n  seed: 1\n"
    assert problems(text) == ["a.yaml:8:8: init.std: found -1, expected more than 0"]
