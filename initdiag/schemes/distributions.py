"""The distributions that a parameter can be drawn from, as values. Nothing here draws: engines do.

Every distribution is a non-decreasing function of one standard normal z, so two schemes that draw the same
parameter from the same seed share their randomness (common random numbers): Normal is std·z, Uniform is
bound·erf(z/√2), since erf(z/√2) is uniform on (−1, 1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Normal:
    """N(0, std²)."""

    std: float

    @property
    def kurtosis(self) -> float:
        return 3.0

    def __str__(self) -> str:
        return f"N({self.std:.4g})"


@dataclass(frozen=True)
class Uniform:
    """Uniform on (−bound, bound); its std is bound/√3."""

    bound: float

    @property
    def std(self) -> float:
        return self.bound / math.sqrt(3)

    @property
    def kurtosis(self) -> float:
        return 1.8

    def __str__(self) -> str:
        return f"U({self.bound:.4g})"


@dataclass(frozen=True)
class Constant:
    """The same value everywhere; its std is 0."""

    value: float

    @property
    def std(self) -> float:
        return 0.0

    @property
    def kurtosis(self) -> float:
        return math.nan  # no spread, no shape

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class AsFound:
    """What a tensor was found to hold where nobody declared what it should: never drawn, never judged."""

    std: float
    kurtosis: float = math.nan

    def __str__(self) -> str:
        return f"as found, std {self.std:.4g}"


Distribution = Normal | Uniform | Constant | AsFound

BY_NAME: dict[str, type[Normal] | type[Uniform] | type[Constant]] = {
    "normal": Normal,
    "uniform": Uniform,
    "constant": Constant,
}
