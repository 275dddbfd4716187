"""A plan in the terms of an architecture: gains that are 1 + w, and residual scaling that the forward pass does."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from initdiag.errors import PlanError, UsageError
from initdiag.model.planning import planned
from initdiag.schemes import SCHEMES, Constant, Draw, InitPlan, Normal, Role
from tests.small_models import architecture

OUT, DOWN = "blocks.1.attention.out.weight", "blocks.1.mlp.out.weight"


def plan(scheme: str = "scaled", **fields: object) -> InitPlan:
    return planned(architecture(**{"n_layers": 2, **fields}), SCHEMES[scheme])[1]


def test_one_plus_norms_hold_the_gain_less_one() -> None:
    gains = plan(norm_scale="one_plus").with_role(Role.NORM_SCALE)
    assert len(gains) == 2 * 2 + 1
    assert {entry.distribution for entry in gains} == {Constant(0.0)}
    assert {entry.distribution for entry in plan().with_role(Role.NORM_SCALE)} == {Constant(1.0)}
    assert {entry.distribution for entry in plan("gemma").with_role(Role.NORM_SCALE)} == {Constant(0.0)}
    half = replace(SCHEMES["gpt2"], roles={**SCHEMES["gpt2"].roles, Role.NORM_SCALE: Draw("constant", "0.5")})
    entries = planned(architecture(norm_scale="one_plus"), half)[1].with_role(Role.NORM_SCALE)
    assert {entry.distribution for entry in entries} == {Constant(-0.5)}


def test_other_constants_are_as_the_scheme_says() -> None:
    entries = plan("layerscale", norm_scale="one_plus").entries
    multipliers = [one.distribution for one in entries if one.parameter.role is Role.MULTIPLIER]
    assert multipliers == [Constant(1e-4)] * 4
    assert {one.distribution for one in entries if one.parameter.role is Role.BIAS} == {Constant(0.0)}


def test_without_multipliers_the_unscaled_std_is_the_schemes() -> None:
    for name in (OUT, DOWN):
        entry = plan()[name]
        assert entry.distribution == Normal(0.02 / math.sqrt(4))
        assert entry.unscaled_std == 0.02
    assert plan()["blocks.0.mlp.input.weight"].unscaled_std == 0.02


def test_a_residual_multiplier_counts_as_scaling() -> None:
    entries = plan(residual_multiplier=0.5)
    assert entries[OUT].distribution == Normal(0.01)  # what is drawn stays
    assert entries[OUT].unscaled_std == pytest.approx(0.02 / 0.5)
    assert entries["blocks.0.mlp.input.weight"].unscaled_std == 0.02  # only what writes the stream
    minicpm = plan("minicpm", d_model=256, n_heads=4)
    assert minicpm[DOWN].distribution.std == pytest.approx(0.1)
    assert minicpm[DOWN].unscaled_std == pytest.approx(0.1 / (1.4 / math.sqrt(2)))


def test_each_branch_has_its_own_multiplier() -> None:
    """Branch 2·layer + 1 is attention, 2·layer + 2 the MLP."""
    entries = plan(residual_multiplier="branch")
    assert [entry.unscaled_std for entry in entries.with_role(Role.ATTENTION_OUT)] == pytest.approx([0.02, 0.02 / 3])
    assert [entry.unscaled_std for entry in entries.with_role(Role.MLP_OUT)] == pytest.approx([0.01, 0.005])


def test_experts_and_shared_experts_are_of_one_branch() -> None:
    entries = plan(residual_multiplier="branch", moe={"experts": 4, "top_k": 2, "shared": 1}).with_role(Role.MLP_OUT)
    assert [entry.unscaled_std for entry in entries] == pytest.approx([0.01, 0.01, 0.005, 0.005])


@pytest.mark.parametrize("placement", ["sandwich", "reordered"])
def test_a_norm_after_the_branch_takes_the_schemes_scaling_away(placement: str) -> None:
    assert plan(placement=placement)[OUT].unscaled_std == pytest.approx(0.01)
    assert plan(placement=placement, residual_multiplier=0.5)[OUT].unscaled_std == pytest.approx(0.02)
    assert plan(placement="post")[OUT].unscaled_std == 0.02


def test_matrices_of_nothing_stay_nothing() -> None:
    for entry in plan("zero-residual", residual_multiplier=0.5).with_role(Role.ATTENTION_OUT, Role.MLP_OUT):
        assert entry.distribution == Constant(0.0)


def test_settings_are_checked_before_anything_else() -> None:
    with pytest.raises(UsageError, match=r"scheme 'deepnorm' has no parameter 'alhpa'.*did you mean 'alpha'"):
        planned(architecture(), SCHEMES["deepnorm"], {"alhpa": 2.0})
    shape, made = planned(architecture(), SCHEMES["deepnorm"], {"alpha": 2.0})
    assert shape.stream_multiplier == 2.0
    assert made.settings["alpha"] == 2.0
    with pytest.raises(PlanError, match="stream_multiplier"):
        planned(architecture(), SCHEMES["deepnorm"], {"alpha": -2.0})
