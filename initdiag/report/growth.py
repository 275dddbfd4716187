"""How a number goes with a size: by a power, by a logarithm, or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

# A number stays that changes by less than 5 % where the size doubles. Laws of init are powers of 1/2, 1, 2; what
# attention adds to a branch from layer to layer moves exponents of depth by 0.02 to 0.05.
STAYS = 0.07
HOLDS = 0.05  # relative; a fit that misses a point by more is no law
NEAR = 0.1  # of an exponent that is called by its name; as above, and twice as much
CLEAR = 0.5  # the misses of a logarithm over those of a power, below which it is the better law
EXACT = 0.01  # a power that misses no point by more needs no other law

NAMED = {-2.0: "1/x²", -1.0: "1/x", -0.5: "1/√x", 0.5: "√x", 1.0: "x", 2.0: "x²"}


@dataclass(frozen=True)
class Growth:
    """y of x. law: "constant", "power" (y ~ x^exponent), "logarithm" (y = offset + slope·ln x), or "none".

    exponent: of the power that fits best; nan where y isn't positive. miss: the largest relative deviation of a point
    from the law; of "none", from that power. first, last: the exponents between the first two points and the last two.
    """

    law: str
    exponent: float = math.nan
    offset: float = math.nan
    slope: float = math.nan
    miss: float = math.nan
    first: float = math.nan
    last: float = math.nan

    @property
    def stays(self) -> bool:
        return self.law == "constant"

    @property
    def fit(self) -> str:
        """The law as a formula in x: 'x^0.98', 'a + b·ln x', '–'."""
        match self.law:
            case "power" | "constant" if not math.isnan(self.exponent):
                return f"x^{_signed(self.exponent)}"
            case "logarithm":
                return "a + b·ln x"
        return "–"

    @property
    def words(self) -> str:
        """The law in words."""
        match self.law:
            case "constant":
                return "stays"
            case "logarithm":
                return f"{'grows' if self.slope > 0 else 'falls'} logarithmically"
            case "power":
                verb = "grows" if self.exponent > 0 else "falls"
                near = min(NAMED, key=lambda named: abs(named - self.exponent))
                if abs(near - self.exponent) > NEAR:
                    return verb
                return f"{verb} like {NAMED[near]}"
        if math.isnan(self.exponent):
            return "no power law"
        return f"no power law: x^{_signed(self.first)} first, x^{_signed(self.last)} last"


def growth(x: Sequence[float], y: Sequence[float]) -> Growth:
    """Fit y by least squares in log-log, and by a + b·ln x.

    Args:
        x: two or more, positive, each once.
    """
    if len(set(y)) == 1 and math.isfinite(y[0]):
        return Growth("constant", 0.0, miss=0.0)
    if not all(math.isfinite(one) and one > 0 for one in y):
        return Growth("none")
    places = sorted(zip(map(math.log, x), y, strict=True))
    logs, values = [at for at, _ in places], [value for _, value in places]
    shift, exponent = line(logs, list(map(math.log, values)))
    offset, slope = line(logs, values)
    power = _miss(logs, values, lambda at: math.exp(shift + exponent * at))
    logarithm = _miss(logs, values, lambda at: offset + slope * at)
    first, last = _slope(logs[:2], values[:2]), _slope(logs[-2:], values[-2:])
    if abs(exponent) < STAYS and power <= HOLDS:
        law = "constant"
    elif power > EXACT and logarithm < CLEAR * power and logarithm <= HOLDS:
        return Growth("logarithm", exponent, offset, slope, logarithm, first, last)
    else:
        law = "power" if power <= HOLDS else "none"
    return Growth(law, exponent, miss=power, first=first, last=last)


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Return (a, b) of the line a + b·x that fits best by least squares."""
    centre = mean(x)
    centred = [one - centre for one in x]
    slope = math.fsum(a * b for a, b in zip(centred, y, strict=True)) / math.fsum(a * a for a in centred)
    return mean(y) - slope * centre, slope


def _miss(x: Sequence[float], y: Sequence[float], law: Callable[[float], float]) -> float:
    """The largest relative deviation of a point from a law."""
    return max(abs(law(at) / value - 1) for at, value in zip(x, y, strict=True))


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return math.log(y[1] / y[0]) / (x[1] - x[0])


def _signed(exponent: float) -> str:
    return f"{exponent:.2f}".replace("-0.00", "0.00").replace("-", "−")
