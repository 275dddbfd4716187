"""Parameters without entries beside parameters of the same entries, and statistics that the tests here share."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from initdiag.schemes import Normal
from initdiag.weightless.budget import Budget
from initdiag.weightless.law import Law, uniform_law
from initdiag.weightless.lazy import lazy_parameter
from initdiag.weightless.normals import Normals
from initdiag.weightless.source import Source
from initdiag.weightless.span import Bases

ROOM = 2**40  # bytes that a test may make real
FAMILY = 1e-4  # false alarms of all the tests of one family together (Bonferroni)


@dataclass(frozen=True)
class Made:
    """A parameter without entries, its source and its budget."""

    parameter: nn.Parameter
    source: Source
    budget: Budget

    def entries(self) -> Tensor:
        """Return all entries, in the shape of the parameter: made real now."""
        return entries_of(self.source).view(self.parameter.shape).to(self.parameter.dtype)


def source(
    *shape: int, law: Law | None = None, seed: int = 0, name: str = "w", dtype: torch.dtype = torch.float64
) -> Source:
    return made(*shape, law=law, seed=seed, name=name, dtype=dtype).source


def made(
    *shape: int,
    law: Law | None = None,
    seed: int = 0,
    name: str = "w",
    dtype: torch.dtype = torch.float64,
    room: int = ROOM,
    ones: int = 0,
    bases: Bases | None = None,
) -> Made:
    """Return a parameter of a shape that `ones` axes of size 1 follow."""
    law = law or uniform_law(Normal(0.3), math.prod(shape[:-1]))
    budget = Budget(room)
    of = Source(name, shape, law, Normals(seed, 1, dtype), budget.allow, bases or Bases())
    return Made(lazy_parameter(of, shape + (1,) * ones, dtype), of, budget)


def entries_of(of: Source) -> Tensor:
    matrices = math.prod(of.shape[:-2])
    return torch.cat([of.entries(range(of.m), at) for at in range(matrices)]).view(of.shape)


def vectors(count: int, size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9, what: str = "") -> None:
    """Assert that two tensors of one shape differ by no more than a part of the largest entry of the expected one."""
    found, expected = found.detach(), expected.detach()
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    size = float(expected.abs().max()) if expected.numel() else 0.0
    off = float((found - expected).abs().max()) if expected.numel() else 0.0
    assert off <= tolerance * max(size, 1e-30), f"{what}: off by {off:.3g} where entries reach {size:.3g}"


def normal_cdf(x: Tensor) -> Tensor:
    return 0.5 * torch.erfc(-x / math.sqrt(2))


def kolmogorov(root: float) -> float:
    """P(√n·D > root) in the limit of many samples: 2 Σ (−1)^(k−1) exp(−2k²·root²)."""
    if root < 0.2:  # the series is 1 to twelve digits, and converges slowly
        return 1.0
    return 2 * math.fsum((-1) ** (k - 1) * math.exp(-2 * (k * root) ** 2) for k in range(1, 101))


def p_of_one_sample(x: Tensor, cdf: Callable[[Tensor], Tensor] = normal_cdf) -> float:
    """The chance of a Kolmogorov–Smirnov distance as large as that of independent entries from a distribution."""
    ordered = x.detach().double().flatten().sort().values
    count = len(ordered)
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    probability = cdf(ordered)
    distance = float(torch.maximum(steps[1:] - probability, probability - steps[:-1]).max())
    return kolmogorov(distance * math.sqrt(count))


def p_of_two_samples(a: Tensor, b: Tensor) -> float:
    """The same of two samples from one distribution."""
    a, b = (x.detach().double().flatten().sort().values for x in (a, b))
    everything = torch.cat((a, b))
    steps = [torch.searchsorted(x, everything, right=True).double() / len(x) for x in (a, b)]
    distance = float((steps[0] - steps[1]).abs().max())
    return kolmogorov(distance * math.sqrt(len(a) * len(b) / (len(a) + len(b))))
