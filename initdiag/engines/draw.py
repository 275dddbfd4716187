"""Draws the tensors of an init plan: every parameter once, from generators of its own, in parallel threads.

A generator is seeded by (seed, parameter name), so a parameter gets the same numbers whatever is built before it and
however many threads draw. What schemes that are compared share of them is said in schemes/distributions.py.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from initdiag.engines.orthogonal import matrices, orthogonal_
from initdiag.errors import PlanError
from initdiag.schemes import AsFound, Constant, Distribution, InitPlan, Normal, Uniform
from initdiag.schemes.distributions import Orthogonal, Packed, Truncated
from initdiag.weightless.normals import NEAR, generator_for, workers

BLOCK = 2**18  # entries drawn at a time: 1 MiB of float32 stays in the cache between the draw and what follows
LAST = 1 - 2**-24  # the largest float32 below 1, of which erfinv is still finite


def draw(
    tensors: Mapping[str, Tensor], plan: InitPlan, seed: int, threads: int | None = None, drawn: InitPlan | None = None
) -> None:
    """Fill tensors in place as the plan says.

    Args:
        drawn: the plan that these tensors were drawn from with the same seed, if any; what it shares is left alone.

    Raises:
        PlanError: a parameter with fewer than two axes is to be orthogonal.
    """
    before = {} if drawn is None else {entry.parameter.name: entry.distribution for entry in drawn.entries}
    todo = [
        (tensors[entry.parameter.name], entry.distribution, entry.parameter.name)
        for entry in plan.entries
        if before.get(entry.parameter.name) != entry.distribution and not isinstance(entry.distribution, AsFound)
    ]
    fill(todo, seed, threads)


def fill(todo: Sequence[tuple[Tensor, Distribution, str]], seed: int, threads: int | None = None) -> None:
    """Fill each tensor from its distribution, by its name.

    All is drawn in float32 on the CPU and rounded to the tensor's dtype. Uniform and truncated numbers lie within their
    bound, rounded likewise: it may be larger than the bound itself by half a unit in the last place.

    Raises:
        PlanError: a tensor with fewer than two axes is to be orthogonal.
    """
    for tensor, law, name in todo:
        if isinstance(law, Orthogonal) and tensor.dim() < 2:
            raise PlanError(f"'{name}' of shape {tuple(tensor.shape)} can't be orthogonal; expected two axes or more")
    largest_first = sorted(todo, key=lambda item: -item[0].numel())  # or one thread ends with it alone
    if todo:
        with workers(min(threads or os.cpu_count() or 1, len(todo))) as pool:
            for done in [pool.submit(_fill, tensor, law, seed, name) for tensor, law, name in largest_first]:
                done.result()


@torch.no_grad()
def _fill(tensor: Tensor, law: Distribution, seed: int, name: str) -> None:
    if isinstance(law, Constant):
        tensor.fill_(law.value)
        return
    if isinstance(law, Packed):
        _fill_pieces(tensor, law, seed, name)
        return
    in_place = tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()
    if isinstance(law, Orthogonal):
        whole = tensor if in_place else torch.empty(tensor.shape, dtype=torch.float32, device="cpu")
        _each_block(whole, Normal(1.0), seed, name, True)
        for matrix in matrices(whole):
            orthogonal_(matrix, law.gain)
    else:
        whole = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
        _each_block(whole, law, seed, name, in_place)
    if whole is not tensor:
        tensor.copy_(whole)


def _fill_pieces(tensor: Tensor, law: Packed, seed: int, name: str) -> None:
    """Draw each piece of a packed matrix as a matrix of its own, and put its outputs where they belong."""
    for index, piece in enumerate(law.pieces):
        if isinstance(piece.distribution, AsFound):
            continue
        shape = list(tensor.shape)
        shape[law.axis] = piece.outputs
        alone = torch.empty(shape, dtype=tensor.dtype, device=tensor.device)
        _fill(alone, piece.distribution, seed, f"{name}/{index}")
        taken = 0
        for start, stop in piece.rows:
            rows = alone.narrow(law.axis, taken, stop - start)
            tensor.narrow(law.axis, start, stop - start).copy_(rows)
            taken += stop - start


def _each_block(whole: Tensor, law: Distribution, seed: int, name: str, in_place: bool) -> None:
    """Draw a contiguous tensor; where not in place, in float32 on the CPU and copied: the same numbers for every device
    and dtype."""
    draw_block = _drawing(law, seed, name, whole.numel())
    room = torch.empty(0 if in_place else min(BLOCK, whole.numel()), dtype=torch.float32, device="cpu")
    for block in whole.view(-1).split(BLOCK):
        if in_place:
            draw_block(block)
        else:
            block.copy_(draw_block(room[: block.numel()]))


def _drawing(law: Distribution, seed: int, name: str, count: int) -> Callable[[Tensor], Tensor]:
    """Return what fills the blocks of a parameter with `count` entries, one after the other."""
    generator = generator_for(seed, name)
    match law:
        case Normal(std=std):
            return lambda block: block.normal_(0.0, std, generator=generator)
        case Uniform(bound=bound):
            bits = _bits(min(BLOCK, count))
            return lambda block: _uniform_(block, bound, generator, bits)
        case Truncated(cut=cut) if cut < NEAR:
            bits = _bits(min(BLOCK, count))
            return lambda block: _inverted_(block, law, generator, bits)
        case Truncated():
            # others come from a generator of their own, so that the first one stays in step with that of Normal
            other = generator_for(seed, f"{name}/redrawn")
            return lambda block: _rejected_(block, law, generator, other)
        case _:
            raise AssertionError(f"nothing draws {law}")


def _bits(count: int) -> Tensor:
    """Return room for the random bits of `count` float32 numbers."""
    return torch.empty((count + 1) // 2, dtype=torch.int64)


def _uniform_(x: Tensor, bound: float, generator: torch.Generator, bits: Tensor) -> Tensor:
    """Fill x from U(bound), of 32 random bits each: two thirds of the time of torch's uniform_, which asks its
    generator for each by itself. Both ends are included: what lies next to them is rounded to them."""
    bits = bits[: (x.numel() + 1) // 2].random_(-(2**63), None, generator=generator)
    return x.copy_(bits.view(torch.int32)[: x.numel()]).mul_(bound / 2**31)


def _inverted_(x: Tensor, law: Truncated, generator: torch.Generator, bits: Tensor) -> Tensor:
    """Fill x from a cut normal by inversion: Φ⁻¹ of a number between Φ(−cut) and Φ(cut), in terms of erf."""
    reach = law.cut * law.sigma
    _uniform_(x, min(math.erf(law.cut / math.sqrt(2)), LAST), generator, bits)
    return x.erfinv_().mul_(law.sigma * math.sqrt(2)).clamp_(-reach, reach)


def _rejected_(x: Tensor, law: Truncated, generator: torch.Generator, other: torch.Generator) -> Tensor:
    """Fill x with the numbers of Normal(sigma), but with numbers from within where these are outside the cut."""
    reach = law.cut * law.sigma
    low, high = x.normal_(0.0, law.sigma, generator=generator).aminmax()
    if max(-low, high) > reach:
        outside = torch.hardshrink(x, reach).bool()  # it leaves only what is outside; half the time of a comparison
        count = int(outside.count_nonzero())
        x.masked_scatter_(outside, _inverted_(torch.empty(count), law, other, _bits(count)))
    return x
