"""What the operations of torch are given and return: tensors, the storages that these lie in, and single numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

MANY = 4096  # runs of rows written by one index: more are no padding


def operands(operation: str, given: Mapping[str, Any]) -> tuple[Tensor | None, float | None]:
    """Split the arguments into the tensor that is worked on, and the number that it is combined with."""
    tensor = given.get("self")
    other = next((given[key] for key in ("other", "value", "fill_value") if given.get(key) is not None), None)
    if not isinstance(tensor, Tensor):
        return None, as_number(other)
    if operation in ("mul", "add") and isinstance(other, Tensor) and tensor.numel() == 1 < other.numel():
        return other, as_number(tensor)
    return tensor, as_number(other)


def as_number(value: Any) -> float | None:
    """Return a number, or the one number that a tensor holds; None for everything else."""
    if isinstance(value, Tensor):
        if value.numel() != 1 or value.is_meta or value.is_complex():
            return None
        value = value.detach().item()
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of an argument, those of nested lists too."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors(item)


def tensors_read(inputs: list[Tensor], schema: Any, given: Mapping[str, Any]) -> list[Tensor]:
    """Return the inputs without those given as out=: written, not read."""
    outs = [tensor for argument in schema.arguments if argument.is_out for tensor in tensors(given[argument.name])]
    return [tensor for tensor in inputs if not any(tensor is out for out in outs)]


def storage_key(tensor: Tensor) -> int | None:
    """Return the address of a tensor's storage; None for tensors that have none (sparse, wrapped, sharded)."""
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return None


def whole(tensor: Tensor) -> bool:
    """Whether a tensor covers all of its storage."""
    return storage_key(tensor) is None or tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def span(tensor: Tensor) -> list[tuple[int, int]] | None:
    """Return which entries of its storage a tensor is, as (first, one past the last); None where they are no range."""
    start = int(tensor.storage_offset())
    return [(start, start + tensor.numel())] if tensor.is_contiguous() else None


def row_spans(operation: str, given: Mapping[str, Any]) -> list[tuple[int, int]] | None:
    """Return the entries that weight[index] = value writes, for an index of rows; None for every other write."""
    tensor = given.get("self")
    if operation == "index_put" and not given["accumulate"] and len(given["indices"]) == 1:
        index = given["indices"][0]
    elif operation == "index_fill" and given["dim"] == 0:
        index = given["index"]
    else:
        return None
    if not isinstance(tensor, Tensor) or not tensor.is_contiguous() or index is None or index.is_meta:
        return None
    if index.dtype == torch.bool:
        if index.dim() != 1:
            return None
        index = index.nonzero()
    start, length = int(tensor.storage_offset()), tensor.numel() // max(len(tensor), 1)
    rows = sorted({int(row) % len(tensor) for row in index.flatten().tolist()})
    runs: list[tuple[int, int]] = []
    for row in rows:
        first = runs.pop()[0] if runs and runs[-1][1] == row else row
        runs.append((first, row + 1))
    return None if len(runs) > MANY else [(start + low * length, start + high * length) for low, high in runs]


def random_state(generator: torch.Generator | None) -> int:
    """Return a number for the state of a generator (None: torch's own), and let it go on by one draw."""
    state = (generator or torch.default_generator).get_state()
    words = state[: len(state) // 8 * 8].view(torch.int64)
    torch.rand((), generator=generator)
    return int((words * torch.arange(1, 2 * len(words), 2)).sum()) or 1  # sums wrap, as a hash may
