"""Spreads that a few numbers can't have: of entropies between 0 and 1, and of layers of two heads."""

from __future__ import annotations

import math

import pytest

from initdiag.theory import predict
from initdiag.theory.forward import _head_chances
from initdiag.theory.seen import SeenHeads
from tests.small_models import subject, tokens


@pytest.mark.parametrize("std", [0.02, 0.1, 0.3, 1.0])
def test_an_entropy_between_0_and_1_has_no_larger_spread_than_such_a_number_can_have(std: float) -> None:
    """√(m(1 − m)), that of one which is 0 or 1."""
    of = subject("gpt2", std=std, d_model=128, tied=False)
    found = predict(of, tokens(of, 2, seed=0))
    mean = found.values.logits.entropy_ratio
    assert found.spreads.entropy_ratio <= math.sqrt(mean * (1 - mean)) * (1 + 1e-12)


def test_no_layer_has_less_chance_than_all_together_show() -> None:
    two_alike, apart = SeenHeads(0.2, 0.9, 0.0, 0.0), SeenHeads(0.1, 0.8, 0.0004, 0.0016)
    found = _head_chances([two_alike, apart, SeenHeads(math.nan, math.nan, math.nan, math.nan)])
    assert found[0] == pytest.approx((0.2**2 * 0.04 / 2, 0.9**2 * 0.0025 / 2))  # half of the other's, relatively
    assert found[1] == (0.0004, 0.0016)
    assert all(map(math.isnan, found[2]))


def test_one_head_that_is_drawn_says_nothing() -> None:
    assert all(map(math.isnan, _head_chances([SeenHeads(0.2, 0.9, math.nan, math.nan)])[0]))
