"""The loss that a Gaussian logit distribution explains; derivation in docs/concepts.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from initdiag.measure import PositionLogits, mean
from initdiag.theory.free_energy import free_energy

SURE = 5  # standard deviations that the loss is allowed: a false alarm in a million checks
ROUNDING = 1e-5  # of the loss: a float32 forward is that exact, and where nothing is left to chance it decides


@lru_cache(maxsize=2**13)  # of each position, for the loss, the uniform loss and what is allowed for chance
def log_sum_exp(vocab_size: int, std: float, self_logit: float) -> float:
    """Return E[log-sum-exp] in nats, for V − 1 logits N(0, std²) and one that is `self_logit`.

    ln(exp(F) + exp(self_logit)), where F = E[ln Σ exp(std·z)] of the others is ln(V − 1) + std²/2 for small std, and
    towards std = √(2 ln V) and beyond it less: the sum freezes to its largest terms (free_energy.py).
    """
    if math.isnan(std) or math.isnan(self_logit):
        return math.nan
    rest = free_energy(vocab_size - 1, std)[0]
    high, low = max(rest, self_logit), min(rest, self_logit)
    return high + math.log1p(math.exp(low - high)) if math.isfinite(high) else high


def critical_std(vocab_size: int) -> float:
    """Return √(2 ln V), the logit std from which the softmax is a few logits' affair."""
    return math.sqrt(2 * math.log(vocab_size - 1)) if vocab_size > 2 else 0.0


def expected_loss(vocab_size: int, positions: Sequence[PositionLogits], *, uniform_targets: bool = False) -> float:
    """Return the expected cross-entropy in nats, averaged over positions.

    Each position's log-sum-exp, less the expected logit of its target. With the others' mean logit as zero that is
    self_logit/V for a uniform target; for the given ones the self-logit where the next token is the input token
    again, else 0.
    """

    def target(position: PositionLogits) -> float:
        if uniform_targets:
            return position.self_logit / vocab_size
        return position.self_logit if position.target_is_self else 0.0

    return mean([log_sum_exp(vocab_size, at.std, at.self_logit) - target(at) for at in positions])


def sampling_allowance(
    vocab_size: int, positions: Sequence[PositionLogits], independent_targets: int, *, rounding: bool = True
) -> float:
    """Return SURE standard deviations of loss − expected loss, in nats (false alarms: below 1e-6 per check).

    Two sources: which targets were met, std²/N, and which logits the vocabulary got, (exp(std²) − 1)/V for small std.
    The second is shared by all positions, since hidden states at init are nearly collinear; it is the variance of the
    free energy, and fades where the self-logit is all of the sum. On top comes what float32 rounds away, unless
    `rounding` is False.
    """
    targets, vocabulary = [], []
    for position in positions:
        variance = position.std * position.std
        share = math.exp(min(0.0, position.self_logit - log_sum_exp(vocab_size, position.std, position.self_logit)))
        targets.append(variance)
        vocabulary.append(((1 - share) * free_energy(vocab_size - 1, position.std)[1]) ** 2)
    chance = SURE * math.sqrt(mean(targets) / independent_targets + mean(vocabulary))
    return chance + ROUNDING * max(1.0, expected_loss(vocab_size, positions)) * rounding
