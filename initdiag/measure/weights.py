"""Parameters and buffers as they stand in a module: moments, shape of the distribution, rank, and a digest."""

from __future__ import annotations

import ctypes
import hashlib
import math

import torch
from torch import Tensor, nn

from initdiag.measure.lens_values import ParameterMeasure
from initdiag.measure.one_thread import one_thread
from initdiag.measure.statistics import BLOCK, moments, widened
from initdiag.measure.values import total
from initdiag.schemes import Uniform
from initdiag.weightless.lazy import source_of
from initdiag.weightless.source import Source

HASHED = 2**16  # bytes of a tensor that its digest reads: blake2b takes half a second for all of GPT-2 small

SIDE = 256  # of the sample that the stable rank is taken of: its Gram matrix costs a millisecond at most
SMALLEST_SIDE = 8  # of a matrix that has a stable rank: below, one large entry by chance looks like rank 1
SQUARINGS = 7  # of the Gram matrix: 128 steps of power iteration, in seven products

SAMPLED = 32  # blocks, evenly spaced, whose fourth powers are summed: a million entries know a kurtosis to 0.005
FOURTHS_FIT = 1e-8  # float32 holds x⁴ for a std from this to its inverse


def measure_parameters(module: nn.Module) -> tuple[ParameterMeasure, ...]:
    """Measure every parameter of a module (a tied one once), in the module's order."""
    return tuple(_measure(name, parameter, buffer=False) for name, parameter in module.named_parameters())


def measure_buffers(module: nn.Module) -> tuple[ParameterMeasure, ...]:
    """Measure every buffer of a module (a shared one once), in the module's order; integers and bools as floats.

    Sparse ones are left out: they are indices and masks, and have no entries to take moments of.
    """
    dense = [(name, tensor) for name, tensor in module.named_buffers() if tensor.layout is torch.strided]
    return tuple(_measure(name, tensor, buffer=True) for name, tensor in dense)


def _by_law(name: str, tensor: Tensor, source: Source) -> ParameterMeasure:
    """What the law of a parameter without entries says of them; of several pieces, over all of their entries."""
    law = source.law
    only = law.pieces[0].distribution if len(law.pieces) == 1 else None
    return ParameterMeasure(
        name=name,
        mean=law.mean,
        std=law.std,
        not_finite=0,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        kurtosis=only.kurtosis if only else math.nan,
        max_abs=abs(law.mean) + only.bound if isinstance(only, Uniform) else math.nan,
        drawn=False,
        trainable=tensor.requires_grad,
    )


def _measure(name: str, tensor: Tensor, *, buffer: bool) -> ParameterMeasure:
    if (source := source_of(tensor)) is not None:
        return _by_law(name, tensor, source)
    numbers = _numbers(tensor.detach())
    mean, spread, not_finite = moments(numbers)
    std = spread**0.5
    kurtosis, low, high = tails(numbers, mean, std)
    if low == high:  # a constant such as 0.3 is off its mean by a rounding, which is no spread
        mean, std, kurtosis = low, 0.0, math.nan
    return ParameterMeasure(
        name=name,
        mean=mean,
        std=std,
        not_finite=not_finite,
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        kurtosis=kurtosis,
        max_abs=max(abs(low), abs(high)),
        stable_rank=stable_rank(numbers),
        digest=digest(tensor),
        buffer=buffer,
        trainable=tensor.requires_grad,
    )


def _numbers(tensor: Tensor) -> Tensor:
    """Return real numbers that torch can add: complex ones as pairs, those of 8 bits as float32."""
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() == 1 else tensor


def tails(x: Tensor, mean: float, std: float) -> tuple[float, float, float]:
    """Return kurtosis, least and largest entry; kurtosis is nan where std is 0 or not finite, all are of no entries.

    Least and largest are those of all entries; the kurtosis of a large tensor is that of a part of its blocks.

    Blocks are summed in Python's float64, as in statistics.py. Where float32 can't hold fourth powers of the entries,
    they are divided by std first, in float64.
    """
    spread = 0 < std < math.inf
    wide = spread and not FOURTHS_FIT < std < 1 / FOURTHS_FIT and x.device.type != "mps"  # which has no float64
    dtype = torch.float64 if wide else torch.promote_types(x.dtype, torch.float32)
    scale = std if wide else 1.0
    scratch = torch.empty(min(BLOCK, x.numel()), dtype=dtype, device=x.device)  # once: memory is slower than sums
    fourths, lows, highs = [], [], []
    blocks = x.detach().reshape(-1).split(BLOCK) if x.numel() else ()
    every, counted = max(1, len(blocks) // SAMPLED), 0
    for at, block in enumerate(blocks):
        values = block.to(dtype)
        low, high = values.aminmax()
        lows.append(float(low))
        highs.append(float(high))
        if spread and at % every == 0:
            counted += len(values)
            part = torch.sub(values, mean, out=scratch[: len(values)])
            norm = float(torch.linalg.vector_norm((part.div_(scale) if wide else part).square_()))
            fourths.append(norm * norm)
    kurtosis = total(fourths) / counted / (std / scale) ** 4 if spread else math.nan
    if not lows or any(map(math.isnan, lows)):
        return kurtosis, math.nan, math.nan
    return kurtosis, min(lows), max(highs)


def stable_rank(x: Tensor) -> float | None:
    """Return ‖A‖²_F/‖A‖²₂ over the smaller side of A, a sample of x.

    A takes evenly spaced rows and columns, at most 256 of each, of the last two axes (of the others: the first
    entry). 1 for an orthogonal matrix, 1/4 for a square one of independent entries, 1/side for rank 1. None for fewer
    than two axes, a side below 8, or where A is all zero or not finite.
    """
    if x.dim() < 2 or min(x.shape[-2:]) < SMALLEST_SIDE or not x.numel():
        return None
    matrix = x.detach()[(0,) * (x.dim() - 2)]
    steps = [math.ceil(size / SIDE) for size in matrix.shape]
    with one_thread():
        return _stable_rank(widened(matrix[:: steps[0], :: steps[1]]).cpu())


def _stable_rank(sample: Tensor) -> float | None:
    peak = float(sample.abs().max())
    if not 0 < peak < math.inf:
        return None
    sample = sample / peak  # so that no square leaves float32
    gram = sample @ sample.T if sample.shape[0] <= sample.shape[1] else sample.T @ sample
    vector = torch.randn(len(gram), generator=torch.Generator().manual_seed(0), dtype=gram.dtype)
    power = gram
    for _ in range(SQUARINGS):
        power = power @ power
        power = power / torch.linalg.vector_norm(power)
    vector = power @ vector
    vector /= torch.linalg.vector_norm(vector)
    return float(gram.trace()) / float(torch.linalg.vector_norm(gram @ vector)) / len(gram)


def digest(x: Tensor) -> str:
    """Return 128 bits, in hex, of dtype, shape and content: all of it up to 64 KiB, else evenly spaced entries.

    Equal tensors have equal digests; the other way round needs torch.equal (see copies.py).
    """
    hasher = hashlib.blake2b(f"{x.dtype} {tuple(x.shape)}".encode(), digest_size=16)
    sample = spaced(x, HASHED // x.element_size()).contiguous().cpu()
    if sample.numel() and x.device.type != "meta":
        hasher.update(ctypes.string_at(sample.data_ptr(), sample.numel() * sample.element_size()))
    return hasher.hexdigest()


def spaced(x: Tensor, count: int) -> Tensor:
    """Return at most `count` evenly spaced entries (a view where the layout allows one); all where there are no more.

    The step is odd, so that in a row of even length it doesn't meet the same columns again and again.
    """
    flat = x.detach().reshape(-1)
    return flat[:: math.ceil(len(flat) / count) | 1] if len(flat) > count else flat
