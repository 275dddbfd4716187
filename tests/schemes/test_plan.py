"""A plan answers for every parameter exactly once, or says which one is the trouble."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from initdiag.errors import PlanError, UsageError
from initdiag.model import parameters, sizes
from initdiag.schemes import (
    SCHEMES,
    Constant,
    Distribution,
    Draw,
    Normal,
    Parameter,
    Part,
    Role,
    Scheme,
    Truncated,
    Uniform,
    make_plan,
    scheme_named,
)
from tests.small_models import WIRINGS, architecture

MATRIX = Parameter("a.weight", (4, 3), Role.MLP_IN, 3, layer=2)


def scheme(formula: str, distribution: str = "normal", unscaled: str | None = None) -> Scheme:
    return Scheme(
        "mine", "", "", {Role.MLP_IN: Draw(distribution, formula, unscaled)}, {"std": "0.5", "half": "std / 2"}
    )


# together these wirings have every role that there is; the others are tried with one scheme
TELLING = ("gpt2", "layerscale", "gpt-oss")
CASES = [*product(SCHEMES, TELLING), *product(["scaled"], [name for name in WIRINGS if name not in TELLING])]


def test_the_telling_wirings_have_every_role() -> None:
    roles = {one.role for name in TELLING for one in parameters(architecture(**WIRINGS[name]))}
    assert roles == set(Role) - {Role.OTHER}


@pytest.mark.parametrize(("name", "wiring"), CASES)
def test_every_parameter_exactly_once_in_the_models_order(name: str, wiring: str) -> None:
    shape = architecture(**WIRINGS[wiring])
    plan = make_plan(SCHEMES[name], parameters(shape), sizes(shape))
    assert [entry.parameter for entry in plan.entries] == list(parameters(shape))
    assert plan.scheme == name
    for entry in plan.entries:
        assert plan[entry.parameter.name] is entry


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_answers_for_every_role_that_it_can_draw(name: str) -> None:
    """What no operation tells the use of stays as its own code made it."""
    assert set(SCHEMES[name].roles) == set(Role) - {Role.OTHER}


def test_a_role_without_an_answer_is_named() -> None:
    roles = {role: draw for role, draw in SCHEMES["gpt2"].roles.items() if role is not Role.MLP_GATE}
    shape = architecture(gated=True)
    with pytest.raises(PlanError) as caught:
        make_plan(replace(SCHEMES["gpt2"], roles=roles), parameters(shape), sizes(shape))
    assert "'blocks.0.mlp.gate.weight' (role mlp_gate)" in str(caught.value)
    assert "mlp_in" in str(caught.value)  # what it does answer for


def test_a_parameter_listed_twice_is_named() -> None:
    other = replace(MATRIX, name="b.weight")
    with pytest.raises(PlanError, match=r"'a\.weight' is listed twice"):
        make_plan(scheme("std"), [MATRIX, other, MATRIX], {})


def test_an_unknown_setting_is_named_with_what_there_is() -> None:
    with pytest.raises(UsageError) as caught:
        make_plan(SCHEMES["scaled"], [], {"n_layers": 2}, {"residual_sdt": 0.1})
    assert "'residual_sdt'" in str(caught.value)
    assert "its parameters: std, residual_std" in str(caught.value)
    assert "did you mean 'residual_std'?" in str(caught.value)
    with pytest.raises(UsageError, match="scheme 'default' has no parameter 'std'; its parameters: none"):
        make_plan(SCHEMES["default"], [], {}, {"std": 0.02})


def test_an_unknown_scheme_is_named() -> None:
    with pytest.raises(UsageError, match=r"unknown scheme 'scald'.*did you mean 'scaled'\?"):
        scheme_named("scald")
    assert scheme_named("scaled") is SCHEMES["scaled"]


def test_settings_feed_the_settings_after_them() -> None:
    assert make_plan(scheme("half"), [MATRIX], {}).settings == {"std": 0.5, "half": 0.25}
    assert make_plan(scheme("half"), [MATRIX], {}, {"std": 3.0}).settings == {"std": 3.0, "half": 1.5}
    assert make_plan(scheme("half"), [MATRIX], {}, {"half": 7.0}).settings == {"std": 0.5, "half": 7.0}


def test_formulas_know_sizes_settings_fan_in_and_layer() -> None:
    plan = make_plan(scheme("std + 10 * fan_in + 100 * layer + 1000 * d_model"), [MATRIX], {"d_model": 7.0})
    assert plan["a.weight"].distribution == Normal(0.5 + 30 + 200 + 7000)


def _given(name: str) -> list[dict[str, str]]:
    """The choices of a scheme, each word once."""
    return [{choice: word} for choice, words in SCHEMES[name].choices.items() for word in words] or [{}]


@pytest.mark.parametrize(("name", "given"), [(name, given) for name in SCHEMES for given in _given(name)])
def test_a_parameter_is_answered_as_if_it_were_the_only_one(name: str, given: dict[str, str]) -> None:
    shape = architecture(n_layers=3, d_ff=48, gated=True)
    packed = replace(MATRIX, name="packed", shape=(12, 12), fan_in=12, parts=(Part(Role.MLP_GATE, ((0, 3),)),))
    matrix = replace(MATRIX, shape=(24, 12), fan_in=24)
    alike = (
        packed,
        replace(packed, name="packed otherwise", parts=(Part(Role.MLP_GATE, ((0, 6),)),)),
        replace(matrix, name="24 outputs"),
        replace(matrix, name="36 outputs", shape=(36, 12)),
        replace(matrix, name="12 outputs", transposed=True),
    )
    every = (*parameters(shape), *alike)
    plan = make_plan(SCHEMES[name], every, sizes(shape), given)
    for entry in plan.entries:
        assert entry == make_plan(SCHEMES[name], [entry.parameter], sizes(shape), given).entries[0]


LAYERS = [replace(MATRIX, name=f"{layer}.weight", layer=layer) for layer in range(3)]


@pytest.mark.parametrize(
    ("draw", "expected"),
    [
        (Draw("normal", "1 + layer"), [Normal(1), Normal(2), Normal(3)]),
        (Draw("normal", "1 + ｌayer"), [Normal(1), Normal(2), Normal(3)]),  # which is layer to Python
        (Draw("normal", "by_term"), [Normal(2), Normal(3), Normal(4)]),
        (Draw("normal", "depth"), [Normal(3), Normal(4), Normal(5)]),
        (Draw("truncated", "1", cut="1 + layer"), [Truncated(1, 1), Truncated(1, 2), Truncated(1, 3)]),
        (Draw("normal", "n_layers"), [Normal(7)] * 3),
    ],
)
def test_layers_differ_where_a_formula_says_so(draw: Draw, expected: list[Distribution]) -> None:
    mine = Scheme("mine", "", "", {Role.MLP_IN: draw}, choices={"depth": {"layer": "3 + layer", "total": "n_layers"}})
    mine = replace(mine, terms={"by_term": "2 + layer"} if draw.formula == "by_term" else {})
    given = {} if draw.formula == "depth" else {"depth": "total"}
    plan = make_plan(mine, LAYERS, {"n_layers": 7.0}, given)
    assert [entry.distribution for entry in plan.entries] == expected


def test_unscaled_stds_differ_by_layer() -> None:
    plan = make_plan(scheme("1", unscaled="1 + layer"), LAYERS, {})
    assert [entry.unscaled_std for entry in plan.entries] == [1, 2, 3]


def test_distributions_by_name() -> None:
    assert make_plan(scheme("2", "normal"), [MATRIX], {})["a.weight"].distribution == Normal(2.0)
    assert make_plan(scheme("2", "uniform"), [MATRIX], {})["a.weight"].distribution == Uniform(2.0)
    assert make_plan(scheme("-2", "constant"), [MATRIX], {})["a.weight"].distribution == Constant(-2.0)


def test_no_spread_is_a_constant_and_a_negative_spread_an_error() -> None:
    assert make_plan(scheme("0", "normal"), [MATRIX], {})["a.weight"].distribution == Constant(0.0)
    assert make_plan(scheme("0", "uniform"), [MATRIX], {})["a.weight"].distribution == Constant(0.0)
    with pytest.raises(PlanError, match=r"gives -0\.5; expected a std, bound or gain that is not negative"):
        make_plan(scheme("-std"), [MATRIX], {})


def test_the_unscaled_std_is_the_distributions_own_where_nothing_is_scaled() -> None:
    assert make_plan(scheme("std / 3", unscaled="std"), [MATRIX], {})["a.weight"].unscaled_std == 0.5
    assert make_plan(scheme("std / 3"), [MATRIX], {})["a.weight"].unscaled_std == 0.5 / 3
    assert make_plan(scheme("std", "uniform"), [MATRIX], {})["a.weight"].unscaled_std == pytest.approx(0.5 / 3**0.5)


def test_with_role() -> None:
    plan = make_plan(SCHEMES["gpt2"], parameters(architecture(n_layers=2)), sizes(architecture()))
    assert [entry.parameter.name for entry in plan.with_role(Role.ATTENTION_OUT, Role.MLP_OUT)] == [
        "blocks.0.attention.out.weight",
        "blocks.0.mlp.out.weight",
        "blocks.1.attention.out.weight",
        "blocks.1.mlp.out.weight",
    ]


def test_a_default_that_needs_a_size_nobody_knows() -> None:
    mine = replace(scheme("std"), parameters={"std": "1 / sqrt(head_dim * context)"})
    with pytest.raises(PlanError) as caught:
        make_plan(mine, [MATRIX], {"d_model": 8.0, "context": 4.0})
    assert str(caught.value) == (
        "scheme 'mine' needs head_dim, which is not known of this model; set its parameter std (now "
        "1 / sqrt(head_dim * context)) to a number, e.g. --set init.std=64"
    )
    assert make_plan(mine, [MATRIX], {"d_model": 8.0}, {"std": 3.0})["a.weight"].distribution == Normal(3.0)
    with pytest.raises(PlanError, match="needs n_heads and head_dim, which"):
        make_plan(mine, [MATRIX], {"d_model": 8.0}, {"std": "n_heads * head_dim"})


def test_an_answer_that_needs_a_size_nobody_knows() -> None:
    with pytest.raises(PlanError) as caught:
        make_plan(scheme("std / sqrt(n_heads)"), [MATRIX], {"d_model": 8.0})
    assert str(caught.value) == (
        "scheme 'mine' can't say what 'a.weight' (role mlp_in, N(std / sqrt(n_heads))) is drawn from: n_heads is not "
        "known of this model; use another scheme"
    )
    with pytest.raises(PlanError, match="n_heads is not known"):
        make_plan(scheme("std", unscaled="n_heads"), [MATRIX], {"d_model": 8.0})


BY_LAYER = {"depth": {"layer": "layer + 1", "total": "n_layers"}}


@pytest.mark.parametrize(
    ("formula", "fields"),
    [
        ("std / (layer + 2)", {}),
        ("std / depth", {"choices": BY_LAYER}),
        ("std / twice", {"terms": {"twice": "2 * layer + 2"}}),
        ("std / again", {"terms": {"twice": "2 * layer + 2", "again": "twice"}}),
    ],
    ids=str,
)
def test_what_depends_on_a_layer_has_no_answer_outside_of_layers(formula: str, fields: dict[str, Any]) -> None:
    """No number stands for a layer that isn't there: −1 would be an answer that looks like one."""
    mine, outside = replace(scheme(formula), **fields), replace(MATRIX, layer=None)
    with pytest.raises(PlanError, match=r"what 'a\.weight' .* depends on its layer, and there is no number of a layer"):
        make_plan(mine, [outside], {"n_layers": 4.0})
    inside = make_plan(mine, [MATRIX], {"n_layers": 4.0})["a.weight"].distribution  # layer 2, the third
    assert inside == Normal(0.5 / {"std / (layer + 2)": 4, "std / depth": 3}.get(formula, 6))
    if fields.get("choices"):
        total = make_plan(mine, [outside], {"n_layers": 4.0}, {"depth": "total"})
        assert total["a.weight"].distribution == Normal(0.5 / 4)


def test_the_layer_of_a_parameter_is_not_that_of_a_default() -> None:
    mine = replace(scheme("std"), parameters={"std": "1 / (layer + 1)"})
    with pytest.raises(PlanError, match="a formula uses 'layer'"):
        make_plan(mine, [MATRIX], {"n_layers": 4.0})
