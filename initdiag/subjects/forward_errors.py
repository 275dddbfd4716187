"""A forward that failed, in a sentence or two: where, why, what it was called with, and what to change."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor, nn

from initdiag.subjects.frames import failing_line, first_line
from initdiag.subjects.subject import Subject

_LENGTH = re.compile(r"length|block|context|sequence|position|seq", re.IGNORECASE)
_SIZES = re.compile(r"size of tensor a \((\d+)\) must match the size of tensor b \((\d+)\)")


def explain(subject: Subject, module: nn.Module, error: BaseException, ids: Tensor, shown: str) -> str:
    """Return the sentences for an exception that a module raised in its own forward."""
    where = failing_line(error)
    at = f" at {where}" if where else ""
    hint = _hint(subject, module, error, ids)
    return (
        f"{subject.name} fails in its own {'backward' if shown.startswith('backward') else 'forward'}: "
        f"{first_line(error)}{at}. initdiag called {shown} with ids of "
        f"{_called(ids)}{hint and f'. {hint}'}"
    )


def _called(ids: Tensor) -> str:
    """ "int64, shape (2, 256), values 0..50256"."""
    kind = str(ids.dtype).removeprefix("torch.")
    if not ids.numel() or ids.is_meta:
        return f"{kind}, shape {tuple(ids.shape)}"
    try:
        return f"{kind}, shape {tuple(ids.shape)}, values {int(ids.min())}..{int(ids.max())}"
    except RuntimeError:  # a CUDA device that has asserted answers nothing any more
        return f"{kind}, shape {tuple(ids.shape)}"


def _hint(subject: Subject, module: nn.Module, error: BaseException, ids: Tensor) -> str:
    text, length = str(error), ids.shape[-1]
    if isinstance(error, IndexError) or "device-side assert" in text or "out of range" in text:
        told = _table_too_small(module, ids)
        if told:
            return told
    if isinstance(error, TypeError) and "required positional argument" in text:
        missing = re.findall(r"'(\w+)'", text)
        name = missing[0] if missing else "mask"
        return (
            f"Its forward needs '{name}': say how to call it with "
            f"initdiag.Subject(module, forward=lambda m, ids: m(ids, {name}=...))"
        )
    limit = _limit(subject, error, length)
    if limit:
        return f"It takes at most {limit} tokens: --set tokens.length={limit}"
    if "same dtype" in text or "scalar type" in text or "Input type" in text:
        return _dtypes(module, text)
    if "same device" in text:
        return "Its forward makes a tensor on another device: make it with device=ids.device"
    return ""


def _table_too_small(module: nn.Module, ids: Tensor) -> str:
    """An index error, by the first embedding table that can't take these ids, or these many positions."""
    try:
        largest = int(ids.max())
    except RuntimeError:
        return ""
    tables = [(path, part) for path, part in module.named_modules() if isinstance(part, nn.Embedding)]
    length = ids.shape[-1]
    positions = [(path, part) for path, part in tables if re.search(r"pos|wpe", path, re.IGNORECASE)]
    for path, part in positions or tables:
        if part.num_embeddings < length and part.num_embeddings <= largest:
            rows = part.num_embeddings
            return f"'{path}' has {rows} positions for {length} tokens: --set tokens.length={rows}"
    for path, part in [pair for pair in tables if pair not in positions]:
        if part.num_embeddings <= largest and not getattr(part, "max_norm", None):
            rows = part.num_embeddings
            return f"'{path}' has {rows} rows, the largest id is {largest}: --vocab-size {rows} (vocab_size={rows})"
    return ""


def _limit(subject: Subject, error: BaseException, length: int) -> int:
    """The number of tokens that a model can take at most, where its error is about that; else 0."""
    text = str(error)
    sizes = _SIZES.search(text)
    found = [int(size) for size in sizes.groups()] if sizes else []
    if not found and _LENGTH.search(text):
        found = [int(number) for number in re.findall(r"\d+", text)]
    smaller = [size for size in found if 1 < size < length]
    if length in found and smaller:
        return max(smaller)
    context = subject.declared.context
    return context if context is not None and context < length else 0


def _dtypes(module: nn.Module, text: str) -> str:
    if "Long" in text or "Int" in text:
        return (
            "A layer got the token ids themselves, not their embeddings: say how to call the module with "
            "initdiag.Subject(module, forward=lambda m, ids: ...)"
        )
    kinds: dict[torch.dtype, str] = {}
    tensors: list[tuple[str, Any]] = [*module.named_parameters(), *module.named_buffers()]
    for path, tensor in tensors:
        if tensor.is_floating_point():
            kinds.setdefault(tensor.dtype, path)
    if len(kinds) > 1:
        named = " and ".join(f"'{path}' in {str(kind).removeprefix('torch.')}" for kind, path in kinds.items())
        return f"Its weights have several dtypes, {named}: bring them to one with module.to(torch.float32)"
    only = str(next(iter(kinds), torch.float32)).removeprefix("torch.")
    return f"Its weights are {only}; some tensor that its forward makes is not: give that one dtype=torch.{only}"
