"""The loss that Gaussian logits explain, against Gaussian logits."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import initdiag
from initdiag.case import prepare
from initdiag.config import load, with_init
from initdiag.engines import Settings, dense
from initdiag.measure import LossMeasure, PositionLogits
from initdiag.measure.logits import measure_logits
from initdiag.subjects import Subject
from initdiag.theory.loss import expected_loss, log_sum_exp, sampling_allowance
from initdiag.tokens import TokenBatch
from tests.sampling import SIGMAS


def normals(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- log-sum-exp


@cache
def unit_normals(vocab: int, seed: int) -> Tensor:
    return normals(400, vocab - 1, seed=seed)


@cache
def others(vocab: int, std: float, seed: int) -> Tensor:
    """The log-sum-exp of 400 draws of all logits but the input's own."""
    return (std * unit_normals(vocab, seed)).logsumexp(-1)


@pytest.mark.parametrize("self_logit", [-5.0, 0.0, 4.0, 30.0])
@pytest.mark.parametrize(
    ("vocab", "std"), [(1000, 0.0), (1000, 0.5), (1000, 1.0), (20_000, 0.1), (20_000, 1.5), (20_000, 2.0)]
)
def test_log_sum_exp_of_draws(vocab: int, std: float, self_logit: float) -> None:
    sums = torch.logaddexp(others(vocab, std, vocab), torch.tensor(self_logit).double())
    error = float(sums.std()) / math.sqrt(400)
    # of ln(e^x + e^m) with x random, the curvature is left out: at most 1/4, times half the variance of x
    curved = math.expm1(std**2) / vocab / 8
    found, drawn = log_sum_exp(vocab, std, self_logit), float(sums.mean())
    assert abs(found - drawn) <= SIGMAS * error + curved + 1e-12, (found, drawn, error, curved)


def test_gpt2_small_starts_at_10_979() -> None:
    assert log_sum_exp(50257, 0.02 * math.sqrt(768), 0.0) == pytest.approx(
        math.log(50257) + 768 * 0.02**2 / 2, abs=1e-5
    )


@pytest.mark.parametrize("vocab", [2, 97, 50257])
def test_equal_logits_give_ln_v(vocab: int) -> None:
    assert log_sum_exp(vocab, 0.0, 0.0) == pytest.approx(math.log(vocab), rel=1e-12)


def largest(count: int) -> float:
    """E[max of `count` normals] = ∫ z d(Φ(z)^count), by the trapezoid rule over ∫ (1 − Φ^count) from −12 to 12."""
    step = 1e-3
    at = [-12 + step * i for i in range(24_001)]
    return math.fsum(1 - (0.5 * math.erfc(-z / math.sqrt(2))) ** count for z in at) * step - 12


@pytest.mark.parametrize("std", [3.0, 4.0, 5.0, 10.0, 100.0])
def test_near_freezing_and_frozen(std: float) -> None:
    """√(2 ln V) = 4.45. 400 draws; moments are interpolated to 1e-3 nats, and far out to 1e-3 of what they are."""
    vocab = 20_000
    sums = others(vocab, std, seed=1)
    found, drawn = log_sum_exp(vocab, std, -math.inf), float(sums.mean())
    assert abs(found - drawn) <= SIGMAS * float(sums.std()) / 20 + 1e-3 * max(1.0, std)
    if std > math.sqrt(2 * math.log(vocab)):
        assert found <= std * math.sqrt(2 * math.log(vocab))  # the bound of the random energy model
    spread = sampling_allowance(vocab, [position(std, -math.inf)], 10**12, rounding=False) / 5
    assert spread == pytest.approx(float(sums.std()), rel=SIGMAS / math.sqrt(2 * 400) * 1.5)  # its kurtosis is above 3


@pytest.mark.parametrize("vocab", [97, 1000, 50257])
def test_far_beyond_it_the_largest_is_all(vocab: int) -> None:
    assert log_sum_exp(vocab, 1e6, -math.inf) == pytest.approx(1e6 * largest(vocab - 1), rel=1e-3)


def test_it_grows_with_std_without_a_jump_and_ends_at_the_self_logit() -> None:
    for vocab in (3, 97, 50257):
        values = [log_sum_exp(vocab, 0.001 * i, 0.0) for i in range(9000)]
        steps = [b - a for a, b in pairwise(values)]
        assert min(steps) >= -1e-12
        assert max(steps) < 0.001 * (math.sqrt(2 * math.log(vocab)) + 0.001)  # its slope is the tilted mean logit
    assert log_sum_exp(50257, 1.0, 483.0) == pytest.approx(483.0, abs=1e-12)
    assert log_sum_exp(50257, 1.0, 1e5) == 1e5


# --- the expected loss


def position(std: float, self_logit: float = 0.0, target_is_self: bool = False) -> PositionLogits:
    return PositionLogits(std, self_logit, target_is_self)


def test_positions_are_averaged_and_targets_subtracted() -> None:
    # by hand, V = 101, std 0, others 0: ln(100 + e^m) each, less m where the target is the input
    at = [position(0.0, 2.0), position(0.0, 2.0, target_is_self=True), position(0.0, 0.0)]
    sums = [math.log(100 + math.e**2), math.log(100 + math.e**2), math.log(101)]
    assert expected_loss(101, at) == pytest.approx((sum(sums) - 2.0) / 3)
    assert expected_loss(101, at, uniform_targets=True) == pytest.approx((sum(sums) - 2 * 2.0 / 101) / 3)


def test_the_allowance_by_hand() -> None:
    s, vocab, targets = 0.5, 1000, 64

    def rounding(*at: PositionLogits) -> float:
        return 1e-5 * expected_loss(vocab, at)

    # Var ln Z is (e^s² − 1)/n for n = 999 others, to 1e-3 of it
    expected = 5 * math.sqrt(s**2 / targets + (math.exp(s**2) - 1) / (vocab - 1))
    assert sampling_allowance(vocab, [position(s, -math.inf)], targets) == pytest.approx(
        expected + rounding(position(s, -math.inf)), rel=1e-4
    )
    mixed = 5 * math.sqrt(s**2 / 2 / targets + (math.exp(s**2) - 1) / 2 / (vocab - 1))
    assert sampling_allowance(vocab, [position(s, -math.inf), position(0.0)], targets) == pytest.approx(
        mixed + rounding(position(s, -math.inf), position(0.0)), rel=1e-4
    )
    # where the self-logit is all of the sum the vocabulary says nothing
    assert sampling_allowance(vocab, [position(s, 100.0)], targets) == pytest.approx(
        5 * s / 8 + rounding(position(s, 100.0))
    )


def test_numbers_that_are_not_finite_give_nan() -> None:
    assert math.isnan(expected_loss(97, [position(math.nan)]))
    assert math.isnan(sampling_allowance(97, [position(0.5), position(math.nan)], 10))


# --- loss − expected, in units of the allowed standard deviation, over many seeds

SEEDS = 100


def measured(full: Tensor, inputs: Tensor, targets: Tensor) -> tuple[LossMeasure, tuple[PositionLogits, ...]]:
    """Measure logits (N, V) for ids (1, N)."""
    numbers = torch.arange(len(full)).view(1, -1, 1)  # a "state" is the number of its position
    found = measure_logits(numbers, lambda at, part: full[at[:, 0]][:, part], inputs, targets, full.shape[1])
    return found[0], found[2]


def z_scores(vocab: int, std: float, rows: int, repeat: int, self_logit: float = 0.0) -> tuple[Tensor, Tensor]:
    """Return z of the loss, and of the loss under uniform targets, for iid Gaussian logits.

    repeat: how many positions share one vector of logits, as nearly collinear hidden states make them do.
    """
    given, uniform = [], []
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(seed)
        distinct = std * torch.randn(rows // repeat, vocab, generator=generator)
        full = distinct.repeat_interleave(repeat, dim=0)
        inputs, targets = torch.randint(vocab, (2, 1, rows), generator=generator)
        full = full.scatter_add(1, inputs.T, torch.full((rows, 1), self_logit))
        loss, positions = measured(full, inputs, targets)
        assert loss.value == pytest.approx(float(F.cross_entropy(full, targets[0])), rel=1e-5)
        sigma = sampling_allowance(vocab, positions, rows) / 5
        given.append((loss.value - expected_loss(vocab, positions)) / sigma)
        uniform.append((loss.uniform_targets - expected_loss(vocab, positions, uniform_targets=True)) / sigma)
    return torch.tensor(given), torch.tensor(uniform)


# the std of 100 z-scores has a relative standard error of 1/√200 = 7 %; five of them are 0.35
WIDTH = 5 / math.sqrt(2 * SEEDS)


@pytest.mark.parametrize("repeat", [1, 128])
@pytest.mark.parametrize(("vocab", "std"), [(2048, 0.1), (2048, 0.55), (2048, 1.0)])
def test_gaussian_logits_stay_inside_the_allowance_and_use_it(vocab: int, std: float, repeat: int) -> None:
    given, uniform = z_scores(vocab, std, 128, repeat)
    assert float(given.abs().max()) < 5
    assert float(uniform.abs().max()) < 5
    # With N = 128 ≪ V = 2048 nearly all of the variance is that of the targets, std²/N, and that is exact: the share
    # (e^(s²) − 1)/V is at most 10 % of it. So z has a std of 1, or of 0.95 where positions are independent.
    assert 0.95 - WIDTH < float(given.std()) < 1 + WIDTH
    assert abs(float(given.mean())) < 5 / math.sqrt(SEEDS)
    # uniform targets have no such noise: what is left is a small part of the allowance
    assert float(uniform.std()) < 0.35


def test_a_self_logit_is_explained() -> None:
    for self_logit in (3.0, 8.0, 40.0):  # ln 2048 is 7.6
        given, uniform = z_scores(2048, 0.55, 128, 1, self_logit)
        assert float(given.abs().max()) < 5
        assert float(uniform.abs().max()) < 5
        assert 0.8 - WIDTH < float(given.std()) < 1 + WIDTH


def test_logits_that_are_not_gaussian_are_not_explained() -> None:
    """LOSS001's case: a few rows of the head drawn at N(1) beside 0.02."""
    logits = 0.5 * normals(64, 2048, seed=0)
    logits[:, -8:] += 12.0
    inputs, targets = torch.randint(2040, (2, 1, 64), generator=torch.Generator().manual_seed(0))
    loss, positions = measured(logits, inputs, targets)
    assert loss.value - expected_loss(2048, positions) > sampling_allowance(2048, positions, 64)


def logits_alone(of: Subject, module: nn.Module, batch: TokenBatch) -> tuple[LossMeasure, tuple[PositionLogits, ...]]:
    """What a check sees of a forward, without the rest of it."""
    inputs, targets = torch.tensor(batch.inputs), torch.tensor(batch.targets)
    states = of.states(module, inputs)
    found = measure_logits(states, lambda rows, part: of.logits(module, rows, part), inputs, targets, of.vocab_size)
    return found[0], found[2]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["tiny", "tiny-untied"])
def test_the_tiny_transformers_stay_inside_the_allowance_and_use_it(target: str) -> None:
    z, file, reuse = [], load(target), None
    for seed in range(60):
        case = prepare(with_init(file, seed=seed))
        reuse = dense.realize(case.subject, seed, Settings(threads=1), reuse)
        loss, positions = dense.forward(case.subject, reuse, case.batch, logits_alone)
        allowance = sampling_allowance(loss.vocab_size, positions, case.tokens)
        expected, uniform = (expected_loss(loss.vocab_size, positions, uniform_targets=even) for even in (False, True))
        if seed == 59:  # it is what a check would have said, though the weights were drawn over earlier ones
            run = initdiag.check(target, seed=seed).run
            assert (run.measured.loss, run.measured.positions) == (loss, positions)
            assert (run.expected.loss, run.expected.uniform_targets) == (expected, uniform)
            assert run.expected.allowance == allowance
        z.append((loss.value - expected) / allowance * 5)
        assert abs(loss.uniform_targets - uniform) / allowance < 1
    scores = torch.tensor(z)
    assert float(scores.abs().max()) < 5
    # std of z: 1 if the hidden states of a sequence were one; N = 256 targets, V = 512: down to √(1/(1 + N/V)) = 0.82
    # if they were independent. Its standard error over 60 seeds is 1/√120 = 9 %.
    width = 5 / math.sqrt(120)
    assert 0.82 - width < float(scores.std()) < 1 + width
    assert abs(float(scores.mean())) < 5 / math.sqrt(60)
