"""Standard normal numbers by name: the same seed and the same words give the same numbers, in any order and thread."""

from __future__ import annotations

import hashlib
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from initdiag.schemes import Uniform
from initdiag.schemes.distributions import Truncated

CHUNK = 2**19  # entries from one generator: 2 MiB, so that two threads share the work of one large request


def generator_for(seed: int, name: str) -> torch.Generator:
    """Return the generator of one name.

    torch's CPU generator takes 32 bits of a seed: of n names, two share their numbers with probability n²/2³³.
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little"))


HALF = math.sqrt(0.5)  # the std of what bent_ takes: erf(z/√2) is uniform on (−1, 1)


def bent_(x: Tensor, distribution: Uniform | Truncated) -> Tensor:
    """Turn N(0, ½) numbers into draws from a distribution, in place (see schemes/distributions.py)."""
    if isinstance(distribution, Uniform):
        return x.erf_().mul_(distribution.bound)
    # Φ⁻¹(Φ(−c) + (Φ(c) − Φ(−c))·Φ(z)) in terms of erf; where float32 rounds erf to 1, the clamp cuts
    reach = distribution.cut * distribution.sigma
    x.erf_().mul_(math.erf(distribution.cut / math.sqrt(2)))
    return x.erfinv_().mul_(distribution.sigma * math.sqrt(2)).clamp_(-reach, reach)


@dataclass(frozen=True)
class Normals:
    """A supply of N(0, 1) numbers for one seed, drawn in `threads` threads."""

    seed: int
    threads: int = 1
    dtype: torch.dtype = torch.float32

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads)

    def __call__(self, name: str, rows: int, width: int) -> Tensor:
        """Return (rows, width) of what `name` stands for."""
        out = torch.empty(rows, width, dtype=self.dtype)
        jobs = [(part, f"{name}/{at}") for at, part in enumerate(out.view(-1).split(CHUNK))]
        run = map if len(jobs) == 1 or self.threads == 1 else self._pool.map
        list(run(self._fill, jobs))
        return out

    @torch.no_grad()
    def _fill(self, job: tuple[Tensor, str]) -> None:
        part, name = job
        part.normal_(generator=generator_for(self.seed, name))
