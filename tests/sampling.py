"""Tolerances that come from sample sizes.

Unless said otherwise a comparison allows five standard errors, which a right program exceeds once in 1.7 million
comparisons (two-sided normal tail: 5.7e-7). All draws in the tests are seeded, so a passing test stays passing.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

SIGMAS = 5.0
RATE = 1e-6  # false alarms of a Kolmogorov–Smirnov comparison


def assert_near(value: float, expected: float, standard_error: float, what: str = "value") -> None:
    """Assert that a value lies within five standard errors of what it estimates."""
    assert math.isfinite(value), f"{what} is {value}"
    off = abs(value - expected)
    assert off <= SIGMAS * standard_error, (
        f"{what} is {value:.8g}, expected {expected:.8g} ± {SIGMAS:g} × {standard_error:.3g}; "
        f"it is off by {off / standard_error if standard_error else math.inf:.1f} standard errors"
    )


def assert_relative(value: float, expected: float, tolerance: float, what: str = "value") -> None:
    """Assert that |value / expected − 1| ≤ tolerance."""
    assert math.isfinite(value), f"{what} is {value}"
    off = abs(value / expected - 1)
    assert off <= tolerance, f"{what} is {value:.8g}, expected {expected:.8g} ± {tolerance:.2%}; it is {off:.2%} off"


def relative_error_of_std(count: int, kurtosis: float) -> float:
    """Return the relative standard error of a std from `count` independent entries: √((κ − 1) / 4n)."""
    return math.sqrt((kurtosis - 1) / (4 * count))


def assert_std(x: Tensor, std: float, kurtosis: float = 3.0, what: str = "std") -> None:
    """Assert the std of independent entries of mean 0."""
    found = float(x.detach().double().square().mean().sqrt())
    assert_near(found, std, std * relative_error_of_std(x.numel(), kurtosis), what)


def assert_mean(x: Tensor, mean: float, std: float, what: str = "mean") -> None:
    """Assert the mean of independent entries of a known std."""
    assert_near(float(x.detach().double().mean()), mean, std / math.sqrt(x.numel()), what)


def assert_follows(x: Tensor, cdf: Callable[[Tensor], Tensor], what: str = "sample") -> None:
    """Assert that independent entries follow a continuous distribution: Kolmogorov–Smirnov.

    The bound is that of Dvoretzky, Kiefer, Wolfowitz and Massart, P(D > ε) ≤ 2 exp(−2nε²), for any n.
    """
    ordered = x.detach().double().flatten().sort().values
    count = len(ordered)
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    probability = cdf(ordered)
    distance = float(torch.maximum(steps[1:] - probability, probability - steps[:-1]).max())
    limit = math.sqrt(math.log(2 / RATE) / (2 * count))
    assert distance <= limit, f"{what}: Kolmogorov–Smirnov distance {distance:.3g} of {count:,}, at most {limit:.3g}"


def assert_same_distribution(a: Tensor, b: Tensor, what: str = "samples") -> None:
    """Assert that two samples follow one distribution: two-sample Kolmogorov–Smirnov, asymptotic bound."""
    a, b = (x.detach().double().flatten().sort().values for x in (a, b))
    everything = torch.cat((a, b))
    steps = [torch.searchsorted(x, everything, right=True).double() / len(x) for x in (a, b)]
    distance = float((steps[0] - steps[1]).abs().max())
    limit = math.sqrt(math.log(2 / RATE) / 2 * (len(a) + len(b)) / (len(a) * len(b)))
    assert distance <= limit, f"{what}: two-sample distance {distance:.3g}, at most {limit:.3g}"


def normal_cdf(std: float) -> Callable[[Tensor], Tensor]:
    return lambda x: 0.5 * torch.erfc(-x / (std * math.sqrt(2)))


def uniform_cdf(bound: float) -> Callable[[Tensor], Tensor]:
    return lambda x: ((x + bound) / (2 * bound)).clamp(0, 1)
