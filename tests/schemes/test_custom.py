"""Schemes of a user's own: roles over a published scheme, and entry points of other distributions."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from initdiag.errors import UsageError
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
        ("my_inits:PLAIN", "answers for bias with 0, which is no Draw"),
        ("my_inits:WORD", "draws bias from 'norml', which is none of normal, uniform, truncated, orthogonal, constant "
         "(did you mean 'normal'?)"),
        ("my_inits:FLOAT", "draws bias from normal, whose numbers are not all formulas in quotes"),
        ("my_inits:CUT", "draws bias from truncated, whose numbers are not all formulas in quotes"),
        ("my_inits:DEFAULT", "has 0.02 as the default of 'std', which is no formula in quotes"),
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
