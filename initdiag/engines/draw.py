"""Draws the tensors of an init plan: every parameter once, from a generator of its own, in parallel threads.

The generator is seeded by (seed, parameter name), so a parameter gets the same numbers whatever is built before it
and however many threads draw. Every distribution is a function of one standard normal per entry (see
schemes/distributions.py), so schemes that are compared share their randomness.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from initdiag.schemes import AsFound, Constant, Distribution, InitPlan, Normal, Uniform
from initdiag.schemes.distributions import Truncated
from initdiag.weightless.normals import HALF, bent_, generator_for

BLOCK = 2**18  # entries drawn at a time: 1 MiB of float32 stays in the cache between the draw and what follows


def draw(
    tensors: Mapping[str, Tensor], plan: InitPlan, seed: int, threads: int | None = None, drawn: InitPlan | None = None
) -> None:
    """Fill tensors in place as the plan says.

    Args:
        drawn: the plan that these tensors were drawn from with the same seed, if any; what it shares is left alone.
    """
    before = {} if drawn is None else {entry.parameter.name: entry.distribution for entry in drawn.entries}
    todo = [
        (tensors[entry.parameter.name], entry.distribution, entry.parameter.name)
        for entry in plan.entries
        if before.get(entry.parameter.name) != entry.distribution and not isinstance(entry.distribution, AsFound)
    ]
    fill(todo, seed, threads)


def fill(todo: Sequence[tuple[Tensor, Distribution, str]], seed: int, threads: int | None = None) -> None:
    """Fill each tensor from its distribution, by its name."""
    largest_first = sorted(todo, key=lambda item: -item[0].numel())  # or one thread ends with it alone
    with ThreadPoolExecutor(threads or os.cpu_count() or 1) as pool:
        for done in [pool.submit(_fill, tensor, law, seed, name) for tensor, law, name in largest_first]:
            done.result()


@torch.no_grad()
def _fill(tensor: Tensor, distribution: Distribution, seed: int, name: str) -> None:
    if isinstance(distribution, Constant):
        tensor.fill_(distribution.value)
        return
    generator = generator_for(seed, name)
    in_place = tensor.device.type == "cpu" and tensor.dtype == torch.float32 and tensor.is_contiguous()
    whole = tensor if tensor.is_contiguous() else torch.empty_like(tensor, memory_format=torch.contiguous_format)
    for block in whole.view(-1).split(BLOCK):
        # elsewhere drawn in float32 on the CPU and copied: the same numbers for every device and dtype
        target = block if in_place else torch.empty(block.shape, dtype=torch.float32, device="cpu")
        match distribution:
            case Normal(std=std):
                target.normal_(0.0, std, generator=generator)
            case Uniform() | Truncated():
                bent_(target.normal_(0.0, HALF, generator=generator), distribution)
        if target is not block:
            block.copy_(target)
    if whole is not tensor:
        tensor.copy_(whole)
