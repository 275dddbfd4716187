"""Logits and loss in what a forward returned: a tensor, a tuple, a dict, an object."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from initdiag.errors import RunError
from initdiag.subjects.subject import Subject

_LOGITS = ("logits", "lm_logits", "prediction_logits", "prediction_scores", "scores")
_LOSSES = ("loss", "lm_loss")
_FORWARD = "initdiag.Subject(module, forward=lambda m, ids: ...)"


def read_outputs(
    subject: Subject, module: nn.Module, result: Any, ids: Tensor, shown: str, loss_alone: bool = False
) -> tuple[Any, Tensor | None]:
    """Return the logits (B, T, V) and the loss, None where there is none.

    Logits are what is called so, else the first tensor of floats (B, T, V), else the first (B, T, more than V): a
    padded vocabulary. (B·T, V) and (T, B, V) are brought to that shape where only one reading is possible.

    Args:
        shown: the call, for messages. loss_alone: whether a loss without logits is allowed; logits are None then.

    Raises:
        RunError: there are no logits; says what came back instead and how to call the module.
    """
    found = list(_tensors(result))
    loss = next((t for name, t in _by_name(found, _LOSSES) if t.numel() == 1), None)
    floats = [(name, tensor) for name, tensor in _by_name(found, _LOGITS) if tensor.numel() > 1]
    hidden = _hidden_widths(module) - {subject.vocab_size}
    shaped = [logits for _, tensor in floats if (logits := _as_logits(tensor, ids)) is not None]
    wide = [logits for logits in shaped if logits.shape[-1] >= subject.vocab_size and logits.shape[-1] not in hidden]
    exact = [logits for logits in wide if logits.shape[-1] == subject.vocab_size]
    if exact or wide:
        logits = (exact or wide)[0]
        width, size = logits.shape[-1], subject.vocab_size
        if width > max(1.25 * size, -(-size // 64) * 64):
            raise RunError(
                f"{subject.name}: the logits have {width} columns, and vocab_size is {size}; expected the same, or a "
                "few percent more as padding: give the right vocab_size (--vocab-size)"
            )
        return logits, loss
    if loss_alone and loss is not None and not floats:
        return None, loss
    raise RunError(f"{subject.name}: {shown} returned {_complaint(subject, module, result, floats, ids)}")


def _tensors(result: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors of floats in a result, with their names; caches and hidden states lie deeper than is looked."""
    if isinstance(result, Tensor):
        if result.is_floating_point():
            yield name, result
    elif depth > 2:
        return
    elif isinstance(result, Mapping):
        for key, value in result.items():
            yield from _tensors(value, str(key), depth + 1)
    elif isinstance(result, tuple | list):
        names = getattr(result, "_fields", None) or [name] * len(result)
        for key, value in zip(names, result, strict=True):
            yield from _tensors(value, key, depth + 1)
    elif dataclasses.is_dataclass(result) or (hasattr(result, "__dict__") and not callable(result)):
        for key, value in vars(result).items():
            yield from _tensors(value, key, depth + 1)


def _by_name(found: list[tuple[str, Tensor]], names: tuple[str, ...]) -> list[tuple[str, Tensor]]:
    """Those with a name of ours first, in the order of our names."""
    return sorted(found, key=lambda pair: names.index(pair[0]) if pair[0] in names else len(names))


def _hidden_widths(module: nn.Module) -> set[int]:
    """Widths of embeddings: logits don't have them, unless a padded vocabulary has as many rows by chance."""
    tables = [part for part in module.modules() if isinstance(part, nn.Embedding)]
    return {part.embedding_dim for part in tables} - {part.num_embeddings for part in tables}


def _as_logits(tensor: Tensor, ids: Tensor) -> Tensor | None:
    batch, length = ids.shape
    width = tensor.shape[-1]
    if tuple(tensor.shape[:-1]) == (batch, length):
        return tensor
    if tuple(tensor.shape[:-1]) == (batch * length,):
        return tensor.view(batch, length, width) if tensor.is_contiguous() else tensor.reshape(batch, length, width)
    if tuple(tensor.shape[:-1]) == (length, batch):  # length isn't batch here, else it would have been (B, T)
        return tensor.transpose(0, 1)
    return None


def _complaint(subject: Subject, module: nn.Module, result: Any, floats: list[tuple[str, Tensor]], ids: Tensor) -> str:
    """What came back, what was expected, and what to do: the end of a sentence."""
    (batch, length), vocab = ids.shape, subject.vocab_size
    expected = f"expected logits of (B, T, V) = ({batch}, {length}, {vocab})"
    if not floats:
        return (
            f"{_kind(result)} with no tensor of logits in it; {expected}: return them, or say where they are with "
            f"{_FORWARD}"
        )
    tensor = floats[0][1]
    shape = tuple(tensor.shape)
    came = f"a tensor of shape {shape}"
    if len(shape) == 3 and shape[1:] == (1, tensor.shape[-1]) and length > 1 and shape[0] == batch:
        return (
            f"{came}: the logits of only the last position; {expected}: return all of them, or write a forward that "
            f"does: {_FORWARD}"
        )
    if shape == (batch, tensor.shape[-1]) and shape[-1] >= vocab:
        return f"{came}: logits of one position only; {expected}: return all of them, or use {_FORWARD}"
    if len(shape) == 3 and shape[0] == batch and shape[2] == length and shape[1] >= vocab:
        return (
            f"{came}: the vocabulary is on axis 1 (transposed); {expected}: "
            f"initdiag.Subject(module, forward=lambda m, ids: m(ids).transpose(1, 2))"
        )
    width = shape[-1]
    if shape[:-1] in ((batch, length), (length, batch), (batch * length,)):
        if width in _hidden_widths(module) - {vocab}:
            return (
                f"{came}: hidden states of width {width}, no logits; {expected}: use the class with the head, or apply "
                f"it: initdiag.Subject(module, forward=lambda m, ids: head(m(ids)))"
            )
        return (
            f"{came}: logits over {width} entries, narrower than vocab_size {vocab}; {expected}: if {width} is right, "
            f"give it with --vocab-size {width} (vocab_size={width})"
        )
    return f"{came}; {expected}: say how to get them with {_FORWARD}"


def _kind(result: Any) -> str:
    if result is None:
        return "None"
    name = type(result).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
