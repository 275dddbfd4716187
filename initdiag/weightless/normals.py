"""Standard normal numbers by name: the same seed and the same words give the same numbers, in any order and thread."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from threading import Barrier

import torch
from torch import Tensor

from initdiag.schemes import Uniform
from initdiag.schemes.distributions import Truncated

BLOCK = 2**17  # entries drawn at a time: 512 KiB, which are still in a core's cache when they are multiplied
STRIPE = 2 * BLOCK  # entries from one generator: few, so that threads share the work; many, since seeds are 32 bits
NARROWEST = 64  # columns of a block


def generator_for(seed: int, name: str) -> torch.Generator:
    """Return the generator of one name.

    torch's CPU generator takes 32 bits of a seed: of n names, two share their numbers with probability n²/2³³.
    """
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return torch.Generator("cpu").manual_seed(int.from_bytes(digest, "little"))


HALF = math.sqrt(0.5)  # the std of what bent_ takes: erf(z/√2) is uniform on (−1, 1)
# Normals that are cut nearer than so many sigmas are drawn by inversion. Beyond, they stay as they are but for the few
# outside (1 in 1.7 million): inversion in float32 ends at erf(z/√2) = 1 − 2⁻²⁴, z = 5.3. Looking for more of them takes
# too long: at 2 sigmas rejection reached 0.75 of the rate of normal_, at 3 0.78 to 0.82; inversion 0.8 to 0.88.
NEAR = 5.0


def bent_(x: Tensor, distribution: Uniform | Truncated) -> Tensor:
    """Turn N(0, ½) numbers into draws from a distribution, in place, as a function of each."""
    if isinstance(distribution, Uniform):
        return x.erf_().mul_(distribution.bound)
    reach, within = distribution.cut * distribution.sigma, math.erf(distribution.cut * HALF)
    if distribution.cut < NEAR:
        # Φ⁻¹(Φ(−c) + (Φ(c) − Φ(−c))·Φ(z)) in terms of erf
        return x.erf_().mul_(within).erfinv_().mul_(distribution.sigma / HALF).clamp_(-reach, reach)
    # where float32 rounds erf to 1, that would be c itself. How far outside z is, is uniform as a probability
    outside = x.abs() > distribution.cut * HALF
    if outside.any():
        uniform = x[outside].abs().double().erfc_().mul_(2 / math.erfc(distribution.cut * HALF)).sub_(1)
        x[outside] = uniform.mul_(within).erfinv_().to(x.dtype)
    return x.mul_(distribution.sigma / HALF).clamp_(-reach, reach)


def workers(threads: int) -> ThreadPoolExecutor:
    """Return threads of which each works alone, all of them started."""
    default, started = torch.get_num_threads(), Barrier(threads)

    def work_alone() -> None:
        torch.get_num_threads()  # a thread's first question sets its number to the default
        torch.set_num_threads(1)
        started.wait()

    pool = ThreadPoolExecutor(threads, initializer=work_alone)
    try:
        list(pool.map(lambda _: None, range(threads)))
    except BaseException:
        started.abort()
        raise
    finally:
        torch.set_num_threads(default)  # the number that was set last is that of threads to come
    return pool


@dataclass(frozen=True)
class Normals:
    """A supply of N(0, 1) numbers for one seed, drawn in `threads` threads by blocks of columns."""

    seed: int
    threads: int = 1
    dtype: torch.dtype = torch.float32

    def __call__(self, name: str, rows: int, width: int) -> Tensor:
        """Return (rows, width) of what `name` stands for."""
        out = self._room(rows, width)
        self._each(name, rows, width, lambda block, columns: out[:, columns].copy_(block))
        return out

    def times(self, factor: Tensor, name: str, width: int) -> Tensor:
        """Return factor (k, rows) times the same (rows, width), of which no more than a block exists at a time."""
        out = self._room(len(factor), width)
        self._each(name, factor.shape[1], width, lambda block, columns: torch.mm(factor, block, out=out[:, columns]))
        return out

    def _room(self, rows: int, width: int) -> Tensor:
        with torch.inference_mode(False):  # threads of the pool, which are in no such mode, write to it
            return torch.empty(rows, width, dtype=self.dtype)

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return workers(self.threads)

    def _each(self, name: str, rows: int, width: int, use: Callable[[Tensor, slice], object]) -> None:
        """Draw every block (rows, some columns) and use it."""
        step = min(max(NARROWEST, BLOCK // max(rows, 1)), max(width, 1))
        stripe = step * STRIPE // BLOCK
        starts = iter(range(0, width, stripe))  # whoever is free takes the next

        @torch.no_grad()
        def take(_: int) -> None:
            room = torch.empty(rows * step, dtype=self.dtype)
            for start in starts:
                generator = generator_for(self.seed, f"{name}/{start // stripe}")
                for at in range(start, min(start + stripe, width), step):
                    columns = slice(at, min(at + step, width))
                    block = room[: rows * (columns.stop - at)].view(rows, columns.stop - at)
                    use(block.normal_(generator=generator), columns)

        if self.threads == 1 or width <= stripe:
            take(0)
        else:
            list(self._pool.map(take, range(self.threads)))
