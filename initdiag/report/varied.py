"""Predictions with one value varied: a row for each value, and how every number goes with it, in words."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from initdiag.report.facts import FACTS, Fact, size
from initdiag.report.growth import HOLDS, STAYS, Growth, growth
from initdiag.report.numbers import number, settings
from initdiag.report.report import Report, Run
from initdiag.report.style import Style
from initdiag.rules import Severity

# the numbers that are shown, and their headings in a table of many columns
HEADINGS = {
    "loss": "loss",
    "excess over ln V": "excess",
    "logit std": "logit std",
    "self-logit": "self-logit",
    "Σ branch variance": "Σ branches",
    "final stream variance": "final stream",
    "scaling ratio": "scaling",
    "attn-logit std, max": "attn std, max",
    "attn entropy, min": "entropy, min",
    "gradient ratio per layer": "gradient ratio",
}
LEAST_TOLD = 0.001  # of the miss of a fit
NO_SIZES = ("seed",)  # numbers that count nothing


@dataclass(frozen=True)
class Varied:
    """What `initdiag.vary` returns: one predicted run for each value of `key`; str() is its table.

    followed: what else changed with the value, in words.
    """

    key: str
    values: tuple[Any, ...]
    runs: tuple[Run, ...]
    followed: tuple[str, ...] = ()
    command: str = ""

    @property
    def report(self) -> Report:
        """The runs as a report of several targets."""
        return Report(self.runs, self.command)

    @property
    def verdict(self) -> str:
        """'fail' if any run fails, else 'pass'."""
        return self.report.verdict

    @property
    def name(self) -> str:
        """The key without its section."""
        return self.key.rpartition(".")[2]

    @cached_property
    def numbers(self) -> dict[str, tuple[float, ...]]:
        """The numbers that are known of any run, by the key of the fact: one for each value."""
        found = {fact.key: tuple(fact.measured(run) for run in self.runs) for fact in _facts()}
        return {key: numbers for key, numbers in found.items() if not all(map(math.isnan, numbers))}

    @cached_property
    def fits(self) -> dict[str, Growth]:
        """How each number goes with the value; empty where the values are no positive numbers.

        Of the loss, only where the vocabulary changes: else it is a constant and the excess.
        """
        if self.name in NO_SIZES or not all(_positive(value) for value in self.values):
            return {}
        one = len({run.measured.loss.vocab_size for run in self.runs}) == 1
        left_out = ("loss",) if one else ()
        return {key: growth(self.values, numbers) for key, numbers in self.numbers.items() if key not in left_out}

    def __repr__(self) -> str:
        return f"<Varied: {self.verdict}, {len(self.runs)} values of {self.key}; print() shows it>"

    def __str__(self) -> str:
        from initdiag.report.varied_formats import as_table

        return as_table(self, Style())


def _facts() -> list[Fact]:
    return [fact for fact in FACTS if fact.key in HEADINGS]


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def value_in_words(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def captions(varied: Varied) -> list[str]:
    """Say what was varied, and what went with it."""
    first, last = varied.runs[0], varied.runs[-1]
    said = [run.subject.plan.settings for run in varied.runs]
    common = {name: value for name, value in said[0].items() if all(one.get(name) == value for one in said)}
    scheme = f"scheme {first.scheme}" + (f" ({settings(common)})" if common else "")
    drawn = {"init.scheme": scheme, "init.seed": f"seed {first.seed}"}
    drawn.pop(varied.key, None)
    shown = [value_in_words(value) for value in varied.values]
    lines = [f"{first.subject.target} with {varied.key} {', '.join(shown)}: {', '.join(drawn.values())}; predicted"]
    lines += [f"with it: {'; '.join(varied.followed)}"] if varied.followed else []
    alike = size(first) == size(last)
    lines += [size(first)] if alike else [f"{shown[0]}: {size(first)}", f"{shown[-1]}: {size(last)}"]
    return [*lines, f"tokens: {first.batch.describe()}"] if varied.key.partition(".")[0] != "tokens" else lines


def _verdict(run: Run) -> str:
    """pass or fail, and that something was found where it passes."""
    warned = run.verdict == "pass" and run.count(Severity.WARNING)
    return f"{run.verdict}, warns" if warned else run.verdict


def value_rows(varied: Varied) -> tuple[list[str], list[list[str]]]:
    """Return headings and a row for each value: the numbers, and the verdict."""
    digits = {fact.key: fact.digits for fact in _facts()}
    columns = list(varied.numbers)
    rows = [
        [
            value_in_words(value),
            *(_known(varied.numbers[key][i], digits[key]) for key in columns),
            _verdict(varied.runs[i]),
        ]
        for i, value in enumerate(varied.values)
    ]
    return [varied.name, *(HEADINGS[key] for key in columns), "verdict"], rows


def fit_rows(varied: Varied) -> list[tuple[str, str, str, str]]:
    """Return a row for each number: its name, its law, by how much a point misses it, and the law in words."""
    return [
        (key, found.fit if found.law != "none" else "–", _percent(found.miss), found.words)
        for key, found in varied.fits.items()
    ]


def fit_caption(varied: Varied) -> str:
    """Say what the columns of the fits mean."""
    ends = f"{value_in_words(min(varied.values))} … {value_in_words(max(varied.values))}"
    return (
        f"growth with x = {varied.name}, {ends}: least squares in log-log; off by: the largest deviation of a point. "
        f"An exponent within ±{STAYS:g} stays (5 % for a doubling); a law that misses a point by more than "
        f"{100 * HOLDS:g} % is none."
    )


def summary(varied: Varied) -> list[str]:
    """Say which numbers stay and which drift."""
    stay = [key for key, found in varied.fits.items() if found.stays]
    drift = [
        f"{key} ({found.fit if found.law == 'power' else found.words})"
        for key, found in varied.fits.items()
        if not found.stays
    ]
    return [f"stay: {'; '.join(stay) or 'none'}", f"drift: {'; '.join(drift) or 'none'}"]


def found_lines(varied: Varied) -> list[tuple[str, str]]:
    """Return for each rule that spoke its severity, and in words where, with what it says of the first value."""
    spoken: dict[tuple[str, str], list[int]] = {}
    for i, run in enumerate(varied.runs):
        for one in run.findings:
            at = spoken.setdefault((str(one.severity), one.rule), [])
            at.extend([i] if i not in at else [])
    lines = []
    for (severity, rule), where in spoken.items():
        one = next(one for one in varied.runs[where[0]].findings if (str(one.severity), one.rule) == (severity, rule))
        values = ", ".join(value_in_words(varied.values[i]) for i in where)
        first = f"at {value_in_words(varied.values[where[0]])}, " if len(where) > 1 else ""
        lines.append((severity, f"{rule} {one.name}, {varied.name} {values}: {first}{one.message}"))
    return lines


def _known(value: float, digits: int) -> str:
    return number(None if math.isnan(value) else value, digits)


def _percent(miss: float) -> str:
    if math.isnan(miss):
        return "–"
    return f"{100 * miss:.1f} %" if miss >= LEAST_TOLD else "< 0.1 %"
