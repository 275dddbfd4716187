"""How schemes are listed and explained; the schemes are made up, so that nothing here depends on the table."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from rich.cells import cell_len

from initdiag.report import Style
from initdiag.report.formulas import spelled_out, substituted
from initdiag.report.scheme_pages import scheme_list, scheme_page, schemes_markdown
from initdiag.report.scheme_words import draws, in_short, truncations, written
from initdiag.schemes import SCHEMES, Draw, Role, Scheme
from initdiag.schemes.roles import EMBEDDINGS, INPUT_PROJECTIONS, LINEAR_WEIGHTS, RESIDUAL_PROJECTIONS
from initdiag.schemes.scheme import PLAIN

STD = Draw("normal", "std")
MINE = Scheme(
    name="mine",
    family="Ours",
    summary="small normals, the residual projections smaller",
    source="a/repository of/code.py",
    roles={
        **PLAIN,
        **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), STD),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, Draw("normal", "residual_std", unscaled="std")),
        Role.LM_HEAD: Draw("truncated", "d_model ** -0.5", cut="cut"),
    },
    parameters={"std": "0.02", "residual_std": "std / sqrt(2 * depth)", "cut": "3"},
    choices={"depth": {"layer": "layer + 1", "total": "n_layers"}},
    forward={"embedding_multiplier": "sqrt(d_model)", "logit_multiplier": "12 / depth", "placement": "post"},
    depth="grows like log N",
    used_by="nobody",
    notes=("A first quirk.", "A second quirk."),
    aliases=("my-own", "ours"),
)


def lines(text: str) -> str:
    """A page on one line, as read."""
    return " ".join(text.split())


# In short


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, ("all N(std)", "std 0.02")),
        (dict.fromkeys(EMBEDDINGS, Draw("normal", "1")), ("all N(std)", "embedding N(1)", "std 0.02")),
        ({Role.TOKEN_EMBEDDING: Draw("normal", "1")}, ("all N(std)", "token embedding N(1)", "std 0.02")),
        ({Role.MLP_OUT: Draw("constant", "0")}, ("all N(std)", "mlp out 0", "std 0.02")),
        ({Role.MLP_OUT: Draw("normal", "0 * std")}, ("all N(std)", "mlp out 0", "std 0.02")),
        (
            dict.fromkeys((*RESIDUAL_PROJECTIONS, Role.MLP_IN), Draw("uniform", "2")),
            ("all N(std)", "out, mlp in U(2)", "std 0.02"),
        ),
        ({Role.NORM_SCALE: Draw("constant", "0")}, ("all N(std)", "norm scale 0", "std 0.02")),
        ({Role.BIAS: Draw("uniform", "std")}, ("all N(std)", "bias U(std)", "std 0.02")),
        (
            dict.fromkeys((*INPUT_PROJECTIONS, *EMBEDDINGS), Draw("orthogonal", "1")),
            ("all O(1)", "out, head, router N(std)", "std 0.02"),
        ),
    ],
)
def test_in_short(changed: dict[Role, Draw], expected: tuple[str, ...]) -> None:
    roles = {**PLAIN, **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), STD), **changed}
    assert in_short(Scheme("mine", "", "", roles, {"std": "0.02"})) == expected


def test_no_draw_is_called_all_that_half_of_the_weights_do_not_have() -> None:
    halves = {role: Draw("normal", "1") for role in (*INPUT_PROJECTIONS, Role.LM_HEAD)}  # 6 of 11
    roles = {**dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), STD), **halves}
    del roles[Role.POSITION_EMBEDDING]
    assert in_short(Scheme("mine", "", "", {**roles, Role.LM_HEAD: STD}))[1:] == ("in N(1)",)
    del roles[Role.LM_HEAD]  # 5 of 9
    assert in_short(Scheme("mine", "", "", roles)) == ("all N(1)", "embedding, out, router N(std)")
    roles[Role.MLP_GATE] = Draw("normal", "2")  # 4, 4 and 1
    assert in_short(Scheme("mine", "", "", roles)) == (
        "embedding, out, router N(std)",
        "q/k/v, mlp in N(1)",
        "gate N(2)",
    )


def test_in_short_parameters_are_their_defaults() -> None:
    """A choice is its first word, a cut a number; roles that end up alike are told together."""
    assert in_short(MINE) == (
        "all N(std)",
        "out N(std / sqrt(2 * (layer + 1)))",
        "head TN(d_model ** -0.5, cut 3σ)",
        "std 0.02",
        "forward: embedding_multiplier, logit_multiplier, placement",
    )
    alike = replace(MINE, choices={}, parameters={"std": "0.02", "residual_std": "std", "cut": "3"})
    assert in_short(alike)[:2] == ("all N(std)", "head TN(d_model ** -0.5, cut 3σ)")


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("std / sqrt(2 * depth)", "std / sqrt(2 * (layer + 1))"),
        ("std / one", "std"),
        ("one * std * 1", "std"),
        ("std ** (one - 1)", "std ** (1 - 1)"),
        ("d_model ** minus", "d_model ** -0.5"),
        ("std / max(one, 0.5)", "std"),
        ("std * min(one, 0.5)", "std * 0.5"),
        ("sqrt(width / base)", "sqrt(d_model / base / base)"),
        ("one / std", "1 / std"),
        ("std - 1", "std - 1"),
        ("std / (2 * n_layers) ** (none / 2)", "std"),
    ],
)
def test_formulas_with_defaults_in_them(formula: str, expected: str) -> None:
    scheme = Scheme(
        *("mine", "", "", {}),
        parameters={"std": "0.02", "base": "d_model", "width": "d_model / base"},
        choices={
            "depth": {"layer": "layer + 1", "total": "1"},
            "one": {"a": "1", "b": "2"},
            "minus": {"half": "-0.5"},
            "none": {"no": "0", "yes": "1"},
        },
    )
    assert spelled_out(formula, scheme) == expected


def test_what_is_put_into_a_formula_keeps_its_parentheses() -> None:
    assert substituted("a * b ** c", {"a": "x + y", "b": "-x", "c": "y / 2"}) == "(x + y) * (-x) ** (y / 2)"
    assert substituted("sqrt( a )+b", {"c": "x"}) == "sqrt( a )+b"


# Truncation


@pytest.mark.parametrize(
    ("cut", "corrected", "expected"),
    [
        # √(1 − 2cφ(c)/(2Φ(c) − 1)): 0.8796 at two sigmas, 0.9866 at three
        (
            "2",
            False,
            "cut at 2 sigmas and not corrected: its number is sigma, and the std that is left is 0.8796 of sigma",
        ),
        (
            "3",
            False,
            "cut at 3 sigmas and not corrected: its number is sigma, and the std that is left is 0.9866 of sigma",
        ),
        ("2", True, "cut at 2 sigmas and corrected: its number is the std that is left, which is 0.8796 of sigma"),
        ("edge", False, r"cut at 3 sigmas \(edge, by default\) and not corrected: .* 0.9866 of sigma"),
        ("edge / std", False, r"cut at 150 sigmas \(edge / std, by default\) and not .* 1.0000 of sigma"),
        ("edge * layer", True, r"cut at edge \* layer sigmas and corrected: .* which is less than sigma"),
    ],
)
def test_truncation(cut: str, corrected: bool, expected: str) -> None:
    draw = Draw("truncated", "std", cut=cut, corrected=corrected)
    scheme = Scheme("mine", "", "", {Role.MLP_IN: draw, Role.MLP_OUT: draw}, {"std": "0.02", "edge": "3"})
    (told,) = truncations(scheme)
    assert re.fullmatch(f"TN is {expected}", told)
    assert lines(f"truncation: {told}") in lines(scheme_page(scheme, Style(width=80)))


def test_no_cut_no_word_of_it() -> None:
    assert truncations(Scheme("mine", "", "", {Role.MLP_IN: STD})) == []


def test_cuts_that_are_formulas_can_be_read() -> None:
    assert written(Draw("truncated", "std", cut="2")) == "TN(std, cut 2σ)"
    assert written(Draw("truncated", "std", cut="edge")) == "TN(std, cut edge·σ)"
    assert written(Draw("truncated", "std", cut="3 * std", corrected=True)) == "TN(std, cut (3 * std)·σ, std kept)"


# A page


def test_roles_are_grouped_by_what_they_share() -> None:
    inputs = (*EMBEDDINGS, *INPUT_PROJECTIONS, Role.ROUTER)
    assert draws(MINE) == [
        (STD, tuple(role for role in Role if role in inputs)),
        (Draw("normal", "residual_std", unscaled="std"), (Role.ATTENTION_OUT, Role.MLP_OUT)),
        (Draw("constant", "0"), (Role.ATTENTION_SINK, Role.NORM_BIAS, Role.BIAS, Role.ROUTER_BIAS)),
        (Draw("constant", "1"), (Role.NORM_SCALE, Role.MULTIPLIER)),
        (Draw("truncated", "d_model ** -0.5", cut="cut"), (Role.LM_HEAD,)),
    ]
    rows = [" ".join(line.split()) for line in scheme_page(MINE, Style(width=200)).splitlines()]
    assert "N(residual_std) attention_out, mlp_out" in rows
    assert "TN(d_model ** -0.5, cut cut·σ) lm_head" in rows


@pytest.mark.parametrize("width", [40, 80, 120, None])
def test_a_page_tells_everything(width: int | None) -> None:
    page = lines(scheme_page(MINE, Style(width=width)))
    assert page.startswith("mine: small normals, the residual projections smaller")
    for told in (
        "also found as: my-own, ours",
        "family: Ours",
        "- token embeddings times sqrt(d_model) (embedding_multiplier)",
        "- logits times 12 / depth = 12 / (layer + 1) by default (logit_multiplier)",
        "- a norm after every addition: norm(x + f(x)) (placement: post)",
        "In a module of your own its forward has to do it",
        "with depth: grows like log N",
        "used by: nobody",
        "source: a/repository of/code.py",
        "- A first quirk. - A second quirk.",
    ):
        assert told in page, told
    if width != 40:
        assert "residual_std std / sqrt(2 * depth)" in page
        assert "depth layer = layer + 1 (default); total = n_layers" in page


def test_a_page_leaves_out_what_there_is_not() -> None:
    page = scheme_page(Scheme("mine", "plain", "a book", {Role.MLP_IN: STD}), Style(width=80))
    starts = [line.split(maxsplit=1)[0] for line in page.splitlines() if line]
    for word in ("parameter", "choice", "The", "truncation:", "with", "used", "also", "-"):
        assert word not in starts


# Of all schemes


@pytest.mark.parametrize("width", [60, 80, 160])
def test_the_list_has_every_scheme_and_fits(width: int) -> None:
    text = scheme_list(Style(width=width))
    assert max(map(cell_len, text.splitlines())) <= max(width, 80)
    words = lines(text)
    for scheme in SCHEMES.values():
        assert f"\n  {scheme.name} " in text
        assert f" {scheme.name} {lines('; '.join(in_short(scheme)))} from {lines(scheme.source)} " in words
        assert re.search(rf"^{re.escape(scheme.family)}$", text, re.MULTILINE)
    assert "\x1f" not in text


def test_in_a_pipe_a_scheme_is_one_line() -> None:
    found = {line.split()[0]: line for line in scheme_list(Style()).splitlines() if line.startswith("  ")}
    assert list(found) == list(dict.fromkeys(found)) and found.keys() == SCHEMES.keys()
    assert all(found[name].endswith(f"from {scheme.source}") for name, scheme in SCHEMES.items())


def test_ascii_and_colours() -> None:
    assert scheme_list(Style(width=80, ascii=True)).isascii()
    assert scheme_page(MINE, Style(width=80, ascii=True)).isascii()
    assert "\x1b[1m" in scheme_list(Style(width=80, color=True))


@pytest.mark.parametrize("name", SCHEMES)
def test_every_page_fits_80_columns(name: str) -> None:
    """But for long paths in sources and formulas without spaces, which are not broken."""
    for line in scheme_page(SCHEMES[name], Style(width=80)).splitlines():
        assert cell_len(line) <= 80 or len(line.split()) <= 2, line


def test_markdown_has_a_row_and_a_section_for_every_scheme() -> None:
    text = schemes_markdown()
    assert sorted(line[3:] for line in text.splitlines() if line.startswith("## ")) == sorted(SCHEMES)
    linked = re.findall(r"^\| .*\| \[(.+)\]\(#(.+)\) \| `[^`]+` \|$", text, re.MULTILINE)
    assert sorted(name for name, _ in linked) == sorted(SCHEMES)
    assert all(name == anchor for name, anchor in linked)
    families = [family for family in re.findall(r"^\| (.*) \| \[", text, re.MULTILINE) if family]
    assert families == list(dict.fromkeys(scheme.family for scheme in SCHEMES.values()))
    for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
        assert len(re.findall(r"(?<!\\)\|", row)) in (3, 4), "a | inside a cell"


def test_every_demand_is_put_into_words() -> None:
    """A field that nobody has words for is shown by its name alone."""
    for scheme in SCHEMES.values():
        page = lines(scheme_page(scheme, Style()))
        for field, value in scheme.forward.items():
            assert f"({field})" in page or f"({field}: {value})" in page, f"{scheme.name}: {field}"
