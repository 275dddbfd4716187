"""Schemes of a user's own: roles over a published scheme, and entry points of other distributions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from initdiag.cli import explain
from initdiag.config import load
from initdiag.errors import PlanError, UsageError
from initdiag.model import Architecture, sizes
from initdiag.model.quantities import SIZES as SIZES_OF_A_SHAPE
from initdiag.schemes import (
    CUSTOM,
    SCHEMES,
    Draw,
    Normal,
    Parameter,
    Role,
    Scheme,
    Truncated,
    expected_name,
    known_schemes,
    make_plan,
    scheme_named,
    scheme_names,
    with_roles,
)
from initdiag.schemes.entry_points import FORWARD, OF_A_MODEL

SIZES = {"d_model": 64.0, "n_layers": 2.0}


def test_a_role_over_a_scheme_leaves_the_others_as_they_are() -> None:
    own = with_roles(SCHEMES["scaled"], {Role.MLP_OUT: Draw("truncated", "std / 4", unscaled="std", cut="3")})
    listed = [
        Parameter("a", (64, 64), Role.ATTENTION_OUT, 64, 0),
        Parameter("b", (64, 64), Role.MLP_OUT, 64, 0),
    ]
    plan = make_plan(own, listed, SIZES, {"std": 0.08})
    assert plan["a"].distribution == Normal(0.08 / 2)  # sqrt(2 * 2 layers)
    assert plan["b"].distribution == Truncated(0.02, 3.0)
    assert plan["b"].unscaled_std == pytest.approx(0.08 * 0.98658, rel=1e-4)  # a cut at 3 sigmas leaves that of the std
    assert SCHEMES["scaled"].roles[Role.MLP_OUT].distribution == "normal", "the scheme itself stays as it is"


def test_the_name_tells_it_from_the_scheme_below() -> None:
    one, two = {Role.MLP_OUT: Draw("constant", "0")}, {role: Draw("normal", "1") for role in (Role.BIAS, Role.ROUTER)}
    assert with_roles(SCHEMES["gpt2"], one).name == "gpt2+mlp_out"
    assert with_roles(SCHEMES["gpt2"], two).name == "gpt2+2 roles"
    assert with_roles(CUSTOM, two).name == "custom"
    assert with_roles(SCHEMES["gpt2"], {}) is SCHEMES["gpt2"]


def test_a_scheme_without_a_base_has_norms_of_one_and_biases_of_zero() -> None:
    assert CUSTOM.roles[Role.NORM_SCALE] == Draw("constant", "1")
    assert CUSTOM.roles[Role.BIAS] == Draw("constant", "0")
    assert not {Role.TOKEN_EMBEDDING, Role.LM_HEAD, Role.MLP_IN, Role.ROUTER} & set(CUSTOM.roles)


GOOD = """
from initdiag.schemes import SCHEMES, Draw, Role, Scheme
MINE = Scheme("its own name", "a summary", "a source", {**SCHEMES["gpt2"].roles, Role.LM_HEAD: Draw("normal", "tip")},
              parameters={"std": "0.02", "tip": "std / 2"})
def made():
    return MINE
def needs(x):
    return x
def fails():
    raise KeyError("no\\nnetwork")
def quits():
    raise SystemExit(3)
NUMBER = 5
SHORT = Scheme("short", "", "", {role: draw for role, draw in MINE.roles.items() if role not in ("router", "mlp_gate")})
ODD = Scheme("odd", "", "", {**MINE.roles, "mlp_outt": Draw("normal", "1")})
PLAIN = Scheme("plain", "", "", {**MINE.roles, Role.BIAS: 0})
WORD = Scheme("word", "", "", {**MINE.roles, Role.BIAS: Draw("norml", "1")})
FLOAT = Scheme("float", "", "", {**MINE.roles, Role.BIAS: Draw("normal", 0.02)})
CUT = Scheme("cut", "", "", {**MINE.roles, Role.BIAS: Draw("truncated", "0.02")})
DEFAULT = Scheme("default", "", "", MINE.roles, parameters={"std": 0.02})
"""

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that installs a distribution with entry points into a folder on sys.path."""

    def installed(points: dict[str, str], module: str = GOOD, name: str = "my-inits") -> Path:
        folder = tmp_path / name
        info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        lines = "".join(f"{point} = {value}\n" for point, value in points.items())
        (info / "entry_points.txt").write_text(f"[initdiag.schemes]\n{lines}\n[console_scripts]\nmine = a:b\n")
        (folder / "my_inits.py").write_text(module)
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, "my_inits", raising=False)
        return folder

    return installed


def test_a_scheme_of_another_distribution(install: Install) -> None:
    before = scheme_names()
    install({"mine": "my_inits:MINE", "made": "my_inits:made"})
    scheme = scheme_named("mine")
    assert scheme.name == "mine", "it is known by the name of its entry point"
    plan = make_plan(scheme, [Parameter("head", (9, 64), Role.LM_HEAD, 64)], SIZES, {"std": 0.08})
    assert plan["head"].distribution == Normal(0.04)
    assert scheme_named("made").roles == scheme.roles, "a function that returns one does as well"
    assert scheme_names() == (*before, "made", "mine")
    assert tuple(known_schemes()) == scheme_names()
    assert isinstance(known_schemes()["mine"], Scheme)


def test_they_are_suggested(install: Install) -> None:
    install({"zebra-init": "my_inits:MINE"})
    count = len(SCHEMES) + 1
    said = f"expected one of the {count} that 'initdiag scheme' lists (did you mean 'zebra-init'?)"
    assert expected_name("zebra-int") == said
    with pytest.raises(UsageError) as caught:
        scheme_named("zebra-int")
    assert str(caught.value) == f"unknown scheme 'zebra-int'; {said}"


@pytest.mark.parametrize("name", ["gpt2", "custom", "default"])
def test_no_other_distribution_takes_a_name_of_ours(install: Install, name: str) -> None:
    install({name: "my_inits:MINE"})
    assert scheme_names() == tuple(SCHEMES)
    if name in SCHEMES:
        assert scheme_named(name) is SCHEMES[name]


def test_an_alias_is_a_name_of_ours_too(install: Install) -> None:
    alias, scheme = next((alias, scheme) for scheme in SCHEMES.values() for alias in scheme.aliases)
    install({alias: "my_inits:MINE"})
    assert scheme_named(alias) is scheme
    assert alias not in scheme_names()


TAIL = "; expected a Scheme, or a function that returns one, with a Draw for every role"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("no_such_module:X", "can't be loaded: ModuleNotFoundError: No module named 'no_such_module'"),
        ("my_inits:NOTHING", "can't be loaded: AttributeError: module 'my_inits' has no attribute 'NOTHING'"),
        ("my_inits:needs", "can't be called without arguments: TypeError: needs() missing 1 required positional "
         "argument: 'x'"),
        ("my_inits:fails", "can't be called without arguments: KeyError: 'no\\nnetwork'"),
        ("my_inits:quits", "can't be called without arguments: SystemExit: 3"),
        ("my_inits:NUMBER", "gives 5 (of type int)"),
        ("my_inits:SHORT", "leaves out mlp_gate, router"),
        ("my_inits:ODD", "answers for 'mlp_outt', which is no role (did you mean 'mlp_out'?)"),
        ("my_inits:PLAIN", "answers for bias with 0 (of type int), which is no Draw"),
        ("my_inits:WORD", "draws bias from 'norml', which is none of normal, uniform, truncated, orthogonal, constant "
         "(did you mean 'normal'?)"),
        ("my_inits:FLOAT", "draws bias with 0.02 (of type float) for its formula, which is no formula in quotes"),
        ("my_inits:CUT", "draws bias with None (of type NoneType) for its cut, which is no formula in quotes"),
        ("my_inits:DEFAULT", "has 0.02 (of type float) as the default of 'std', which is no formula in quotes"),
    ],
)  # fmt: skip
def test_a_broken_one_is_one_sentence(install: Install, value: str, says: str) -> None:
    install({"mine": value})
    with pytest.raises(UsageError) as caught:
        scheme_named("mine")
    prefix = f"scheme 'mine': {value}, an entry point of the distribution 'my-inits', "
    assert str(caught.value) == f"{prefix}{says}{TAIL}"
    assert "mine" in scheme_names(), "names are listed without loading anything"
    assert scheme_named("gpt2") is SCHEMES["gpt2"], "and a broken one is nobody else's trouble"


def written(scheme: str = "", draw: str = "'normal', '1'") -> str:
    """A module with a scheme whose fields, or whose draw of mlp_out, are written so."""
    return (
        "from types import MappingProxyType\n"
        "from initdiag.schemes import SCHEMES, Draw, Role, Scheme\n"
        f"ROLES = {{**SCHEMES['gpt2'].roles, Role.MLP_OUT: Draw({draw})}}\n"
        f"MINE = Scheme(**{{**dict(name='mine', summary='', source='', roles=ROLES, parameters={{'std': '0.02'}}), "
        f"**dict({scheme})}})\n"
    )


def wrong(install: Install, module: str) -> str:
    install({"mine": "my_inits:MINE"}, module)
    with pytest.raises(UsageError) as caught:
        scheme_named("mine")
    prefix = "scheme 'mine': my_inits:MINE, an entry point of the distribution 'my-inits', "
    assert str(caught.value).startswith(prefix)
    return str(caught.value).removeprefix(prefix)


@pytest.mark.parametrize("field", ["summary", "source", "family", "depth", "used_by", "calibration"])
def test_a_text_of_another_type(install: Install, field: str) -> None:
    said = wrong(install, written(f"{field}=None"))
    assert said == f"has None (of type NoneType) for its {field}, which is no text{TAIL}"


@pytest.mark.parametrize("field", ["notes", "aliases"])
@pytest.mark.parametrize("value", ["'one'", "['one']", "(1,)", "None"])
def test_texts_of_another_type(install: Install, field: str, value: str) -> None:
    said = wrong(install, written(f"{field}={value}"))
    assert said.startswith(f"has {value} (of type ") and f"for its {field}, which is no tuple of texts" in said


@pytest.mark.parametrize("field", ["roles", "parameters", "choices", "forward", "terms"])
@pytest.mark.parametrize("value", ["None", "5", "('std', '0.02')", "'std'"])
def test_a_mapping_of_another_type(install: Install, field: str, value: str) -> None:
    said = wrong(install, written(f"{field}={value}"))
    assert said.startswith(f"has {value} (of type ") and f"for its {field}, which is no mapping" in said


@pytest.mark.parametrize("field", ["parameters", "forward", "terms"])
@pytest.mark.parametrize("value", ["0.5", "None", "True", "['1']"])
def test_a_number_in_a_mapping_of_formulas(install: Install, field: str, value: str) -> None:
    said = wrong(install, written(f"{field}={{'placement': {value}}}"))
    assert said.startswith(f"has {value} (of type ") and "of 'placement', which is no formula in quotes" in said


@pytest.mark.parametrize(
    ("choices", "says"),
    [
        ("{'mode': None}", "has the choice 'mode' without words"),
        ("{'mode': {}}", "has the choice 'mode' without words"),
        ("{'mode': ('a', 'b')}", "has the choice 'mode' without words"),
        ("{'mode': {'a': 1}}", "has 1 (of type int) in the choice 'mode', which is no text"),
        ("{'mode': {1: 'a'}}", "has 1 (of type int) in the choice 'mode', which is no text"),
        ("{1: {'a': '1'}}", "has 1 (of type int) among its choices, which is no name"),
    ],
)
def test_choices_of_another_type(install: Install, choices: str, says: str) -> None:
    assert wrong(install, written(f"choices={choices}")) == says + TAIL


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        ("'normal', 1", "1 (of type int) for its formula"),
        ("'normal', None", "None (of type NoneType) for its formula"),
        ("'normal', '1', 2", "2 (of type int) for its unscaled"),
        ("'normal', '1', cut=3", "3 (of type int) for its cut"),
        ("'truncated', '1', cut=3", "3 (of type int) for its cut"),
        ("'truncated', '1'", "None (of type NoneType) for its cut"),
    ],
)
def test_a_number_in_a_draw(install: Install, draw: str, says: str) -> None:
    assert wrong(install, written(draw=draw)) == f"draws mlp_out with {says}, which is no formula in quotes{TAIL}"


def test_other_types_in_a_draw(install: Install) -> None:
    said = wrong(install, written(draw="'truncated', '1', cut='2', corrected='yes'"))
    assert said.startswith("draws mlp_out with 'yes' (of type str) for its corrected, which is neither True nor False")


def test_an_unknown_calibration(install: Install) -> None:
    assert wrong(install, written("calibration='lsvu'")).startswith("has 'lsvu' (of type str) for its calibration")


def test_types_that_do_as_well(install: Install) -> None:
    install(
        {"mine": "my_inits:MINE"},
        written(
            "parameters=MappingProxyType({'std': '0.02', 'tip': 'std * depth'}), notes=('one',), aliases=('two',), "
            "choices={'depth': {'all': 'n_layers', 'so far': 'layer + 1'}}, terms={'long': 'branch + tied'}, "
            "forward={'placement': 'post', 'residual_multiplier': '1 / long'}, calibration='lsuv'",
            "'truncated', 'max(std, tip, qk_norm) / sqrt(fan_in * depth)', 'std', 'log(d_model)', True",
        ),
    )
    scheme = scheme_named("mine")
    assert scheme.roles[Role.MLP_OUT].corrected and dict(scheme.parameters) == {"std": "0.02", "tip": "std * depth"}


@pytest.mark.parametrize("field", ["parameters", "choices", "terms"])
@pytest.mark.parametrize("name", ["d_model", "context", "tied", "fan_in", "layer", "branch", "sqrt", "seed", "roles"])
def test_a_name_that_means_something_else(install: Install, field: str, name: str) -> None:
    """`d_model` as a parameter would stand in every formula for another number than the model's."""
    value = "{'a': '1'}" if field == "choices" else "'1'"
    said = wrong(install, written(f"{field}={{'{name}': {value}}}"))
    assert said == f"has '{name}' among its {field}, a name that means something else already{TAIL}"


def test_every_size_of_a_model_is_taken() -> None:
    assert set(sizes(load("tiny").config.model)) == set(OF_A_MODEL)


def test_every_field_of_the_forward_pass_can_be_demanded() -> None:
    assert set(FORWARD) == set(Architecture.model_fields) - set(SIZES_OF_A_SHAPE)


@pytest.mark.parametrize("name", ["two words", "1st", "", "é", "a-b", "lambda", "a\\n"])
def test_a_name_that_no_formula_can_use(install: Install, name: str) -> None:
    said = wrong(install, written(f"parameters={{'{name}': '1'}}"))
    assert "among its parameters, which is no name that a formula can use" in said and said.isprintable()


def test_a_name_twice(install: Install) -> None:
    said = wrong(install, written("choices={'std': {'a': '1'}}"))
    assert said.startswith("has 'std' both among its parameters and its choices")


@pytest.mark.parametrize(
    ("scheme", "draw", "says"),
    [
        ("", "'normal', 'sdt'", "mlp_out: a formula uses 'sdt'; expected one of"),
        ("", "'normal', 'branch'", "mlp_out: a formula uses 'branch'; expected one of"),
        ("", "'normal', '1', 'x'", "mlp_out: a formula uses 'x'; expected one of"),
        ("", "'truncated', '1', cut='(2'", "mlp_out: can't compute the formula '(2': a '(' is never closed"),
        ("parameters={'std': 'tip', 'tip': '1'}", "'normal', '1'", "parameter 'std': a formula uses 'tip'"),
        ("parameters={'std': 'fan_in'}", "'normal', '1'", "parameter 'std': a formula uses 'fan_in'"),
        ("terms={'long': 'x * branch'}", "'normal', '1'", "term 'long': a formula uses 'x'"),
        ("choices={'mode': {'a': 'y'}}", "'normal', '1'", "choice 'a': a formula uses 'y'"),
    ],
)
def test_formulas_that_are_wrong_for_every_model_say_whose_they_are(
    install: Install, scheme: str, draw: str, says: str
) -> None:
    assert wrong(install, written(scheme, draw)).startswith(f"has a wrong formula for {says}")


def test_a_field_of_the_forward_pass_that_nobody_has(install: Install) -> None:
    assert wrong(install, written("forward={'placment': 'post'}")) == (
        "wants 'placment' of the forward pass; expected a field of `model:` that is no size (did you mean 'placement'?)"
    )


@pytest.mark.parametrize(
    ("number", "says"),
    [
        ("1e300", "'1e300' gives 1e+300; expected at most 1e+06"),
        ("-1", "'-1' gives -1; expected a std, bound or gain that is not negative"),
        ("1 / (n_layers - 2)", "can't compute the formula '1 / (n_layers - 2)': float division by zero"),
    ],
)
@pytest.mark.parametrize("distribution", ["normal", "uniform", "orthogonal"])
def test_a_number_that_can_not_be_drawn_says_whose_it_is(
    install: Install, distribution: str, number: str, says: str
) -> None:
    install({"mine": "my_inits:MINE"}, written(draw=f"'{distribution}', '{number}'"))
    with pytest.raises(PlanError) as caught:
        make_plan(scheme_named("mine"), [Parameter("out", (64, 64), Role.MLP_OUT, 64, 0)], SIZES)
    assert str(caught.value) == f"scheme 'mine', mlp_out: {says}"


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        ("'constant', '-1e300'", "'-1e300' gives -1e+300; expected at most 1e+06"),
        ("'normal', '1', '1e7'", "'1e7' gives 1e+07; expected at most 1e+06"),
        ("'truncated', '1', cut='1e7'", "the cut '1e7' gives 1e+07 sigmas; expected at most 1e+06"),
        ("'truncated', '1', cut='std'", "the cut 'std' gives 0.02 sigmas; expected at least 0.1"),
    ],
)
def test_every_number_of_a_draw_has_bounds(install: Install, draw: str, says: str) -> None:
    install({"mine": "my_inits:MINE"}, written(draw=draw))
    with pytest.raises(PlanError) as caught:
        make_plan(scheme_named("mine"), [Parameter("out", (64, 64), Role.MLP_OUT, 64, 0)], SIZES)
    assert str(caught.value) == f"scheme 'mine', mlp_out: {says}"
    assert make_plan(scheme_named("mine"), [Parameter("head", (64, 64), Role.LM_HEAD, 64)], SIZES).entries


def test_what_it_prints_goes_to_stderr(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    """stdout is for results: a program may be reading JSON there."""
    module = "print('imported')\n" + written() + "def made():\n    print('called')\n    return MINE\n"
    install({"mine": "my_inits:made"}, module)
    assert scheme_named("mine").name == "mine"
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "imported\ncalled\n")


def test_a_broken_one_takes_no_other_away(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    points = {"ours": "my_inits:MINE", "quits": "my_inits:quits", "none": "nowhere:X"}
    install(points, written() + "def quits():\n    raise SystemExit(0)\n")
    install({"quits": "my_inits:MINE"}, name="your-inits")
    known = known_schemes()
    assert tuple(known) == scheme_names()
    assert [name for name, one in known.items() if not isinstance(one, Scheme)] == ["none", "quits"]
    explain.scheme(color="never")
    lines = capsys.readouterr().out.splitlines()
    heading = lines.index("of other distributions, broken")
    text = " ".join(" ".join(lines[heading + 1 :]).split())
    assert "none can't be used: nowhere:X, an entry point of the distribution 'my-inits', can't be loaded" in text
    assert "quits can't be used: scheme 'quits' is offered by the distributions 'your-inits' and 'my-inits'" in text
    names = {line.split()[0] for line in lines[:heading] if line.startswith("  ")}
    assert {*SCHEMES, "ours"} <= names and "of other distributions, broken" not in lines[:heading]


def test_metadata_that_can_not_be_read(install: Install) -> None:
    folder = install({"theirs": "my_inits:MINE"}, written(), "their-inits")
    (folder / "their_inits-1.0.dist-info" / "entry_points.txt").write_text("[initdiag.schemes]\nnonsense\n")
    folder = install({"mine": "my_inits:NOTHING"}, written(), "my-inits")
    (folder / "my_inits-1.0.dist-info" / "METADATA").unlink()
    assert scheme_names()[-1] == "mine"
    with pytest.raises(UsageError, match="has no attribute 'NOTHING'"):
        scheme_named("mine")


def test_an_object_that_can_not_even_be_shown(install: Install) -> None:
    module = "class Odd:\n    def __repr__(self):\n        raise KeyError('x')\nMINE = Odd()\n"
    assert wrong(install, module) == f"gives an object (of type Odd){TAIL}"


def test_a_module_that_can_not_be_imported(install: Install) -> None:
    install({"mine": "my_inits:MINE"}, "import os\n1 / 0\n")
    with pytest.raises(UsageError, match="can't be loaded: ZeroDivisionError: division by zero; expected a Scheme"):
        scheme_named("mine")


def test_two_distributions_of_one_name(install: Install) -> None:
    install({"mine": "my_inits:MINE"})
    install({"mine": "my_inits:MINE"}, name="your-inits")
    with pytest.raises(UsageError) as caught:
        scheme_named("mine")
    assert str(caught.value) == (
        "scheme 'mine' is offered by the distributions 'your-inits' and 'my-inits'; expected one of them"
    )


def test_one_distribution_twice_on_the_path_is_one(install: Install, tmp_path: Path) -> None:
    install({"mine": "my_inits:MINE"})
    install({"mine": "my_inits:NUMBER"}, name="MY_inits")
    with pytest.raises(UsageError, match="gives 5"):  # the first on the path hides the other
        scheme_named("mine")


def test_nothing_is_looked_up_for_a_built_in_name() -> None:
    """A scan of what is installed takes milliseconds per hundred distributions."""
    code = (
        "import importlib.metadata as m\n"
        "def refuse(**_): raise AssertionError('scanned')\n"
        "m.distributions = m.entry_points = refuse\n"
        "from initdiag.schemes import scheme_named\n"
        "scheme_named('gpt2'), scheme_named('scaled')\n"
        "try: scheme_named('none of ours')\n"
        "except AssertionError: print('then')"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "then\n"
