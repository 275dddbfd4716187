"""One way to call any module: ids in, logits and perhaps the module's own loss out, and a sentence where that fails."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from initdiag.errors import InitdiagError, RunError
from initdiag.memory import OUT_OF_MEMORY
from initdiag.subjects.forward_errors import explain
from initdiag.subjects.frames import is_ours, prints_to_stderr
from initdiag.subjects.outputs import read_outputs
from initdiag.subjects.quiet import quiet
from initdiag.subjects.subject import Subject

_TARGETS = ("targets", "target", "y", "tgt_ids", "target_ids")  # names of ids that are shifted already
_LABELS = ("labels",)  # transformers' name: it shifts them itself
_SOURCES = ("src", "source", "encoder_input", "encoder_ids", "enc_input", "src_ids", "source_ids", "encoder_input_ids")
_SECONDS = ("tgt", "target", "decoder_input", "decoder_ids", "dec_input", "tgt_ids", "target_ids", "decoder_input_ids")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True)
class Outcome:
    """What one forward returned.

    logits: (B, T, V). loss: the module's own, a tensor of one number, None where it returned none. argument: the
    parameter that the targets went to, "" for none. shifted: whether what it got had been shifted already
    (nanoGPT's targets), or are the ids themselves (transformers' labels).
    """

    logits: Tensor
    loss: Tensor | None
    argument: str = ""
    shifted: bool = True


@dataclass(frozen=True)
class Call:
    """The arguments of one call; `shown` is how a person would write it."""

    positional: tuple[Any, ...]
    keywords: dict[str, Any]
    shown: str
    argument: str = ""
    shifted: bool = True


def call(
    subject: Subject, module: nn.Module, ids: Tensor, targets: Tensor | None = None, source: Tensor | None = None
) -> Outcome:
    """Run a module once.

    A forward that takes labels or targets gets them, so that its own loss comes out of the same run, and so that a
    model that else returns the last position alone returns all. Where it then returns the loss only, it is run a
    second time without them.

    Args:
        ids: (B, T) of int64. targets: (B, T) of int64, the ids that follow. source: (B, T), what the encoder of an
            encoder-decoder reads; default: the ids too.

    Raises:
        RunError: the module's code fails (with the line of it and what it was called with), or what it returns has no
            logits of (B, T, V). Running out of memory is left as it is.
    """
    if subject.forward is not None:
        planned = Call((module, ids), {}, "your forward(module, ids)")
        result = _run(subject, module, planned, ids, subject.forward)
        logits, loss = read_outputs(subject, module, result, ids, planned.shown)
        return Outcome(logits, loss)
    planned = plan_call(subject, module, ids, targets, source)
    try:
        result = _run(subject, module, planned, ids, module)
    except RunError:
        if not planned.argument:
            raise
        # its own loss may be what fails: the logits are worth having without it, and fail by themselves where they do
        planned = plan_call(subject, module, ids, None, source)
        result = _run(subject, module, planned, ids, module)
    logits, loss = read_outputs(subject, module, result, ids, planned.shown, loss_alone=bool(planned.argument))
    if logits is None:
        again = plan_call(subject, module, ids, None, source)
        logits, _ = read_outputs(subject, module, _run(subject, module, again, ids, module), ids, again.shown)
    return Outcome(logits, loss, planned.argument, planned.shifted)


def plan_call(
    subject: Subject, module: nn.Module, ids: Tensor, targets: Tensor | None, source: Tensor | None = None
) -> Call:
    """Decide what goes to which parameter of a module's forward.

    Raises:
        RunError: it needs a parameter that we have nothing for.
    """
    parameters = _parameters(module)
    names = list(parameters)
    keywords: dict[str, Any] = {}
    shown: dict[str, str] = {}
    first = "input_ids" if "input_ids" in parameters else names[0] if names else ""
    if first == "input_ids" or (first and parameters[first].kind is inspect.Parameter.KEYWORD_ONLY):
        keywords[first], shown[first] = ids, "ids"
    two_streams = bool(getattr(getattr(module, "config", None), "is_encoder_decoder", False))
    if two_streams and "decoder_input_ids" in parameters:
        keywords["decoder_input_ids"], shown["decoder_input_ids"] = ids, "ids"
    required = [name for name, p in parameters.items() if p.default is p.empty and name != first]
    for name in required:
        if name in _SECONDS and first in _SOURCES:
            keywords[name], shown[name] = ids, "ids"
    argument = next(
        (name for name in (*_LABELS, *_TARGETS) if name in parameters and name not in (first, *keywords)), ""
    )
    shifted = argument not in _LABELS or two_streams  # an encoder-decoder's labels are what its decoder is to say next
    if targets is not None and argument:
        keywords[argument] = targets if shifted else ids
        shown[argument] = "targets" if shifted else "ids"
    for name, value in (("use_cache", False), ("return_dict", True)):
        if name in parameters:
            keywords[name], shown[name] = value, str(value)
    missing = [name for name in required if name not in keywords]
    if missing:
        raise RunError(
            f"{subject.name}: its forward needs {', '.join(repr(name) for name in missing)} besides the ids; say "
            f"how to call it: initdiag.Subject(module, forward=lambda m, ids: m(ids, {missing[0]}=...))"
        )
    read = source if source is not None and any(name in _SECONDS for name in keywords) else ids
    if first in keywords:
        keywords[first] = read
    positional = () if first in keywords else (read,)
    words = (["ids"] if positional else []) + [f"{name}={value}" for name, value in shown.items()]
    return Call(positional, keywords, f"forward({', '.join(words)})", argument if argument in keywords else "", shifted)


def _parameters(module: nn.Module) -> dict[str, inspect.Parameter]:
    try:
        signature = inspect.signature(module.forward)
    except (ValueError, TypeError):
        return {}
    kinds = (*_NAMED, inspect.Parameter.POSITIONAL_ONLY)
    return {name: p for name, p in signature.parameters.items() if p.kind in kinds}


def _run(subject: Subject, module: nn.Module, planned: Call, ids: Tensor, function: Any) -> Any:
    try:
        with _silence(module):
            return function(*planned.positional, **planned.keywords)
    except (Exception, SystemExit) as error:  # a forward that exits must not end the program as if all were well
        raise_explained(subject, module, error, ids, planned.shown)


def raise_explained(subject: Subject, module: nn.Module, error: BaseException, ids: Tensor, shown: str) -> NoReturn:
    """Raise what went wrong in the user's code as a RunError; out of memory, and our own errors, as they are."""
    memory = any(words in str(error).lower() for words in OUT_OF_MEMORY)
    if isinstance(error, InitdiagError | torch.OutOfMemoryError | MemoryError) or memory or is_ours(error):
        raise error
    raise RunError(explain(subject, module, error, ids, shown)) from error


def _silence(module: nn.Module) -> AbstractContextManager[None]:
    """Classes of transformers warn about much that isn't meant here; what others print is not for stdout."""
    return quiet() if any(_bases(module)) else prints_to_stderr()


def _bases(module: nn.Module) -> Iterator[bool]:
    for kind in type(module).__mro__:
        yield kind.__module__.startswith("transformers.")
