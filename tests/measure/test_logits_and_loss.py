"""Loss and logits from tiles, against the full logit matrix and torch's own functions in float64."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from initdiag.measure import LogitMeasure, LossMeasure, PositionLogits
from initdiag.measure import logits as tiles
from initdiag.measure.logits import measure_logits
from initdiag.measure.observe import observe
from tests.small_models import WIRINGS, drawn, normals, subject, tokens

Measured = tuple[LossMeasure, LogitMeasure, tuple[PositionLogits, ...]]


def ids(batch: int, length: int, vocab: int, seed: int = 0) -> Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))


def measured(full: Tensor, inputs: Tensor, targets: Tensor) -> Measured:
    """Measure a full logit matrix (B, T, V), handed out a range of columns at a time."""
    numbered = torch.arange(inputs.numel()).view(*inputs.shape, 1)  # a "state" is the number of its position
    flat = full.flatten(0, 1)

    def logits(rows: Tensor, part: slice) -> Tensor:
        return flat[rows[:, 0]][:, part]

    return measure_logits(numbered, logits, inputs, targets, full.shape[-1])


def assert_measures(found: Measured, full: Tensor, inputs: Tensor, targets: Tensor, rel: float = 1e-6) -> None:
    loss, measure, positions = found
    full, vocab = full.detach().double().flatten(0, 1), full.shape[-1]
    inputs, targets = inputs.flatten(), targets.flatten()

    def near(value: float, expected: Tensor | float, what: str) -> None:
        assert value == pytest.approx(float(expected), rel=rel, abs=rel), what

    near(loss.value, F.cross_entropy(full, targets), "loss")
    near(loss.uniform, math.log(vocab), "uniform")
    near(loss.excess, F.cross_entropy(full, targets) - math.log(vocab), "excess")

    def near_std(value: float, exact: Tensor, sum_of_squares: Tensor, count: int, what: str) -> None:
        """A variance from sums of squares in float32 errs by some roundings, 8 · 2^-24, of those sums."""
        error = 8 * 2**-24 * float(sum_of_squares) / count + rel * float(exact.var(correction=0))
        assert value**2 == pytest.approx(float(exact.var(correction=0)), rel=0, abs=error), what

    # the mean over all targets, which is what uniform ones give on average
    near(loss.uniform_targets, -full.log_softmax(-1).mean(), "uniform targets")
    near(measure.std, full.std(-1, correction=0).mean(), "std")
    near(measure.max_abs, full.abs().max(), "max |logit|")
    near(
        measure.entropy_ratio,
        torch.distributions.Categorical(logits=full).entropy().mean() / math.log(vocab),
        "entropy",
    )
    own = full.gather(1, inputs[:, None])[:, 0]
    assert len(positions) == len(inputs)
    gaps = []
    for row, at in enumerate(positions):
        others = torch.cat((full[row, : inputs[row]], full[row, inputs[row] + 1 :]))
        gaps.append(own[row] - others.mean())
        near(at.self_logit, gaps[-1], f"self-logit at {row}")
        near_std(at.std, others, full[row].square().sum(), vocab - 1, f"std at {row}")
        assert at.target_is_self == bool(inputs[row] == targets[row])
    near(measure.self_logit, torch.stack(gaps).mean(), "self-logit")


@pytest.mark.parametrize("spread", [0.0, 0.5, 30.0])
@pytest.mark.parametrize(
    ("batch", "length", "vocab"), [(2, 9, 101), (1, 1, 50), (3, 1, 2), (1, 30, 1000), (2, 5, 9973)]
)
def test_beside_full_logits(
    batch: int, length: int, vocab: int, spread: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = spread * normals(batch, length, vocab)
    inputs, targets = ids(batch, length, vocab), ids(batch, length, vocab, seed=1)
    columns = (3000, 1001) if vocab > 1000 else (3000, 7, 1)  # at a time; the last tile is narrower
    for tile in (batch * length * width for width in columns):
        monkeypatch.setattr(tiles, "TILE", tile)
        assert_measures(measured(full, inputs, targets), full, inputs, targets, 3e-6)


def test_fewer_logits_in_a_tile_than_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE", 1)
    full, inputs, targets = normals(2, 7, 77), ids(2, 7, 77), ids(2, 7, 77, seed=1)
    assert_measures(measured(full, inputs, targets), full, inputs, targets)


def test_more_positions_than_are_taken_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "ROWS", 8)
    full, inputs, targets = normals(3, 7, 77), ids(3, 7, 77), ids(3, 7, 77, seed=1)
    assert_measures(measured(full, inputs, targets), full, inputs, targets)


def test_b_times_t_beyond_rows() -> None:
    length = tiles.ROWS // 2 + 3
    full, inputs, targets = normals(2, length, 11), ids(2, length, 11), ids(2, length, 11, seed=1)
    assert_measures(measured(full, inputs, targets), full, inputs, targets)


def test_huge_logits_do_not_overflow() -> None:
    full = 300 * normals(2, 5, 400)  # exp(900) is beyond float64
    inputs, targets = ids(2, 5, 400), ids(2, 5, 400, seed=1)
    assert_measures(measured(full, inputs, targets), full, inputs, targets)


def test_ascending_logits_move_the_maximum_at_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILE", 4 * 3)
    for order in (1.0, -1.0):
        full = order * torch.linspace(-40, 40, 55).expand(1, 4, 55)
        assert_measures(measured(full, ids(1, 4, 55), ids(1, 4, 55, 1)), full, ids(1, 4, 55), ids(1, 4, 55, 1))


def test_a_shared_offset_changes_no_loss_and_no_std() -> None:
    full, inputs, targets = 0.5 * normals(2, 8, 500), ids(2, 8, 500), ids(2, 8, 500, seed=1)
    # squares and mean cancel: relative to the variance 0.25 the float32 rounding of 3² is 36 · 2^-24, some 2e-6
    assert_measures(measured(full + 3, inputs, targets), full + 3, inputs, targets, 1e-5)


def test_targets_that_repeat_the_input_are_noticed() -> None:
    inputs = ids(2, 6, 30)
    targets = inputs.clone()
    targets[0, 0] = (targets[0, 0] + 1) % 30
    _, _, positions = measured(normals(2, 6, 30), inputs, targets)
    assert [at.target_is_self for at in positions] == [False] + [True] * 11


def test_not_a_number_is_not_hidden() -> None:
    full = normals(1, 4, 30)
    full[0, 2, 7] = math.nan
    loss, measure, _ = measured(full, ids(1, 4, 30), ids(1, 4, 30, 1))
    for value in (loss.value, loss.uniform_targets, measure.std, measure.entropy_ratio, measure.max_abs):
        assert math.isnan(value)


@pytest.mark.parametrize(("positions", "vocab"), [(1, 300_000), (64, 50_257), (1024, 5000), (2500, 3000)])
def test_the_largest_tile_does_not_grow_with_the_vocabulary_or_the_batch(positions: int, vocab: int) -> None:
    sizes: list[int] = []
    covered: dict[int, int] = {}

    def logits(rows: Tensor, part: slice) -> Tensor:
        tile = torch.zeros(len(rows), part.stop - part.start)
        sizes.append(tile.numel())
        first = int(rows[0, 0])
        covered[first] = covered.get(first, 0) + tile.shape[1]
        return tile

    states = torch.arange(positions).view(1, positions, 1)
    at = torch.zeros(1, positions, dtype=torch.long)
    loss, _, _ = measure_logits(states, logits, at, at, vocab)
    assert max(sizes) <= tiles.TILE == 2**20
    assert set(covered.values()) == {vocab}  # every column once, for every range of rows
    assert loss.value == pytest.approx(math.log(vocab), rel=1e-6)


# wirings that differ from the last norm on: tied or not, with a bias, a multiplier or a softcap, without that norm
HEADS = (
    "gpt2",
    "post",
    "post, final norm, rmsnorm",
    "no final norm, no positions",
    "gpt2 untied, gelu_tanh",
    "llama",
    "gpt-j",
    "gemma 2",
    "olmo",
    "nanochat",
    "minicpm",
)


@pytest.mark.parametrize(("dtype", "rel"), [("float64", 1e-9), ("float32", 1e-5)])
@pytest.mark.parametrize("wiring", HEADS)
@torch.no_grad()
def test_models_beside_their_own_forward(wiring: str, dtype: str, rel: float) -> None:
    of = subject("default", **WIRINGS[wiring])
    module, batch = drawn(of, dtype=dtype), tokens(of)
    found = observe(of, module, batch)
    inputs, targets = torch.tensor(batch.inputs), torch.tensor(batch.targets)
    assert_measures((found.loss, found.logits, found.positions), module(inputs), inputs, targets, rel)


@torch.no_grad()
def test_bfloat16_logits_are_widened_before_they_are_summed() -> None:
    of = subject(vocab_size=4001)
    module, batch = drawn(of, dtype="bfloat16"), tokens(of)
    inputs, targets = torch.tensor(batch.inputs), torch.tensor(batch.targets)
    full = module(inputs)
    assert full.dtype is torch.bfloat16
    found = observe(of, module, batch)
    assert_measures((found.loss, found.logits, found.positions), full, inputs, targets, 1e-5)


def test_every_measure_is_over_the_given_callable() -> None:
    """The head is called as the subject says: with the states, flat, and a range of rows."""
    asked: list[tuple[tuple[int, ...], slice]] = []
    head = normals(40, 6)

    def logits(rows: Tensor, part: slice) -> Tensor:
        asked.append((tuple(rows.shape), part))
        return F.linear(rows, head[part])

    states = normals(2, 3, 6, seed=1)
    inputs, targets = ids(2, 3, 40), ids(2, 3, 40, seed=1)
    found = measure_logits(states, logits, inputs, targets, 40)
    assert asked == [((6, 6), slice(0, 40))]
    assert_measures(found, F.linear(states, head), inputs, targets)
