"""Undeclared equalities: tensors, experts and row blocks that hold the same numbers though they don't share memory.

Nothing is compared pair by pair as a whole: digests and short samples name the candidates, and only these are read in
full. Tensors that no chance went into (norm gains, zeros, identities, sinusoids, SSM ramps) are equal by design.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain

import torch
from torch import Tensor, nn

from initdiag.measure.lens_values import Copy
from initdiag.measure.statistics import BLOCK, moments, widened
from initdiag.measure.values import total
from initdiag.measure.weights import digest, spaced
from initdiag.schemes import Role
from initdiag.schemes.roles import LINEAR_WEIGHTS
from initdiag.weightless.lazy import is_lazy

DRAWN = frozenset({*LINEAR_WEIGHTS, Role.TOKEN_EMBEDDING, Role.ROUTER, Role.BIAS, Role.ROUTER_BIAS})
CONSTANTS = frozenset({Role.NORM_SCALE, Role.NORM_BIAS, Role.MULTIPLIER})

FEWEST = 16  # a tensor with no more entries is equal to another by chance or design (scalars, per-head gains)
FEWEST_VALUES = 8  # distinct ones in a sample; an identity has 2, a tensor of signs 2, a drawn one as many as entries
SAMPLE = 1024  # entries that correlations are looked for in
SIGMAS = 6.0  # two-sided 2e-9 per pair, and a hit must hold for the whole tensor again
WINDOW = 2048  # how many tensors of the same shape, back in the module's order, one is correlated with
ROWS = 8  # fewest rows that make a block
KEYS = 8  # entries of a row that must agree before all of it is read
HASH = torch.tensor([0x1E3779B97F4A7C15 * (2 * index + 1) % 2**62 | 1 for index in range(KEYS)])  # any odd numbers


def find_copies(module: nn.Module, roles: Mapping[str, Role]) -> tuple[Copy, ...]:
    """Find float parameters, slices of 3-D ones (experts), and blocks of rows or columns that repeat another.

    A group of n equal tensors gives n − 1 copies, each of the first one. Names of slices and blocks say where:
    "experts.up[3]", "qkv.weight[64:128]", "qkv.weight[:, 64:128]". What shares memory is one tensor, not a copy.

    Args:
        roles: by parameter name; may lack some. Norms, multipliers, and frozen or 1-D tensors of no known role are
            left out.
    """
    tensors = _candidates(module, roles)
    equal = list(_equal(tensors))
    distinct = _without(tensors, equal)
    slices = {
        f"{name}[{index}]": part
        for name, tensor in distinct.items()
        if tensor.dim() == 3
        for index, part in enumerate(tensor)
        if part.numel() > FEWEST and _by_chance(part)
    }
    equal_slices = list(_equal(slices))
    pieces = _without({**{name: x for name, x in distinct.items() if x.dim() != 3}, **slices}, equal_slices)
    embeddings = {name for name, role in roles.items() if role in (Role.TOKEN_EMBEDDING, Role.LM_HEAD)}
    blocks = chain.from_iterable(_blocks(name, x, name in embeddings) for name, x in pieces.items() if x.dim() == 2)
    return (*equal, *equal_slices, *blocks, *_scaled(pieces))


def _candidates(module: nn.Module, roles: Mapping[str, Role]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    memory = set()
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):  # drawn by its own name, so equal to no other
            continue
        place = (parameter.data_ptr(), parameter.shape, parameter.stride(), parameter.device)
        if place not in memory and _judged(parameter, roles.get(name)):
            memory.add(place)
            found[name] = parameter.detach()
    return found


def _judged(parameter: nn.Parameter, role: Role | None) -> bool:
    if parameter.numel() <= FEWEST or not parameter.is_floating_point():
        return False
    if role is Role.POSITION_EMBEDDING and _sinusoidal(parameter.detach()):
        return False
    if role in CONSTANTS or (role not in DRAWN and (parameter.dim() < 2 or not parameter.requires_grad)):
        return False
    return _by_chance(parameter.detach())


def _sinusoidal(table: Tensor) -> bool:
    """Whether all rows of a position table, but for padding rows of zeros, are equally long: sines with cosines."""
    norms = torch.linalg.vector_norm(table.float(), dim=-1)
    norms = norms[norms > 0]
    return norms.numel() > 1 and float(norms.std()) < 1e-3 * float(norms.mean())


def _by_chance(tensor: Tensor) -> bool:
    """Say whether a tensor looks drawn: more than a few distinct values, and rows that differ from one another."""
    if len(spaced(tensor, SAMPLE).float().unique()) < FEWEST_VALUES:
        return False
    rows = tensor[(0,) * max(tensor.dim() - 2, 0)]
    if rows.dim() < 2 or len(rows) < 3:
        return True
    return not torch.equal(rows[0], rows[-1]) or not torch.equal(rows[0], rows[len(rows) // 2])


def _without(tensors: Mapping[str, Tensor], copies: list[Copy]) -> dict[str, Tensor]:
    seconds = {copy.second for copy in copies}
    return {name: tensor for name, tensor in tensors.items() if name not in seconds}


def _equal(tensors: Mapping[str, Tensor]) -> Iterator[Copy]:
    firsts: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        known = firsts.setdefault(digest(tensor), [])
        for first in known:
            if torch.equal(tensors[first], tensor.to(tensors[first].device)):
                yield Copy(first, name, "equal")
                break
        else:
            known.append(name)


def _blocks(name: str, matrix: Tensor, embedding: bool) -> Iterator[Copy]:
    """Find rows, or columns, that return at a fixed distance. Zero rows never count.

    Of an embedding or a head, an eighth of the rows must: new tokens may start as copies of old ones.
    """
    for form, side in (("{}[{}:{}]", matrix), ("{}[:, {}:{}]", matrix.t())):
        least = max(ROWS, len(side) // 8) if embedding and side is matrix else ROWS
        found = _repeated_rows(side, least)
        if found:
            start, length, step = found
            first, second = ((at, at + length) for at in (start, start + step))
            yield Copy(form.format(name, *first), form.format(name, *second), "rows")
            return


def _repeated_rows(matrix: Tensor, least: int) -> tuple[int, int, int] | None:
    """Return (first row, rows, distance) of a block of at least that many different rows that returns, or None."""
    if len(matrix) < 2 * least or matrix.shape[1] < KEYS:
        return None
    keys = _row_keys(matrix)
    order = keys.argsort(stable=True)
    ordered = keys[order]
    same = (ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)
    if int(same.count_nonzero()) < least:
        return None
    upper, lower = order[:-1][same], order[1:][same]
    step = int((lower - upper).mode().values)
    rows = upper[lower - upper == step].sort().values
    whole = [(matrix[part] == matrix[part + step]).all(1).cpu() for part in rows.to(matrix.device).split(256)]
    rows = rows[torch.cat(whole)]
    if len(keys[rows].unique()) < least:  # one row, many times: padding, or a matrix of rank 1, which is another fault
        return None
    start, end = int(rows[0]), int(rows[-1]) + 1
    return start, min(end - start, step), step


def _row_keys(matrix: Tensor) -> Tensor:
    """Return, for each row, an integer from the bits of a few of its entries; 0 where these are zeros."""
    columns = matrix[:, :: (matrix.shape[1] - 1) // (KEYS - 1)][:, :KEYS].contiguous().cpu()
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[columns.element_size()]
    return (columns.view(integers) * HASH).sum(1)  # products wrap, as a hash may


def _scaled(tensors: Mapping[str, Tensor]) -> Iterator[Copy]:
    """Find tensors of one shape that are correlated: copies times a factor, copies with noise, one seed drawn twice."""
    shapes: dict[tuple[int, ...], list[str]] = {}
    for name, tensor in tensors.items():
        shapes.setdefault(tuple(tensor.shape), []).append(name)
    for names in shapes.values():
        signs = torch.stack([_signs(spaced(tensors[name], SAMPLE)) for name in names])
        limit = SIGMAS / math.sqrt(signs.shape[1])
        for start in range(0, len(names), 256):
            begin, end = max(0, start - WINDOW), start + 256
            close = (signs[start:end] @ signs[begin:end].T).abs() > limit
            close = close.tril(start - begin - 1)  # each with those before it
            for row in close.any(1).nonzero().flatten().tolist():
                first, second = names[begin + int(close[row].int().argmax())], names[start + row]
                correlation, factor = _regression(tensors[first], tensors[second])
                if abs(correlation) > SIGMAS / math.sqrt(tensors[first].numel()):
                    yield Copy(first, second, "scaled", factor)


def _signs(sample: Tensor) -> Tensor:
    """Return the signs about the median, of norm 1: a few huge entries in the same places correlate no signs."""
    wide = sample.cpu().float()
    return (wide - wide.median()).sign() / math.sqrt(len(wide))


def _regression(a: Tensor, b: Tensor) -> tuple[float, float]:
    """Return the correlation of a and b over all entries, and the factor of b ≈ factor·a (of what isn't the mean)."""
    (mean_a, variance_a, _), (mean_b, variance_b, _) = moments(a), moments(b)
    pairs = zip(a.reshape(-1).split(BLOCK), b.to(a.device).reshape(-1).split(BLOCK), strict=True)
    scale = math.sqrt(variance_a * variance_b)
    if not 0 < scale < math.inf:
        return 0.0, 0.0
    ends = math.sqrt(variance_a), math.sqrt(variance_b)
    product = total(
        float((((widened(x) - mean_a) / ends[0]) * ((widened(y) - mean_b) / ends[1])).sum()) for x, y in pairs
    )
    correlation = product / a.numel()
    return correlation, correlation * ends[1] / ends[0]
