"""Runs of a (config, scheme) pair beside the prediction for the same tokens: for theory.py."""

from __future__ import annotations

import math
import re
import statistics
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.theory_pairs import BASE, Pair
from initdiag import subjects
from initdiag.config import from_mapping
from initdiag.engines import Settings, weightless
from initdiag.measure import Measurements
from initdiag.measure.observe import observe
from initdiag.subjects import Subject
from initdiag.theory.forward import Prediction, predict
from initdiag.tokens import random_ids

WEIGHTLESS = Settings("cpu", "float32", 1, "weightless")
BATCH = 2

# Of each kind of number: whether its deviation is absolute, and how large the issue allows it to be (None: not asked)
KINDS: dict[str, tuple[bool, float | None]] = {
    "stream": (False, 0.02),
    "loss": (True, 0.02),
    "uniform": (True, 0.02),
    "logit std": (False, 0.01),
    "entropy": (False, 0.02),
    "gradient": (False, 0.05),
    "parameter": (False, 0.05),
    "embedding": (False, None),
    "branch": (False, None),
    "self-logit": (True, None),
    "logit entropy": (False, None),
    "attention std": (False, None),
    "sum": (False, None),
    "ratio": (False, None),
    "share": (True, None),
}


@dataclass(frozen=True)
class Gap:
    """One number: measured − predicted on the tokens of each seed, the mean prediction, and the spread predicted.

    spread: nan where no spread is predicted.
    """

    kind: str
    name: str
    differences: tuple[float, ...]
    predicted: float
    spread: float

    @property
    def scale(self) -> float:
        """What a deviation is counted in."""
        return 1.0 if KINDS[self.kind][0] else abs(self.predicted)

    @property
    def deviation(self) -> float:
        """Of the mean over seeds: relative, of some kinds absolute; inf beside a prediction of 0."""
        mean = statistics.fmean(self.differences)
        return mean / self.scale if self.scale else math.copysign(math.inf, mean) if mean else 0.0

    @property
    def std(self) -> float:
        """Over seeds, of one draw."""
        return statistics.stdev(self.differences)

    @property
    def error(self) -> float:
        """The standard error of `deviation`."""
        return self.std / math.sqrt(len(self.differences)) / self.scale if self.scale else 0.0

    @property
    def verdict(self) -> str:
        """Say "ok", "noise": outside the tolerance but within 3 standard errors, or "miss"; "" where none is asked."""
        allowed = KINDS[self.kind][1]
        if allowed is None:
            return ""
        if abs(self.deviation) <= allowed:
            return "ok"
        return "noise" if abs(self.deviation) <= 3 * self.error else "miss"


def off_by(several: Sequence[Gap]) -> tuple[float, float]:
    """Return |mean over seeds − predicted|, relative, in the mean over these numbers, and what it would be of noise
    alone: the mean of |·| of a Gaussian is √(2/π) of its standard error."""
    off = statistics.fmean(abs(gap.deviation) for gap in several)
    return off, math.sqrt(2 / math.pi) * statistics.fmean(gap.error for gap in several)


def subject_of(pair: Pair, name: str, **fields: Any) -> Subject:
    mapping = {"model": {**BASE, **pair.model, **fields}, "init": {"scheme": pair.scheme, **pair.init}}
    return subjects.load(from_mapping(mapping, name))


def gaps(name: str, pair: Pair, seeds: int, backward: bool = False, **fields: Any) -> list[Gap]:
    """Run a pair with every seed, weights and tokens alike, and hold it against its prediction.

    Pairs have seeds of their own: with the same ones, matrices of one name and shape would be the same draws.

    Args:
        fields: of the architecture, over those of the pair.
    """
    torch.set_num_threads(1)
    of = subject_of(pair, name, **fields)
    assert of.architecture is not None
    rows: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    first = zlib.crc32(name.encode())
    for seed in range(first, first + seeds):
        batch = random_ids.draw(vocab_size=of.vocab_size, batch=BATCH, length=of.architecture.context, seed=seed)
        watched = partial(observe, backward=backward)
        measured: Measurements = weightless.run(of, batch, seed, WEIGHTLESS, watched)[0]
        predicted = predict(of, batch, backward=backward)
        found = dict(numbers(measured))
        spreads = dict(spreads_of(predicted))
        for key, value in numbers(predicted.values):
            if key in found and math.isfinite(value) and math.isfinite(found[key]):
                rows.setdefault(key, []).append((found[key], value, spreads.get(key, math.nan)))
    return [
        Gap(
            *key,
            tuple(value - expected for value, expected, _ in row),
            statistics.fmean(expected for _, expected, _ in row),
            statistics.fmean(spread for *_, spread in row),
        )
        for key, row in rows.items()
        if len(row) == seeds
    ]


def numbers(of: Measurements) -> Iterator[tuple[tuple[str, str], float]]:
    """All numbers that are compared, by (kind, name); gradients of parameters put together over layers."""
    yield ("loss", ""), of.loss.value
    yield ("uniform", ""), of.loss.uniform_targets
    yield ("logit std", ""), of.logits.std
    yield ("self-logit", ""), of.logits.self_logit
    yield ("logit entropy", ""), of.logits.entropy_ratio
    yield ("embedding", ""), of.residual.embedding_variance
    yield ("sum", ""), of.residual.branch_variance_sum
    yield ("ratio", ""), of.residual.scaling_ratio
    for at in of.residual.branches:
        yield ("stream", f"{at.index}"), at.stream_variance
        yield ("branch", f"{at.index}"), at.branch_variance
        if at.gradient_norm is not None:
            yield ("gradient", f"{at.index}"), at.gradient_norm
    if of.residual.branches:
        yield ("share", ""), of.residual.branches[-1].token_share
    for number, attention in enumerate(of.attention):
        yield ("attention std", f"{number}"), attention.logit_std
        yield ("entropy", f"{number}"), attention.entropy_ratio
    groups: dict[str, float] = {}
    for parameter, norm in of.gradients.norms if of.gradients else ():
        group = re.sub(r"^blocks\.\d+\.", "", parameter)
        groups[group] = groups.get(group, 0.0) + norm**2
    for group, square in groups.items():
        yield ("parameter", group), math.sqrt(square)


def spreads_of(prediction: Prediction) -> Iterator[tuple[tuple[str, str], float]]:
    """The predicted standard deviations of single draws, by (kind, name)."""
    at = prediction.spreads
    for kind, spread in (
        ("loss", at.loss),
        ("uniform", at.uniform_targets),
        ("logit std", at.logit_std),
        ("self-logit", at.self_logit),
        ("logit entropy", at.entropy_ratio),
        ("embedding", at.embedding_variance),
        ("sum", at.branch_variance_sum),
        ("ratio", at.scaling_ratio),
    ):
        yield (kind, ""), spread
    for kind, first, several in (
        ("stream", 1, at.streams),
        ("branch", 1, at.branches),
        ("attention std", 0, at.attention_std),
        ("entropy", 0, at.attention_entropy),
    ):
        for number, spread in enumerate(several, first):
            yield (kind, f"{number}"), spread
