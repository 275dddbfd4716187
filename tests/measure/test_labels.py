"""The loss that a module returns, explained by its own logits."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from initdiag.measure import labels as room
from initdiag.measure.labels import explain_loss

BATCH, LENGTH, VOCAB = 3, 40, 211


def drawn(seed: int = 0, std: float = 0.5, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=generator)
    logits = std * torch.randn(BATCH, LENGTH, VOCAB, generator=generator)
    return logits.to(dtype), tokens[:, :-1], tokens[:, 1:]


def loss_at(logits: Tensor, tokens: Tensor, shift: int, reduction: str = "mean") -> Tensor:
    length = min(logits.shape[1], tokens.shape[1] - shift)
    return F.cross_entropy(
        logits[:, :length].flatten(0, 1), tokens[:, shift : shift + length].flatten(), reduction=reduction
    )


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shift", [0, 1, 2])
@pytest.mark.parametrize("passed", ["labels", "targets"])
def test_the_shift_is_told_from_the_others(passed: str, shift: int, seed: int) -> None:
    logits, ids, targets = drawn(seed)
    tokens = ids if passed == "labels" else torch.cat((ids, targets[:, -1:]), 1)
    returned = loss_at(logits, tokens, shift)
    found = explain_loss(logits, ids, targets, returned, passed, passed == "targets")
    assert (found.shift, found.reduction) == (shift, "mean")
    assert found.value == float(returned)
    assert found.reference == pytest.approx(float(loss_at(logits, tokens, 1)), rel=1e-6)
    assert (found.argument, found.shifted) == (passed, passed == "targets")


def test_a_model_that_drops_the_last_of_its_targets_is_still_right() -> None:
    logits, ids, targets = drawn()
    returned = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, :-1].flatten())
    found = explain_loss(logits, ids, targets, returned, "targets", True)
    assert (found.shift, found.reduction) == (1, "mean")


@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize(
    ("reduction", "times"),
    [
        ("sum", lambda count: count),
        ("sum over positions", lambda count: count / BATCH),
        ("sum over sequences", lambda count: BATCH),
        ("mean over all positions", lambda count: count / (BATCH * LENGTH)),
        ("other", lambda count: 0.25),
    ],
)
def test_the_reduction_is_named(reduction: str, times, shifted: bool) -> None:
    logits, ids, targets = drawn()
    tokens = torch.cat((ids, targets[:, -1:]), 1) if shifted else ids
    count = BATCH * (LENGTH if shifted else LENGTH - 1)
    returned = loss_at(logits, tokens, 1) * times(count)
    found = explain_loss(logits, ids, targets, returned, "labels", shifted)
    whole = times(count) == 1  # all positions have a target: the mean over all of them is the mean
    assert found.reduction == ("mean" if whole else reduction)
    assert found.shift == (None if reduction == "other" else 1)


@pytest.mark.parametrize("more", [1e-3, 0.01, 0.3, -0.05])
def test_what_is_added_to_the_loss_leaves_it_unexplained(more: float) -> None:
    logits, ids, targets = drawn()
    found = explain_loss(logits, ids, targets, loss_at(logits, ids, 1) + more, "labels", False)
    assert (found.shift, found.reduction) == (None, "other")
    assert found.value - found.reference == pytest.approx(more, abs=1e-5)


def test_label_smoothing_is_unexplained_unless_the_head_is_zero() -> None:
    logits, ids, targets = drawn()
    smooth = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)
    assert explain_loss(logits, ids, targets, smooth, "labels", False).reduction == "other"
    flat = torch.zeros_like(logits)
    smooth = F.cross_entropy(flat[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1)
    found = explain_loss(flat, ids, targets, smooth, "labels", False)
    assert (found.shift, found.reduction) == (1, "mean")


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_where_all_shifts_give_the_same_the_usual_one_is_taken(shift: int) -> None:
    logits, ids, targets = drawn(std=0.0)
    found = explain_loss(logits, ids, targets, loss_at(logits, ids, shift), "labels", False)
    assert (found.shift, found.reduction) == (1, "mean")
    assert found.reference == pytest.approx(math.log(VOCAB), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("seed", range(5))
def test_half_precision_is_allowed_its_own_roundings(dtype: torch.dtype, seed: int) -> None:
    logits, ids, targets = drawn(seed, dtype=dtype)
    in_half = loss_at(logits, ids, 1)
    assert in_half.dtype == dtype
    for returned in (in_half, in_half.float()):
        found = explain_loss(logits, ids, targets, returned, "labels", False)
        assert (found.shift, found.reduction) == (1, "mean")
    # computed in float32 from the same logits it is as sharp as ever
    for shift in (0, 1, 2):
        found = explain_loss(logits, ids, targets, loss_at(logits.float(), ids, shift), "labels", False)
        assert found.shift == shift
    assert explain_loss(logits, ids, targets, in_half * 8, "labels", False).shift is None


def test_losses_that_are_no_numbers_are_unexplained() -> None:
    logits, ids, targets = drawn()
    for value in (math.nan, math.inf):
        found = explain_loss(logits, ids, targets, torch.tensor(value), "labels", False)
        assert (found.shift, found.reduction) == (None, "other") and math.isfinite(found.reference)


def test_blocks_of_any_size_give_the_same_and_no_copy_of_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, ids, targets = drawn(dtype=torch.float64)
    largest = 0
    widened = room.widened

    def watched(x: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, x.numel())
        return widened(x)

    monkeypatch.setattr(room, "widened", watched)
    expected = float(loss_at(logits, ids, 1))
    for rows in (1, 7, LENGTH, 1000):
        monkeypatch.setattr(room, "TILE", rows * VOCAB)
        found = explain_loss(logits, ids, targets, loss_at(logits, ids, 2), "labels", False)
        assert found.reference == pytest.approx(expected, rel=1e-12) and found.shift == 2
        assert largest == min(rows, LENGTH) * VOCAB


def test_masked_padding_of_the_vocabulary_and_single_tokens() -> None:
    logits, ids, targets = drawn()
    padded = F.pad(logits, (0, 5), value=-math.inf)
    assert explain_loss(padded, ids, targets, loss_at(padded, ids, 1), "labels", False).shift == 1
    one = explain_loss(
        logits[:, :1], ids[:, :1], targets[:, :1], loss_at(logits[:, :1], ids[:, :1], 0), "labels", False
    )
    assert one.shift == 0 and math.isnan(one.reference)
