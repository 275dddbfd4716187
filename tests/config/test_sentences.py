"""The exact sentence for every way in which a config can be wrong, with its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from initdiag.config import load

Lines = Callable[..., list[str]]

MODEL = "model:\n  vocab_size: 512\n  context: 128\n  d_model: 64\n  n_layers: 2\n  n_heads: 4\n"


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
         "a.yaml:8:3: init.xyz: unknown key, expected one of scheme, std, residual_std, seed"),
        ("seed: 1\n" + MODEL, "a.yaml:1:1: seed: unknown key here, expected init.seed or tokens.seed"),
        (MODEL + "ini:\n  std: 1\n", "a.yaml:7:1: ini: unknown key (did you mean 'init'?)"),
        (MODEL + "zzz: 1\n", "a.yaml:7:1: zzz: unknown key, expected one of model, init, tokens, gate"),
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
         "a.yaml:8:3: init.scheme: found 'gtp2', expected one of default, gpt2, scaled (did you mean 'gpt2'?)"),
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
    ],
)  # fmt: skip
def test_one_sentence(problems: Lines, text: str, expected: str) -> None:
    assert problems(text) == [expected]


def test_the_bounds_themselves_are_allowed(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "tokens: {length: 128, batch: 65536}\ngate: {min_attention_entropy: 1}\n")
    assert load("a.yaml").config.length == 128


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
