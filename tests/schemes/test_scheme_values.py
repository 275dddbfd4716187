"""The three schemes, parameter by parameter, by hand."""

from __future__ import annotations

import math

import pytest

from initdiag.model import parameters, sizes
from initdiag.schemes import SCHEMES, Distribution, InitPlan, make_plan
from tests.small_models import architecture

SHAPE = architecture(d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=16, d_ff=96, gated=True, tied=False)
# name without layer -> fan_in; queries are 4 × 16 = 64 wide, so attention.out sums over 64 inputs
MATRICES = {
    "attention.query": 32,
    "attention.key": 32,
    "attention.value": 32,
    "attention.out": 64,
    "mlp.gate": 32,
    "mlp.input": 32,
    "mlp.out": 96,
}
RESIDUAL = ("attention.out", "mlp.out")


def plan_of(scheme: str, **given: float) -> InitPlan:
    return make_plan(SCHEMES[scheme], parameters(SHAPE), sizes(SHAPE), given)


def by_hand(matrix: str, residual: str, bias: str, embedding: str, head: str) -> dict[str, str]:
    """All parameters of SHAPE; {fan_in} in an answer is filled in."""
    written = {"token_embedding.weight": embedding, "position_embedding.weight": embedding}
    for layer in range(2):
        for norm in ("attention_norm", "mlp_norm"):
            written |= {f"blocks.{layer}.{norm}.weight": "1", f"blocks.{layer}.{norm}.bias": "0"}
        for name, fan_in in MATRICES.items():
            weight = residual if name in RESIDUAL else matrix
            written[f"blocks.{layer}.{name}.weight"] = weight.format(bound=f"{1 / math.sqrt(fan_in):.4g}")
            written[f"blocks.{layer}.{name}.bias"] = bias.format(bound=f"{1 / math.sqrt(fan_in):.4g}")
    return written | {"final_norm.weight": "1", "final_norm.bias": "0", "head.weight": head}


EXPECTED = {
    "gpt2": by_hand("N(0.02)", "N(0.02)", "0", "N(0.02)", "N(0.02)"),
    # N = 2 layers: 0.02 / √4 = 0.01
    "scaled": by_hand("N(0.02)", "N(0.01)", "0", "N(0.02)", "N(0.02)"),
    # 1/√32 = 0.17678
    "default": by_hand("U({bound})", "U({bound})", "U({bound})", "N(1)", "U(0.1768)"),
}


@pytest.mark.parametrize("scheme", EXPECTED)
def test_values(scheme: str) -> None:
    found = {entry.parameter.name: str(entry.distribution) for entry in plan_of(scheme).entries}
    assert found == EXPECTED[scheme]


def stds(plan: InitPlan, *names: str) -> list[float]:
    return [plan[f"blocks.1.{name}.weight"].distribution.std for name in names]


def test_std_moves_the_residual_std_along() -> None:
    assert stds(plan_of("scaled", std=0.06), "mlp.input", *RESIDUAL) == pytest.approx([0.06, 0.03, 0.03])


def test_a_given_residual_std_is_taken_as_it_is() -> None:
    plan = plan_of("scaled", residual_std=0.005)
    assert stds(plan, "mlp.input", *RESIDUAL) == [0.02, 0.005, 0.005]
    assert [plan[f"blocks.1.{name}.weight"].unscaled_std for name in RESIDUAL] == [0.02, 0.02]


def test_only_residual_projections_have_another_unscaled_std() -> None:
    for scheme in EXPECTED:
        for entry in plan_of(scheme).entries:
            residual = scheme == "scaled" and any(f".{name}.weight" in entry.parameter.name for name in RESIDUAL)
            expected = 0.02 if residual else entry.distribution.std
            assert entry.unscaled_std == expected, (scheme, entry.parameter.name)


def test_scaled_for_gpt2_small_is_the_number_of_the_papers_readers() -> None:
    shape = architecture(n_layers=12)
    plan = make_plan(SCHEMES["scaled"], parameters(shape), sizes(shape))
    distribution: Distribution = plan["blocks.11.mlp.out.weight"].distribution
    assert distribution.std == pytest.approx(0.00408, abs=5e-6)  # measured in HF GPT-2 (facts/schemes.md, A1)
