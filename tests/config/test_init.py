"""`init:` of a config: the parameters of the chosen scheme as numbers, words and formulas, and roles over it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from initdiag.config import Config, from_mapping, load, scheme_of, with_init, with_tokens
from initdiag.config.roles import OwnDraw, Roles
from initdiag.config.scheme_fields import WORDS, SchemeFields
from initdiag.errors import ConfigError, Location, Option, UsageError
from initdiag.model import parameters, sizes
from initdiag.schemes import (
    SCHEMES,
    Constant,
    Draw,
    InitPlan,
    Normal,
    Orthogonal,
    Role,
    Truncated,
    Uniform,
    make_plan,
)
from initdiag.schemes.answers import DISTRIBUTIONS

Lines = Callable[..., list[str]]

MODEL = "model:\n  vocab_size: 512\n  context: 128\n  d_model: 64\n  n_layers: 2\n  n_heads: 4\n"
SHAPE: dict[str, Any] = {"vocab_size": 512, "context": 128, "d_model": 64, "n_layers": 2, "n_heads": 4}


def config_with(init: dict[str, Any], *overrides: str) -> Config:
    return from_mapping({"model": SHAPE, "init": init}, "mine", overrides).config


def plan_of(config: Config) -> InitPlan:
    return make_plan(scheme_of(config.init), parameters(config.model), sizes(config.model), config.init.parameters)


def refused(init: dict[str, Any], *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        config_with(init, *overrides)
    return str(caught.value)


def test_there_is_a_field_for_every_parameter_of_a_scheme() -> None:
    ours = set(SchemeFields.model_fields) - {"scheme"}
    assert ours == {name for scheme in SCHEMES.values() for name in scheme.settable}
    assert set(WORDS) == {name for scheme in SCHEMES.values() for name in scheme.choices}


def test_there_is_a_field_for_every_role_that_is_drawn() -> None:
    assert list(Roles.model_fields) == sorted(set(Role) - {Role.OTHER}, key=list(Roles.model_fields).index)
    assert set(DISTRIBUTIONS) < set(OwnDraw.model_fields)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_takes_what_it_says_it_takes(scheme: str) -> None:
    """Given at its default, a parameter changes nothing."""
    one = SCHEMES[scheme]
    plan = plan_of(config_with({"scheme": scheme}))
    given = {name: value for name, value in plan.settings.items() if name in one.settable}
    positive = {name: value for name, value in given.items() if value != 0}  # std 0 and the like are for the scheme
    assert plan_of(config_with({"scheme": scheme, **positive})).entries == plan.entries


def test_parameters_are_numbers_words_or_formulas() -> None:
    plan = plan_of(config_with({"scheme": "scaled", "std": "1 / sqrt(d_model)"}))
    assert plan.settings == {"std": 0.125, "residual_std": 0.0625}
    plan = plan_of(config_with({"scheme": "scaled", "std": "0.04", "residual_std": "std / n_layers"}))
    assert plan.settings == {"std": 0.04, "residual_std": 0.02}
    plan = plan_of(config_with({"scheme": "scaled", "std": 0.04, "residual_std": "0.01 * 0.02 / (std - 0.02)"}))
    assert plan.settings["residual_std"] == pytest.approx(0.01), "the std that is given, not its default"
    plan = plan_of(config_with({"scheme": "torchtitan", "depth": "total"}))
    assert plan["blocks.1.attention.out.weight"].distribution.std == pytest.approx(0.02 / math.sqrt(4))
    plan = plan_of(config_with({"scheme": "torchtitan", "depth": "layer"}))
    assert plan["blocks.0.attention.out.weight"].distribution.std == pytest.approx(0.02 / math.sqrt(2))


def test_from_files_and_the_command_line(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "init:\n  scheme: torchtitan\n  depth: total\n  std: 1 / sqrt(d_model)\n")
    assert plan_of(load("a.yaml").config).settings["std"] == 0.125
    init = load("a.yaml", ["init.std=2 / d_model", "init.depth=layer"]).config.init
    assert init.parameters == {"std": "2 / d_model", "depth": "layer"}
    assert init.scheme == "torchtitan"


NAMES = "context, d_ff, d_model, head_dim"


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ({"scheme": "scaled", "std": "1 / sqrt(d_modl)"}, "init.std: a formula uses 'd_modl'; expected one of"),
        ({"std": "-1 / d_model"}, "init.std: the formula '-1 / d_model' gives -0.015625, expected more than 0"),
        ({"std": "d_model ** 9"}, "init.std: the formula 'd_model ** 9' gives 1.80144e+16, expected at most 1e+06"),
        ({"std": "1 / (n_layers - 2)"},
         "init.std: can't compute the formula '1 / (n_layers - 2)': float division by zero"),
        ({"std": "0.02 / (layer + 1)"},
         "init.std: found '0.02 / (layer + 1)', expected a formula without layer: it is one number for all layers"),
        ({"scheme": "scaled", "std": "residual_std"}, "init.std: a formula uses 'residual_std'; expected one of"),
        ({"std": "1\n+ 1"}, "init.std: found '1\\n+ 1', expected a formula, such as '0.02 / sqrt(2 * n_layers)'"),
        ({"std": "1" * 201}, "init.std: found a formula of 201 characters, expected at most 200"),
        ({"std": True}, "init.std: found true (a boolean), expected a number or a formula in quotes"),
        ({"std": [1]}, "init.std: found [1] (a list), expected a number or a formula in quotes"),
        ({"std": -1}, "init.std: found -1, expected more than 0"),
        ({"scheme": "scaled", "residual_std": 2e6}, "init.residual_std: found 2000000.0, expected at most 1e+06"),
        ({"scheme": "torchtitan", "depth": "layr"},
         "init.depth: found 'layr', expected one of layer, total (did you mean 'layer'?)"),
        ({"scheme": "torchtitan", "depth": 3}, "init.depth: found 3 (a whole number), expected one of layer, total"),
        ({"scheme": "torchtitan", "depth": [1]}, "init.depth: found [1] (a list), expected one of layer, total"),
        ({"scheme": "gpt2", "depth": 3}, "init.depth: scheme 'gpt2' has no such parameter, expected one of std"),
        ({"scheme": "gtp2", "depth": 3}, "init.scheme: found 'gtp2', expected one of"),
        ({"scheme": "bert", "cut": 0.01}, "init.cut: found 0.01, expected at least 0.1"),
        ({"scheme": "bert", "cut": 0}, "init.cut: found 0, expected at least 0.1"),
        ({"scheme": "bert", "cut": "1 / d_model"},
         "init.cut: the formula '1 / d_model' gives 0.015625, expected at least 0.1"),
        ({"std": "(1"}, "init.std: can't compute the formula '(1': a '(' is never closed"),
        ({"scheme": "gpt2", "gain": 1}, "init.gain: scheme 'gpt2' has no such parameter, expected one of std"),
        ({"scheme": "default", "gain": 1}, "init.gain: scheme 'default' has no parameters, expected none"),
        ({"scheme": "scaled", "residul_std": 1}, "init.residul_std: unknown key (did you mean 'residual_std'?)"),
        ({"scheme": "scaled", "zzz": 1},
         "init.zzz: unknown key, expected one of scheme, std, residual_std, seed, roles"),
        ({"scheme": "gtp2", "zzz": 1, "sdt": 2}, "init.zzz: unknown key, expected one of scheme, std"),
    ],
)  # fmt: skip
def test_parameters_that_are_refused(init: dict[str, Any], expected: str) -> None:
    said = refused(init)
    assert f"mine: {expected}" in said
    assert len({line.split(": ")[1] for line in said.splitlines()}) == len(said.splitlines()), "nothing is told twice"


HOSTILE = [
    "__import__('os').system('touch owned')",
    "().__class__.__bases__[0].__subclasses__()",
    "open('owned', 'w')",
    "std.real",
    "[1][0]",
    "9 ** 9 ** 9 ** 9",
    "9" * 199,
    "-" * 199 + "1",
    "(" * 99 + "1" + ")" * 99,
    "1 ** " * 39 + "1",
    "nan",
    "inf",
    "1e999",
    "1\n::error::",
    "1 + \x1b[31m",
    "\u202e1",
    "\ud800",
    "σ",
    "\0",
    " ",
    "1" * 1_000_000,
    "(" * 1_000_000,
    "lambda: 1",
    "f'{std}'",
    "True",
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
@pytest.mark.parametrize("key", ["std", "normal", "cut", "unscaled", "constant"])
def test_a_formula_does_nothing_but_arithmetic(here: Path, text: str, key: str) -> None:
    """Whatever it says: one short line, at once, and nothing has happened."""
    draw = {"truncated": 1, "cut": 2, key: text} if key == "cut" else {"normal": 1, key: text}
    draw = {"constant": text} if key == "constant" else draw
    begin = time.monotonic()
    try:
        config_with({"std": text} if key == "std" else {"roles": {"mlp_out": draw}})
    except ConfigError as error:
        (line,) = str(error).splitlines()
        assert len(line) < 700 and line.isprintable()
    else:  # digits and parentheses are arithmetic, if they come to a number that can be used
        assert text in ("(" * 99 + "1" + ")" * 99, "1 ** " * 39 + "1", "-" * 199 + "1")
    assert time.monotonic() - begin < 2
    assert not list(here.iterdir())


def test_roles_over_a_scheme() -> None:
    roles = {
        "attention_out": {"normal": "std / sqrt(2 * n_layers)", "unscaled": "std"},
        "mlp_in": {"truncated": 0.02, "cut": 3},
        "mlp_out": 0,
        "token_embedding": {"truncated": 0.5, "cut": "n_layers", "corrected": True},
        "attention_query": {"orthogonal": 2},
        "attention_key": {"uniform": "1 / sqrt(fan_in)"},
        "bias": {"constant": "-0.5 * layer"},
        "router": {"normal": 1},  # which this model doesn't have
    }
    config = config_with({"std": 0.08, "roles": roles})
    plan = plan_of(config)
    assert plan.scheme == "gpt2+8 roles"
    out = plan["blocks.0.attention.out.weight"]
    assert (out.distribution, out.unscaled_std) == (Normal(0.04), 0.08)
    assert plan["blocks.0.mlp.input.weight"].distribution == Truncated(0.02, 3.0)
    assert plan["blocks.0.mlp.out.weight"].distribution == Constant(0.0)
    embedding = plan["token_embedding.weight"].distribution
    assert isinstance(embedding, Truncated) and embedding.cut == 2
    assert embedding.std == pytest.approx(0.5) and embedding.sigma == pytest.approx(0.5 / 0.8796, rel=1e-4)
    assert plan["blocks.0.attention.query.weight"].distribution == Orthogonal(2.0, 64)
    assert plan["blocks.0.attention.key.weight"].distribution == Uniform(0.125)
    assert plan["blocks.1.mlp.out.bias"].distribution == Constant(-0.5)
    assert plan["blocks.0.attention.value.weight"].distribution == Normal(0.08), "what isn't named is the scheme's"
    assert config.init.roles is not None
    assert config.init.roles.draws[Role.MLP_OUT] == Draw("constant", "0")


def test_a_scheme_of_ones_own_needs_every_matrix_and_no_base() -> None:
    names = "token_embedding position_embedding attention_query attention_key attention_value attention_out mlp_in"
    roles: dict[str, Any] = {name: {"normal": 0.03} for name in names.split()}
    plan = plan_of(config_with({"scheme": "custom", "roles": {**roles, "mlp_out": 0}}))
    assert plan.scheme == "custom"
    assert {entry.distribution for entry in plan.entries} == {Normal(0.03), Constant(0.0), Constant(1.0)}
    assert refused({"scheme": "custom", "roles": roles}) == (
        "mine: init.roles: nothing found for mlp_out, expected an entry for every matrix and embedding, as the scheme "
        "is custom"
    )
    assert refused({"scheme": "custom", "std": 1}).startswith("mine: init.std: scheme 'custom' has no parameters")


TYPES = "expected a number or a section with keys such as normal, uniform, truncated"


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, ": found no distribution, expected one of normal, uniform, truncated, orthogonal, constant"),
        ({"cut": 2}, ": found no distribution, expected one of normal, uniform, truncated, orthogonal, constant"),
        ({"normal": 1, "uniform": 1}, ": found normal and uniform, expected one distribution"),
        ({"nrmal": 1}, ".nrmal: unknown key (did you mean 'normal'?)"),
        ({"normal": 1, "cut": 2}, ".cut: found with normal, expected truncated, or no cut"),
        ({"normal": 1, "corrected": True}, ".corrected: found with normal, expected truncated, or no corrected"),
        ({"truncated": 1}, ".cut: not found, expected the number of sigmas where truncated is cut"),
        ({"truncated": 1, "cut": "1e-9"},
         ".cut: the cut '1e-9' gives 1e-09 sigmas; expected at least 0.1"),
        ({"truncated": 1, "cut": "1e200"}, ".cut: the cut '1e200' gives 1e+200 sigmas; expected at most 1e+06"),
        ({"truncated": 1, "cut": 0}, ".cut: found 0, expected more than 0"),
        ({"constant": 1, "unscaled": 1},
         ".unscaled: found with constant, which has no spread; expected no unscaled"),
        ({"normal": -1}, ".normal: found -1, expected at least 0"),
        ({"normal": float("nan")}, ".normal: found .nan, expected a finite number"),
        ({"normal": "0.1 - layer"},
         ".normal: '0.1 - layer' gives -0.9; expected a std, bound or gain that is not negative (for "
         "blocks.1.mlp.out.weight)"),
        ({"normal": "1 / layer"},
         ".normal: can't compute the formula '1 / layer': float division by zero (for blocks.0.mlp.out.weight)"),
        ({"normal": 1, "unscaled": "1 / layer"},
         ".unscaled: can't compute the formula '1 / layer': float division by zero (for blocks.0.mlp.out.weight)"),
        ({"normal": "1e7"}, ".normal: '1e7' gives 1e+07; expected at most 1e+06"),
        ({"constant": "-1e7"}, ".constant: '-1e7' gives -1e+07; expected at most 1e+06"),
        (1e7, ": found 10000000.0, expected at most 1e+06"),
        (True, f": found true (a boolean), {TYPES}"),
        ([1], f": found [1] (a list), {TYPES}"),
        ("1 / 2",
         f": found '1 / 2' (a string), {TYPES} (a formula needs its distribution, such as "
         "{normal: '1 / sqrt(fan_in)'})"),
        ({"normal": [1]}, ".normal: found [1] (a list), expected a number or a formula in quotes"),
        ({"truncated": 1, "cut": 2, "corrected": 1},
         ".corrected: found 1 (a whole number), expected true or false"),
    ],
)  # fmt: skip
def test_roles_that_are_refused(own: object, expected: str) -> None:
    assert refused({"roles": {"mlp_out": own}}) == f"mine: init.roles.mlp_out{expected}"


def test_a_role_that_the_model_lacks_is_checked_for_a_square_matrix() -> None:
    assert refused({"roles": {"router": {"normal": "1 / layer"}}}) == (
        "mine: init.roles.router.normal: can't compute the formula '1 / layer': float division by zero (for a router)"
    )
    config_with({"roles": {"router": {"normal": "sqrt(64 - fan_in)"}}})


def test_names_of_roles_are_suggested() -> None:
    assert refused({"roles": {"mlp_otu": 0}}) == "mine: init.roles.mlp_otu: unknown key (did you mean 'mlp_out'?)"
    assert refused({"mlp_out": 0}) == "mine: init.mlp_out: unknown key here, expected init.roles.mlp_out"
    assert refused({"normal": 0}) == "mine: init.normal: unknown key here, expected init.roles.ROLE.normal"
    inside: tuple[dict[str, Any], ...] = ({}, {"cut": 2}, {"normal": 1, "uniform": 1}, {"nrmal": 1})
    for own in inside:  # told once: what is in it is no matter
        said = refused({"roles": {"bogus": own}})
        assert said.startswith("mine: init.roles.bogus: unknown key, expected one of") and "\n" not in said
    said = refused({"roles": {"mlp_out": {"normal": "0.02 / sqrt(fan_inn)"}}})
    assert "a formula uses 'fan_inn'" in said and said.endswith("(did you mean 'fan_in'?)")


def test_a_formula_is_reported_where_it_is_written(problems: Lines) -> None:
    text = MODEL + "init:\n  std: x\n  roles:\n    mlp_out:\n      normal: 1 / layer\n    bias: {uniform: d_mdel}\n"
    (line,) = problems(text)
    assert line.startswith("a.yaml:8:3: init.std: a formula uses 'x'")
    lines = problems(text.replace("std: x", "std: 1"))
    assert [line.split(": ")[:2] for line in lines] == [
        ["a.yaml:11:7", "init.roles.mlp_out.normal"],
        ["a.yaml:12:12", "init.roles.bias.uniform"],
    ]
    lines = problems(text + "gate:\n  zzz: 1\n")
    assert [line.split(": ")[0] for line in lines] == ["a.yaml:8:3", "a.yaml:14:3"], "together with what else is wrong"


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("init.roles.mlp_out.normal=x", "a formula uses 'x'"),
        ("init.roles.mlp_out.cut=2", "init.roles.mlp_out: found no distribution"),
        ("init.roles.mlp_in.normal=1", "init.roles.mlp_in: found normal and truncated, expected one distribution"),
        ("init.roles.lm_head.normal=1", "found 0 (a whole number) at init.roles.lm_head, expected a section"),
        ("init.roles.mlp_out=zero", "found 'zero' (a string), expected a number or a section"),
        ("model.n_layers=1", "init.roles.bias.normal: can't compute the formula '1 / (n_layers - 1)'"),
    ],
)
def test_an_override_is_to_blame(problems: Lines, override: str, expected: str) -> None:
    roles = "{mlp_in: {truncated: 1, cut: 2}, lm_head: 0, bias: {normal: 1 / (n_layers - 1)}}"
    (line,) = problems(MODEL + f"init:\n  roles: {roles}\n", override)
    if override.startswith("model"):  # the formula is the file's, and so is the place
        assert line.startswith(f"a.yaml:8:62: {expected}")
    else:
        assert line.startswith(f"--set {override}: {expected}")


def test_a_cut_is_a_fault_of_the_config(problems: Lines) -> None:
    text = MODEL + "init:\n  scheme: bert\n  cut: 0.01\n"
    assert problems(text) == ["a.yaml:9:3: init.cut: found 0.01, expected at least 0.1"]
    text = text.replace("  cut: 0.01\n", "")
    assert problems(text, "init.cut=0.01") == ["--set init.cut=0.01: found 0.01, expected at least 0.1"]


def test_every_override_answers_for_its_own_role(problems: Lines) -> None:
    overrides = ("init.roles.mlp_in.normal=1", "init.roles.mlp_out.cut=2")
    (line,) = problems(MODEL, *overrides)
    assert line.startswith(f"--set {overrides[1]}: init.roles.mlp_out: found no distribution")


def test_overrides_of_roles(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "init:\n  roles:\n")
    roles = load("a.yaml", ["init.roles.mlp_out.normal=0.01", "init.roles.bias=0"]).config.init.roles
    assert roles is not None and roles.draws == {Role.MLP_OUT: Draw("normal", "0.01"), Role.BIAS: Draw("constant", "0")}
    assert load("a.yaml").config.init.roles is None


def test_another_scheme_goes_without_the_roles_of_the_file(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "init:\n  scheme: scaled\n  roles: {mlp_out: 0, bias: {normal: 1}}\n")
    loaded = load("a.yaml")
    assert scheme_of(loaded.config.init).name == "scaled+2 roles"
    for scheme in ("gpt2", "scaled"):  # that of the file as well: a name on the command line is that scheme
        other = with_init(loaded, scheme=scheme)
        assert scheme_of(other.config.init) is SCHEMES[scheme]
        for key in ("init.roles", "init.roles.mlp_out", "init.roles.bias.normal"):
            assert other.locate(key) == Option(f"--scheme {scheme}")
    assert with_init(loaded, seed=3).config.init.roles == loaded.config.init.roles
    assert loaded.locate("init.roles.bias.normal") == Location("a.yaml", 9, 30)


def test_roles_of_options_stay_with_another_scheme(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "init:\n  roles: {mlp_out: 0, bias: {truncated: 1, cut: 3}}\n")
    loaded = load("a.yaml", ["init.roles.bias.cut=2", "init.roles.lm_head.normal=1"])
    kept = {Role.BIAS: Draw("truncated", "1", cut="2"), Role.LM_HEAD: Draw("normal", "1")}
    for drop_options in (False, True):  # every scheme has all roles, so none needs to be dropped
        scaled = with_init(loaded, scheme="scaled", drop_options=drop_options).config.init
        assert scaled.roles is not None and scaled.roles.draws == kept
    whole = with_init(load("a.yaml", ["init.roles={bias: 1}"]), scheme="scaled").config.init
    assert whole.roles is not None and whole.roles.draws == {Role.BIAS: Draw("constant", "1")}


def test_round_trips_keep_roles_and_formulas() -> None:
    init = {"std": "1 / d_model", "roles": {"mlp_in": {"truncated": "std", "cut": 2}, "mlp_out": 0}}
    loaded = from_mapping({"model": SHAPE, "init": init}, "mine")
    changed = with_tokens(with_init(loaded, seed=1), source="random")
    assert changed.config.init.model_dump(exclude_unset=True) == {**init, "seed": 1}
    assert from_mapping(changed.config, "mine").config == changed.config
    assert hash(changed) == hash(changed)


def test_a_formula_that_another_scheme_can_not_compute(here: Path) -> None:
    Path("a.yaml").write_text(MODEL + "init:\n  scheme: scaled\n")
    with pytest.raises(UsageError, match=r"^init\.residual_std: a formula uses 'std'"):
        with_init(load("a.yaml", ["init.residual_std=std / 2"]), scheme="gptj")


def test_a_parameter_goes_to_another_scheme_where_it_means_the_same(here: Path) -> None:
    """std is 0.02 by default in gpt2, scaled and mup, but a factor in spectral, and the scheme itself in small-init."""
    Path("a.yaml").write_text(MODEL + "init:\n  scheme: scaled\n  std: 0.03\n  residual_std: 0.01\n")
    loaded = load("a.yaml")
    kept = {
        scheme: with_init(loaded, scheme=scheme).config.init.parameters
        for scheme in ("gpt2", "scaled", "megatron", "mup", "opt", "small-init", "spectral", "gptj")
    }
    assert kept == {
        "gpt2": {"std": 0.03},
        "scaled": {"std": 0.03, "residual_std": 0.01},
        "megatron": {"std": 0.03, "residual_std": 0.01},
        "mup": {"std": 0.03},
        "opt": {"residual_std": 0.01},
        "small-init": {},
        "spectral": {},
        "gptj": {},
    }
    by_option = load("a.yaml", ["init.std=0.05"])
    assert with_init(by_option, scheme="small-init").config.init.parameters == {"std": 0.05}
    assert with_init(by_option, scheme="small-init", drop_options=True).config.init.parameters == {"std": 0.05}


def test_a_module_has_no_sizes_to_compute_with() -> None:
    """They are known when it has been built; the formula is computed then."""
    from initdiag.config import without_model

    given = ["init.std=1 / (n_layers - 1)", "init.roles.mlp_out.normal=1 / (n_layers - 1)"]
    file = without_model("net.py:Net", "net.py:Net", 100, 16, given)
    assert file.config.init.parameters == {"std": "1 / (n_layers - 1)"}
    assert scheme_of(with_init(file, scheme="gpt2").config.init).name == "gpt2+mlp_out"


FOREIGN = """
from initdiag.schemes import SCHEMES, Draw, Role, Scheme
def lab(draw=Draw("normal", "std"), **fields):
    return Scheme("lab", "", "", {**SCHEMES["gpt2"].roles, Role.MLP_OUT: draw, Role.ROUTER: Draw("normal", "2 - std")},
                  **{"parameters": {"std": "0.02"}, **fields})
EDGE = lab(Draw("truncated", "std", cut="edge"), parameters={"std": "0.02", "edge": "3"})
LATE = lab(Draw("normal", "std - shrink * layer"), parameters={"std": "0.02", "shrink": "0"})
MODE = lab(Draw("normal", "std / mode"), choices={"mode": {"one": "1", "none": "0"}})
NEVER = lab(Draw("normal", "-1"), parameters={"std": "0.02", "tip": "1"})
CHAIN = lab(parameters={"std": "0.02", "tip": "1", "end": "1 / (tip - 2)"})
DEAD = lab(parameters={"tip": "1", "std": "1 / (n_layers - 2)"})
"""
NO_ZERO = "float division by zero"


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("edge", {"edge": 0.01}, "init.edge: scheme 'edge', mlp_out: the cut 'edge' gives 0.01 sigmas; expected at "
         "least 0.1"),
        ("edge", {"std": 0.1, "edge": 0.01}, "init.edge: scheme 'edge', mlp_out: the cut 'edge' gives 0.01 sigmas; "
         "expected at least 0.1"),
        ("late", {"shrink": 0.1}, "init.shrink: scheme 'late', mlp_out: 'std - shrink * layer' gives -0.08; expected a "
         "std, bound or gain that is not negative (for blocks.1.mlp.out.weight)"),
        ("mode", {"mode": "none", "std": 1}, "init.mode: scheme 'mode', mlp_out: can't compute the formula 'std / "
         f"mode': {NO_ZERO}"),
        ("never", {"tip": 2}, "init.scheme: scheme 'never', mlp_out: '-1' gives -1; expected a std, bound or gain that "
         "is not negative"),
        ("chain", {"tip": 2, "std": 1}, "init.tip: scheme 'chain', parameter end: can't compute the formula '1 / "
         f"(tip - 2)': {NO_ZERO}"),
        ("dead", {}, f"init.scheme: scheme 'dead', parameter std: can't compute the formula '1 / (n_layers - 2)': "
         f"{NO_ZERO}"),
        ("dead", {"tip": 5}, f"init.scheme: scheme 'dead', parameter std: can't compute the formula '1 / (n_layers - "
         f"2)': {NO_ZERO}"),
    ],
)  # fmt: skip
def test_who_is_to_blame_for_a_formula_of_another_distribution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, given: dict[str, Any], expected: str
) -> None:
    """What nobody has set is not blamed on the config, and what it has set is, by its name."""
    info = tmp_path / "labs-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: labs\nVersion: 1.0\n")
    names = ("edge", "late", "mode", "never", "chain", "dead")
    lines = "".join(f"{one} = labs_init:{one.upper()}\n" for one in names)
    (info / "entry_points.txt").write_text(f"[initdiag.schemes]\n{lines}")
    (tmp_path / "labs_init.py").write_text(FOREIGN)
    monkeypatch.syspath_prepend(tmp_path)
    assert refused({"scheme": name, **given}) == f"mine: {expected}"
    if name != "never":
        config_with({"scheme": name, "std": 3})  # a router would be drawn with 2 - 3, but this model has none


def test_a_scheme_of_another_distribution(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[initdiag.schemes]\nown-init = own_init:MINE\nbroken = own_init:NOTHING\n")
    (tmp_path / "own_init.py").write_text(
        "from initdiag.schemes import SCHEMES, Scheme\n"
        "MINE = Scheme('x', '', '', SCHEMES['gpt2'].roles, {'std': 'tip', 'tip': '0.02'},"
        " {'mode': {'a': '1', 'b': '2'}})\n"
        "MINE = Scheme('x', '', '', MINE.roles, {'tip': '0.02', 'std': 'tip * mode'}, MINE.choices)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = config_with({"scheme": "own-init", "tip": "1 / d_model", "mode": "b"})
    assert plan_of(config).settings == {"mode": "b", "tip": 1 / 64, "std": 1 / 32}
    assert config.init.parameters == {"tip": "1 / d_model", "mode": "b"}
    assert with_init(from_mapping(config, "m"), seed=2).config.init.parameters == {"tip": "1 / d_model", "mode": "b"}
    assert with_init(from_mapping(config, "m"), scheme="gpt2").config.init.parameters == {}
    own = {"scheme": "own-init"}
    assert refused({**own, "tpi": 1}) == "mine: init.tpi: unknown key (did you mean 'tip'?)"
    assert refused({**own, "tip": True}).endswith("found true (a boolean), expected a number or a formula in quotes")
    for wrong in ("x" * 201, "1\n2", " "):
        assert refused({**own, "tip": wrong}).endswith("expected a formula of at most 200 characters on one line")
    assert refused({**own, "tip": 2e6}) == "mine: init.tip: found 2000000.0, expected a number of at most 1e+06"
    assert refused({**own, "tip": float("nan")}).startswith("mine: init.tip: found .nan, expected")
    assert refused({**own, "tip": "1e7"}) == "mine: init.tip: '1e7' gives 1e+07; expected at most 1e+06"
    assert refused({**own, "mode": "c"}) == "mine: init.mode: found 'c', expected one of a, b"
    assert refused({**own, "mode": []}) == "mine: init.mode: found [] (a list), expected one of a, b"
    assert refused({**own, "mode": 1}) == "mine: init.mode: found 1 (a whole number), expected one of a, b"
    assert refused({"scheme": "broken"}).startswith(
        "mine: init.scheme: scheme 'broken': own_init:NOTHING, an entry point of the distribution 'own', can't be"
    )
    with pytest.raises(UsageError, match=r"^scheme 'broken': own_init:NOTHING"):
        with_init(from_mapping(config, "m"), scheme="broken")
