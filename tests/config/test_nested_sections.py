"""Sections in sections, lists, unions and formulas: what is said about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from initdiag.config import load
from initdiag.config.annotations import choices_of, expected, field_at, find, fits, members, section_of, sections
from initdiag.config.fields import Formula, Section
from initdiag.config.schema import About, Config

Lines = Callable[..., list[str]]

MODEL = "model:\n  vocab_size: 512\n  context: 128\n  d_model: 64\n  n_layers: 2\n  n_heads: 4\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("biases: 3", "model.biases: found 3 (a whole number), expected true or false or a section with keys such as "
         "qkv, out, mlp"),
        ("biases: yes", "model.biases: found 'yes' (a string), expected true or false or a section with keys such as "
         "qkv, out, mlp (write true)"),
        ("biases: {qkv: 1}", "model.biases.qkv: found 1 (a whole number), expected true or false"),
        ("biases: {qvk: true}", "model.biases.qvk: unknown key (did you mean 'qkv'?)"),
        ("windows: 512", "model.windows: found 512 (a whole number), expected a list of whole numbers and nulls, such "
         "as [512, null]"),
        ("windows: [512, x]", "model.windows[1]: found 'x' (a string), expected a whole number or null"),
        ("windows: [null, 0]", "model.windows[1]: found 0, expected at least 1"),
        ("windows: [1e3]", "model.windows[0]: found 1000.0 (a number with a decimal point or an exponent), expected a "
         "whole number or null (write 1000)"),
        ("moe: {experts: 4}", "model.moe.top_k: not found, expected a whole number: how many a token gets"),
        ("moe: 4", "model.moe: found 4 (a whole number), expected a section with keys such as experts, top_k, d_ff"),
        ("moe: {experts: x, top_k: 1}", "model.moe.experts: found 'x' (a string), expected a whole number"),
        ("moe: {experts: 4, top_k: 2, score: sofmax}",
         "model.moe.score: found 'sofmax', expected one of softmax, sigmoid (did you mean 'softmax'?)"),
        ("moe: {experts: 4, top_k: 2, score: rope}",
         "model.moe.score: found 'rope', expected one of softmax, sigmoid"),
        ("experts: 4", "model.experts: unknown key here, expected model.moe.experts"),
        ("kv_rank: 4", "model.kv_rank: unknown key here, expected model.mla.kv_rank"),
        ("attention_scale: x", "model.attention_scale: a formula uses 'x'; expected one of"),
        ("attention_scale: [1]", "model.attention_scale: found [1] (a list), expected a number or a formula in quotes"),
        ("attention_scale: -1", "model.attention_scale: found -1, expected more than 0"),
        ("residual_multiplier: [1, 2]", "model.residual_multiplier: found 2 numbers, expected one for each of the 4 "
         "branches, or one for all"),
        ("rope_scaling: {}", "model.rope_scaling: unknown key (here it is model.rotary_scaling)"),
        ("qk_layernorm: true", "model.qk_layernorm: unknown key (here it is model.qk_norm)"),
        ("num_experts_per_tok: 2", "model.num_experts_per_tok: unknown key (here it is model.moe.top_k)"),
        ("activation: Squared_ReLU", "model.activation: found 'Squared_ReLU', expected one of gelu, gelu_tanh, "
         "quick_gelu, relu, relu2, silu (here it is relu2)"),
        ("activation: gegelu", "model.activation: found 'gegelu', expected one of gelu, gelu_tanh, quick_gelu, relu, "
         "relu2, silu (here it is activation: gelu with gated: true)"),
        ("position: alibi_bias", "model.position: found 'alibi_bias', expected one of learned, sinusoidal, rotary, "
         "alibi, none (did you mean 'alibi'?)"),
    ],
)  # fmt: skip
def test_one_sentence(problems: Lines, line: str, message: str) -> None:
    (said,) = problems(f"{MODEL}  {line}\n")
    place, _, rest = said.partition(": ")
    assert place.startswith("a.yaml:7:")
    assert rest.startswith(message)
    if not message.endswith("expected one of"):
        assert rest == message


def test_a_formula_whose_sizes_are_wrong_is_not_blamed(problems: Lines) -> None:
    text = MODEL.replace("64", "x") + "  attention_scale: 1 / sqrt(d_model)\n  residual_multiplier: 1 / sqrt(layer)\n"
    lines = problems(text.replace("n_layers: 2", "n_layers: y"))
    assert [line.split(": ")[1] for line in lines] == ["model.d_model", "model.n_layers"]


def test_what_other_code_bases_call_our_keys_is_there() -> None:
    from initdiag.config.aliases import _KEYS, _VALUES

    for ours in _KEYS.values():
        path = ours.partition(",")[0].partition(":")[0].split(".")
        assert field_at(tuple(path)) is not None, ours
    words = {word for _, section in sections(nested=True) for f in section.model_fields.values()
             for word in choices_of(f.annotation)}  # fmt: skip
    for ours in _VALUES.values():
        assert ours.partition(" with ")[0].removeprefix("activation: ") in words, ours
    for theirs in (*_VALUES, *_KEYS):
        assert theirs == theirs.lower()
    assert not set(_KEYS) & {key for _, section in sections() for key in section.model_fields}


class Inner(Section):
    word: Literal["a", "b"] = "a"


Small = Annotated[int, Field(ge=1)]


def test_unions() -> None:
    assert members(bool | Inner | None) == (bool, Inner)
    assert members(Annotated[float | Formula, "note"] | None) == (float, Formula)
    assert members(Small | None) == (Small,)
    assert members(None) == ()
    assert section_of(bool | Inner | None) is Inner and section_of(tuple[int, ...]) is None
    assert choices_of(Literal["a", "b"] | None) == ("a", "b")


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Small | None, "a whole number"),
        (float | Formula | None, "a number or a formula in quotes"),
        (bool | Inner, "true or false or a section with keys such as word"),
        (Literal["a", "b"] | int, "one of a, b or a whole number"),
        (tuple[str, ...], "a list of strings, such as [A, B]"),
        (tuple[Small | None, ...], "a list of whole numbers and nulls, such as [512, null]"),
        (tuple[float, ...], "a list of numbers, such as [0.5, 0.25]"),
        (float | tuple[float, ...] | str, "a number, a list of numbers, such as [0.5, 0.25] or a string"),
        (About, "a section with keys such as summary, source, parameters"),
    ],
)
def test_types_in_words(annotation: Any, words: str) -> None:
    assert expected(annotation) == words


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (Small, (1, 2.5, -3), (True, "1", None, [1])),
        (float, (1, 2.5), (True, "1")),
        (bool, (True, False), (1, "yes")),
        (Inner, ({}, {"x": 1}, Inner()), (1, "a", [1])),
        (tuple[int, ...], ((), (1,), ["x"]), (1, {}, "a")),
        (Literal["a"], ("a", "z"), (1, True)),
        (Formula, ("1",), (1, True, {})),
    ],
)
def test_which_branch_a_value_is_meant_for(annotation: Any, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    assert all(fits(annotation, value) for value in good)
    assert not any(fits(annotation, value) for value in bad)


def test_a_path_of_pydantic_is_found_in_the_schema() -> None:
    own = find(("init", "roles", "mlp_out", "OwnDraw", "normal", "constrained-float"))
    assert own.path == ("init", "roles", "mlp_out", "normal")
    assert own.field is field_at(own.path) is not None
    assert [path for path, _ in own.branches] == [("init", "roles", "mlp_out"), own.path]
    entry = find(("model", "windows", 3))
    assert entry.path == ("model", "windows", 3) and entry.field is None and members(entry.annotation) != ()
    assert find(("model", "zzz")).annotation is None
    assert find(("gate", "ignore", 0)).annotation is str
    assert field_at(("model", "moe", "top_k")) is not None
    assert field_at(("model", "n_layers", "x")) is None


def test_all_sections_have_names() -> None:
    assert [name for name, _ in sections()] == list(Config.model_fields)
    nested = {name for name, _ in sections(nested=True)}
    assert {"model.biases", "model.moe", "model.mla", "model.rotary_scaling", "init.roles", "init.roles.bias"} < nested


def test_about(here: Any) -> None:
    from pathlib import Path

    Path("a.yaml").write_text("about: {summary: mine, parameters: 12, trained_with: gpt2}\n" + MODEL)
    about = load("a.yaml").config.about
    assert (about.summary, about.source, about.parameters, about.trained_with) == ("mine", None, 12, "gpt2")
    assert load("a.yaml", ["about.source=here"]).config.about.source == "here"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("about: {parameters: 0}", "about.parameters: found 0, expected at least 1"),
        ("about: {paramters: 1}", "about.paramters: unknown key (did you mean 'parameters'?)"),
        ("about: {summary: 1}", "about.summary: found 1 (a whole number), expected a string"),
        ("about: mine", "about: found 'mine' (a string), expected a section with keys such as summary, source, "
         "parameters"),
    ],
)  # fmt: skip
def test_about_that_is_wrong(problems: Lines, line: str, message: str) -> None:
    (said,) = problems(MODEL + line + "\n")
    assert said.partition(": ")[2] == message
