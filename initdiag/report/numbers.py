"""Numbers as people read them: four significant digits, never cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

BLOCKS = " ▏▎▍▌▋▊▉█"
SPARKS = "▁▂▃▄▅▆▇█"
ASCII_SPARKS = "_.-=+*#@"


def number(value: float | None, digits: int = 4) -> str:
    """Format a number: 0.08605, 10.98, 480.3, 1.2e-05; '–' for None; with 0 digits a count.

    >>> number(0.0860488), number(480.34), number(0.0), number(1.23456e-7), number(float("nan"))
    ('0.08605', '480.3', '0', '1.235e-07', 'nan')
    """
    if value is None:
        return "–"
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    return f"{value:#.{digits}g}".rstrip(".") if digits else f"{value:.0f}"


def setting(value: float | str | None) -> str:
    """Format a parameter of a scheme: a number, or a word as it is."""
    return value if isinstance(value, str) else number(value)


def settings(of: Mapping[str, float | str]) -> str:
    """Write the parameters of a scheme: 'std 0.02, depth layer'."""
    return ", ".join(
        f"{name} {value}" if isinstance(value, str) else f"{name} {value:.4g}" for name, value in of.items()
    )


def spread(values: Sequence[float], digits: int = 4) -> str:
    """Format one value, or several as mean ± sample standard deviation.

    >>> spread([10.0]), spread([1.0, 2.0, 3.0]), spread([0.00040018, 0.00040063])
    ('10.00', '2.000 ± 1.0', '4.004e-4 ± 3.2e-7')
    """
    if len(values) == 1:
        return number(values[0], digits)
    if not all(map(math.isfinite, values)):
        return f"{sum(values) / len(values):g}"
    mean = math.fsum(values) / len(values)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return f"{_compact(mean, digits or 2)} ± {_compact(std, 2)}"


def beside(value: float, std: float) -> str:
    """Format a value ± its standard deviation, with no more digits than mean something.

    >>> beside(0.5543, 0.0019), beside(0.0860488, 0.0012), beside(480.34, 12.6), beside(10.978, 0.0), beside(7.0, 1e-9)
    ('0.5543 ± 0.0019', '0.0860 ± 0.0012', '480 ± 13', '10.98', '7.000')
    """
    if not math.isfinite(value) or std <= 1e-6 * abs(value):
        return number(value)
    if not math.isfinite(std) or not value:
        return f"{number(value)} ± {number(std, 2)}"
    places = 1 - math.floor(math.log10(std))
    digits = min(max(math.floor(math.log10(abs(value))) + places + 1, 1), 5)
    return f"{number(value, digits)} ± {number(std, 2)}"


def _compact(value: float, digits: int) -> str:
    """Like number, but 4.004e-4 for what would be 0.0004004: cells of a comparison are narrow."""
    if value == 0 or abs(value) >= 1e-3:
        return number(value, digits)
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    return f"{mantissa}e{int(exponent)}"


def counted(count: int, what: str) -> str:
    """Write a number of things: '1 layer', '2 branches'."""
    return f"{count} {what}" if count == 1 else f"{count} {what}{'es' if what.endswith('ch') else 's'}"


def layers(count: int) -> str:
    return counted(count, "layer")


def parameters(count: int) -> str:
    """Write a number of parameters: '124.4 M parameters'."""
    return f"{abridged(count)} parameters"


def abridged(count: int) -> str:
    """Write a large number: '124.4 M'."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return str(count)


def bar(value: float, largest: float, width: int, ascii_only: bool) -> str:
    """Draw value/largest as a bar of at most `width` characters; anything above nothing is seen."""
    if not (math.isfinite(value) and math.isfinite(largest)) or largest <= 0 or value <= 0:
        return ""
    eighths = max(1, round(8 * width * value / largest))
    if ascii_only:
        return "#" * max(1, round(eighths / 8))
    return "█" * (eighths // 8) + BLOCKS[eighths % 8].strip()


def sparkline(values: Sequence[float], largest: float, width: int, ascii_only: bool) -> str:
    """Draw values as one line of at most `width` characters, from zero to `largest`; values are sampled evenly."""
    sparks = ASCII_SPARKS if ascii_only else SPARKS
    if len(values) > width:
        values = [values[round(i * (len(values) - 1) / (width - 1))] for i in range(width)]
    return "".join(
        "?" if not math.isfinite(value) else sparks[round(7 * min(1.0, value / largest)) if largest > 0 else 0]
        for value in values
    )
