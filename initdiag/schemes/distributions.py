"""The distributions that a parameter can be drawn from, as values. Nothing here draws: engines do.

Two schemes that draw the same parameter from the same seed share their randomness, as far as they draw alike: Normal
is std·z, Orthogonal gain times the Q of the QR decomposition of z, and Uniform bound·u, with one z and one u for each
seed and name. A normal cut nearer than 5 sigmas is √2·sigma·erf⁻¹(erf(cut/√2)·u), one that is cut farther out
sigma·z, but for other numbers where |z| > cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from initdiag.schemes.roles import Role


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
class Truncated:
    """N(0, sigma²) restricted to ±cut·sigma. Its std is smaller than sigma: 0.8796·sigma for a cut at 2.

    With Z = 2Φ(c) − 1 and the density φ: E[z²] = 1 − 2cφ(c)/Z, and E[z⁴] = 3E[z²] − 2c³φ(c)/Z.
    """

    sigma: float
    cut: float

    @property
    def std(self) -> float:
        return self.sigma * math.sqrt(1 - self._edge)

    @property
    def kurtosis(self) -> float:
        square = 1 - self._edge
        return (3 * square - self.cut**2 * self._edge) / square**2

    @property
    def _edge(self) -> float:
        """2cφ(c)/Z."""
        density = math.exp(-(self.cut**2) / 2) / math.sqrt(2 * math.pi)
        return 2 * self.cut * density / math.erf(self.cut / math.sqrt(2))

    def __str__(self) -> str:
        return f"N({self.sigma:.4g})<{self.cut:.3g}σ"


def truncated(std: float, cut: float) -> Truncated:
    """Return the truncated normal that has this std after cutting ("corrected", as in JAX's variance_scaling)."""
    return Truncated(std / Truncated(1.0, cut).std, cut)


@dataclass(frozen=True)
class Orthogonal:
    """gain times a matrix whose rows or columns, whichever are fewer, are orthonormal and uniformly so (Haar).

    `longer` is the larger of its two sizes. Its entries are those of unit vectors in that many dimensions: of variance
    gain²/longer, and E[x⁴]/E[x²]² = 3·longer/(longer + 2).
    """

    gain: float
    longer: int

    @property
    def std(self) -> float:
        return self.gain / math.sqrt(self.longer)

    @property
    def kurtosis(self) -> float:
        return 3.0 * self.longer / (self.longer + 2)

    def __str__(self) -> str:
        return f"orthogonal×{self.gain:.4g}"


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
class Piece:
    """Outputs of a packed matrix that are drawn alike; `rows` are (start, stop) pairs over its outputs."""

    role: Role
    rows: tuple[tuple[int, int], ...]
    distribution: Distribution

    @property
    def outputs(self) -> int:
        return sum(stop - start for start, stop in self.rows)


@dataclass(frozen=True)
class Packed:
    """A matrix whose outputs are drawn differently by what they are for (q, k and v in one), each piece for itself.

    `axis` is that of the outputs: -2, or -1 where it is stored (inputs, outputs). std and kurtosis are those of all
    entries together: moments of a mixture, weighted with the number of outputs; nan where a piece is left as found.
    """

    pieces: tuple[Piece, ...]
    axis: int

    @property
    def std(self) -> float:
        return math.sqrt(self._mean(lambda one: one.std**2))

    @property
    def kurtosis(self) -> float:
        fourth = self._mean(lambda one: one.kurtosis * one.std**4 if one.std else 0.0)
        return fourth / self.std**4 if self.std else math.nan

    def _mean(self, value: Callable[[Distribution], float]) -> float:
        outputs = sum(piece.outputs for piece in self.pieces)
        return math.fsum(piece.outputs * value(piece.distribution) for piece in self.pieces) / outputs

    def __str__(self) -> str:
        return ", ".join(f"{piece.role} {piece.distribution}" for piece in self.pieces)


@dataclass(frozen=True)
class AsFound:
    """What a tensor was found to hold where nobody declared what it should: never drawn, never judged."""

    std: float
    kurtosis: float = math.nan

    def __str__(self) -> str:
        return f"as found, std {self.std:.4g}"


def is_orthogonal(law: Distribution) -> bool:
    """Whether entries depend on each other, in the whole matrix or in a piece of it."""
    pieces = [piece.distribution for piece in law.pieces] if isinstance(law, Packed) else [law]
    return any(isinstance(piece, Orthogonal) for piece in pieces)


Distribution = Normal | Uniform | Truncated | Orthogonal | Constant | Packed | AsFound
