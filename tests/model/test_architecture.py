"""An architecture that is made in Python is held to what a config file is held to."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from initdiag.model.architecture import RotaryScaling
from tests.small_models import architecture

SCALING = {"factor": 8, "low": 1, "high": 4, "context": 16}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"n_heads": 5}, "n_heads: 5 does not divide d_model 32"),
        ({"rotary_base": 5e5}, "rotary_base: found 500000 with position learned, expected position rotary"),
        ({"position": "none", "rotary_scaling": SCALING}, "rotary_scaling: found with position none"),
        (
            {"position": "rotary", "rotary_scaling": SCALING | {"low": 4}},
            "rotary_scaling.low: found 4, expected less than rotary_scaling.high, 4",
        ),
        (
            {"position": "rotary", "rotary_scaling": RotaryScaling(factor=8, low=5, high=4, context=16)},
            "rotary_scaling.low: found 5, expected less than rotary_scaling.high, 4",
        ),
        ({"position": "rotary", "rotary_scaling": SCALING | {"type": "llama3"}}, "Extra inputs are not permitted"),
    ],
)
def test_what_does_not_fit_together(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as caught:
        architecture(**fields)
    assert message in str(caught.value)


def test_a_mapping_and_the_class_are_the_same_scaling() -> None:
    given = architecture(position="rotary", rotary_scaling=SCALING)
    assert given == architecture(position="rotary", rotary_scaling=RotaryScaling(**SCALING))
    with pytest.raises(ValidationError, match="frozen"):
        given.rotary_scaling.factor = 4
