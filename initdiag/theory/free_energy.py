"""Log-sum-exp of independent Gaussians, exactly: the free energy of the random energy model.

Derrida, Phys. Rev. B 24, 2613 (1981). ln Z of Z = Σ exp(s·z_i), plus a Gumbel variable of its own, is below y with the
probability E[exp(−e^(s·z − y))]ⁿ, since −ln of an exponential variable is Gumbel. So mean and variance of ln Z are
those of that distribution less γ and π²/6.
"""

from __future__ import annotations

import math
from functools import lru_cache

GAMMA = 0.5772156649015329  # Euler–Mascheroni
PER_OCTAVE = 6  # stds between which moments are interpolated, by cubics: good to 1e-3 nats
SMALLEST = 1e-3  # variance of ln Z up to which ln E[Z] and its first correction are exact to 1e-4
LARGEST = 16.0  # from there it is std·(the largest z) and a correction in 1/std: low temperature, one term and its next


@lru_cache(maxsize=4096)
def free_energy(count: int, std: float) -> tuple[float, float]:
    """Return mean and standard deviation of ln Σ exp(std·z_i), in nats, over `count` independent normal z_i."""
    if not math.isfinite(std):
        return std, std
    if count < 1:
        return -math.inf, 0.0
    square = std * std
    if square < 100 and math.expm1(square) / count < SMALLEST:
        over = math.expm1(square) / count
        return math.log(count) + square / 2 - over / 2, math.sqrt(over)
    if std > LARGEST:
        (half, _), (whole, spread) = free_energy(count, LARGEST / 2), free_energy(count, LARGEST)
        correction = (2 * half - whole) * LARGEST / 3  # of mean = std·largest + correction/std
        return std * (whole / LARGEST - correction / LARGEST**2) + correction / std, spread * std / LARGEST
    place = PER_OCTAVE * math.log2(std)
    first = math.floor(place) - 1
    at = [2 ** (k / PER_OCTAVE) for k in range(first, first + 4)]
    found = [_moments(count, k) for k in range(first, first + 4)]
    weights = [math.prod((std - other) / (one - other) for other in at if other != one) for one in at]  # Lagrange
    return (
        sum(weight * mean for weight, (mean, _) in zip(weights, found, strict=True)),
        max(sum(weight * spread for weight, (_, spread) in zip(weights, found, strict=True)), 0.0),
    )


@lru_cache(maxsize=4096)
def _moments(count: int, k: int) -> tuple[float, float]:
    """Mean and standard deviation at std 2^(k / PER_OCTAVE)."""
    import numpy as np  # not at once: what only explains needs none

    std = 2 ** (k / PER_OCTAVE)
    step = min(0.25, 0.6 / std)
    z = step * np.arange(-round(6 / step), round(8.5 / step) + 1)
    weights = step * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    reach = math.sqrt(2 * math.log(count)) if count > 1 else 0.0
    middle = min(math.log(count) + std * std / 2, max(std * reach, math.log(count)))
    low, high, grid = middle - 5 - 2.5 * std, middle + 14 + 2.5 * std, 0.3 * max(1.0, std / 4)
    y = np.arange(low, high, grid)
    missed = -np.expm1(-np.exp(np.minimum(std * z - y[:, None], 4.0))) @ weights  # from 4 on it is 1
    above = np.exp(count * np.log1p(-np.minimum(missed, 1 - 1e-16)))
    mass, centre = np.diff(above, prepend=0.0) / above[-1], y - grid / 2 - middle
    first = float(mass @ centre)
    second = float(mass @ centre**2) - grid * grid / 12
    mean = first + middle - GAMMA
    return mean, math.sqrt(max(second - first * first - math.pi**2 / 6, 0.0))
