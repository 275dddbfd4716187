"""The scaling of a module that nobody declared, against what was drawn."""

from __future__ import annotations

import math

import pytest

from initdiag.measure import Branch
from initdiag.measure.scaling import scaling_ratio, unscaled_stds
from initdiag.measure.weights import measure_parameters
from initdiag.schemes import AsFound, InitPlan, Parameter, Part, PlannedParameter, Role
from tests.small_models import drawn, subject

D, D_FF, LAYERS = 64, 256, 6
VALUE, OUT, IN, DOWN = Role.ATTENTION_VALUE, Role.ATTENTION_OUT, Role.MLP_IN, Role.MLP_OUT


def layer_of_roles(layer: int) -> list[Parameter]:
    fan_ins = {VALUE: D, OUT: D, IN: D, DOWN: D_FF}
    return [Parameter(f"h.{layer}.{role}", (1, fan), role, fan, layer) for role, fan in fan_ins.items()]


ROLES = [parameter for layer in range(LAYERS) for parameter in layer_of_roles(layer)]


def stds(value: float, out: float, up: float, down: float) -> dict[str, float]:
    numbers = {VALUE: value, OUT: out, IN: up, DOWN: down}
    return {parameter.name: numbers[parameter.role] for parameter in ROLES}


@pytest.mark.parametrize("factor", [1.0, 1 / math.sqrt(2 * LAYERS), 1 / (2 * LAYERS)])
def test_one_std_for_all(factor: float) -> None:
    """GPT-2's family: the std doesn't depend on the fan-in, so what feeds a branch has the unscaled std."""
    found = unscaled_stds(ROLES, stds(0.02, 0.02 * factor, 0.02, 0.02 * factor))
    assert found == pytest.approx(dict.fromkeys(found, 0.02)) and len(found) == 2 * LAYERS


@pytest.mark.parametrize("factor", [1.0, 1 / math.sqrt(2 * LAYERS)])
def test_by_fan_in(factor: float) -> None:
    """PyTorch's and Kaiming's family: std ∝ 1/√fan_in, so an MLP's output is unscaled at half the std of its input."""
    wide, narrow = 1 / math.sqrt(D), 1 / math.sqrt(D_FF)
    found = unscaled_stds(ROLES, stds(wide, wide * factor, wide, narrow * factor))
    assert found[f"h.0.{OUT}"] == pytest.approx(wide) and found[f"h.0.{DOWN}"] == pytest.approx(narrow)


@pytest.mark.parametrize(
    ("value", "key"),
    [(0.02, 0.125), (0.02, 0.01), (0.02 / math.sqrt(2 * LAYERS), 0.02), (0.02, 0.02 / math.sqrt(2 * LAYERS))],
    ids=["wide keys", "narrow keys", "scaled values", "scaled keys"],
)
def test_values_or_keys(value: float, key: float) -> None:
    """Xavier's keys of a head are no measure, nor are values that were scaled in place of the output."""
    keys = [Parameter(f"h.{layer}.key", (1, D), Role.ATTENTION_KEY, D, layer) for layer in range(LAYERS)]
    scaled = 0.02 / math.sqrt(2 * LAYERS)
    found = unscaled_stds(
        [*ROLES, *keys], stds(value, scaled, 0.02, scaled) | dict.fromkeys([k.name for k in keys], key)
    )
    assert found == pytest.approx(dict.fromkeys(found, 0.02)) and len(found) == 2 * LAYERS


@pytest.mark.parametrize("layers", [6, 12])
@pytest.mark.parametrize("narrow", [0.7, 0.8, 1.5])
def test_an_input_of_another_std(layers: int, narrow: float) -> None:
    """A scaled GPT-2 but for the MLP's input: no reading is known, and that nearer to the attention's is taken."""
    roles = [parameter for layer in range(layers) for parameter in layer_of_roles(layer)]
    scaled = 0.02 / math.sqrt(2 * layers)
    numbers = {VALUE: 0.02, OUT: scaled, IN: 0.02 * narrow, DOWN: scaled}
    found = unscaled_stds(roles, {parameter.name: numbers[parameter.role] for parameter in roles})
    assert 0.5 < found[f"h.0.{DOWN}"] / 0.02 < 2


def test_zeros_and_branches_without_kin_are_left_out() -> None:
    assert unscaled_stds(ROLES, stds(0.02, 0.0, 0.02, 0.0)) == {}
    assert unscaled_stds([one for one in ROLES if one.role in (OUT, DOWN)], stds(0.02, 0.02, 0.02, 0.02)) == {}


def test_a_part_of_a_packed_matrix_is_kin() -> None:
    packed = Parameter(
        "qkv", (3, D), Role.ATTENTION_QUERY, D, 0, parts=(Part(Role.ATTENTION_QUERY, ((0, 1),)), Part(VALUE, ((1, 3),)))
    )
    out = Parameter("out", (1, D), OUT, D, 0)
    assert unscaled_stds([packed, out], {"qkv": 0.03, "out": 0.01}) == {"out": pytest.approx(0.03)}


@pytest.mark.parametrize(("scheme", "exponent"), [("gpt2", 1.0), ("scaled", 0.0), ("default", 1.0)])
def test_a_module_tells_what_its_plan_says(scheme: str, exponent: float) -> None:
    """What is read off the tensors of the reference Transformer is what its plan has."""
    of = subject(scheme, n_layers=4)
    measured = measure_parameters(drawn(of))
    found = unscaled_stds([entry.parameter for entry in of.plan.entries], {one.name: one.std for one in measured})
    assert len(found) == 8
    for name, std in found.items():
        # a std of 16 × 16 = 256 draws is known to √(1/512) = 4.4 %, and four of them go into it
        assert std == pytest.approx(of.plan[name].unscaled_std, rel=0.2)


@pytest.mark.parametrize(("factor", "ratio"), [(1.0, 8.0), (1 / math.sqrt(8), 1.0), (1 / 8, 1 / 8)])
def test_the_ratio_counts_unscaled_branches(factor: float, ratio: float) -> None:
    """Σ (factor·v)² over v², eight branches: 8·factor²."""
    names = [f"w{i}" for i in range(8)]
    plan = InitPlan(
        "as built", {}, tuple(PlannedParameter(Parameter(n, (4, 4), OUT, 4), AsFound(factor), 1.0) for n in names)
    )
    measured = tuple(
        type(one)(name, one.mean, factor, one.not_finite)
        for name, one in zip(names, [measure_parameters(drawn(subject()))[0]] * 8, strict=True)
    )
    branches = tuple(Branch(i, n, i, "mlp", n, 3.0 * factor**2, 1.0) for i, n in enumerate(names))
    assert scaling_ratio(branches, {one.name: one.std for one in measured}, plan) == pytest.approx(ratio)
