"""Random architectures over all fields: the forward pass beside the plain one, and what no field may change."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from initdiag.model.architecture import Architecture
from initdiag.model.transformer import Transformer
from tests.model import plain
from tests.model.random_shapes import examples, given_fields, shapes
from tests.small_models import shaken

EXACT = 1e-9  # of the largest logit: some hundred roundings of float64, 1e-16 each, and norms that divide by small rms


def in_float64(shape: Architecture) -> Transformer:
    module = shaken(Transformer(shape).double()).eval()
    assert isinstance(module, Transformer)
    return module


def ids_of(shape: Architecture, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(shape.vocab_size, (batch, shape.context), generator=generator)


def largest(x: Tensor) -> float:
    return max(1.0, float(x.abs().max()))


@examples(35)
@given(shapes)
@torch.no_grad()
def test_beside_the_plain_implementation(shape: Architecture) -> None:
    module, ids = in_float64(shape), ids_of(shape)
    expected = plain.logits(shape, dict(module.named_parameters()), ids)
    found = module(ids)
    assert found.shape == (2, shape.context, shape.vocab_size)
    torch.testing.assert_close(found, expected, rtol=0, atol=EXACT * largest(expected))


@examples(20)
@given(shapes, st.data())
@torch.no_grad()
def test_logits_of_rows_and_no_token_sees_a_later_one(shape: Architecture, data: st.DataObject) -> None:
    module, ids = in_float64(shape), ids_of(shape)
    before = module(ids)
    first, last = sorted(data.draw(st.tuples(*2 * [st.integers(0, shape.vocab_size)])))
    some = module.logits(module.states(ids), slice(first, last))
    torch.testing.assert_close(some, before[..., first:last], rtol=0, atol=1e-12 * largest(before))

    position = data.draw(st.integers(1, shape.context - 1))
    changed = ids.clone()
    changed[:, position:] = (changed[:, position:] + 1) % shape.vocab_size
    after = module(changed)
    # a change of what is computed together may change roundings, and nothing else
    torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=EXACT * largest(before))
    torch.testing.assert_close(module(ids[:, :position]), before[:, :position], rtol=0, atol=EXACT * largest(before))


@examples(35)
@given(given_fields)
def test_what_was_given_makes_the_same_architecture_again(given: dict[str, Any]) -> None:
    shape = Architecture(**given)
    dumped = shape.model_dump(exclude_unset=True)
    assert set(dumped) == set(given)
    assert Architecture.model_validate(dumped) == shape
    assert Architecture.model_validate(dumped).model_dump(exclude_unset=True) == dumped


def test_every_field_is_drawn() -> None:
    """The tests above look at all fields: some of their architectures give each."""
    seen: set[str] = set()

    @examples(100)
    @given(given_fields)
    def look(given: dict[str, Any]) -> None:
        seen.update(given)

    look()
    assert seen == set(Architecture.model_fields)
