"""A module target as a Subject: built while being watched, or taken as it is."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import nn

from initdiag.errors import RunError, UsageError, printable, require_type
from initdiag.memory import OUT_OF_MEMORY, SHARE, available
from initdiag.subjects.frames import failing_line, first_line
from initdiag.subjects.history import InitHistory
from initdiag.subjects.huggingface import load_hf, require_fits
from initdiag.subjects.import_path import load_factory
from initdiag.subjects.lean import Lean, build_lean
from initdiag.subjects.lean_build import NoEntriesError
from initdiag.subjects.module import from_module
from initdiag.subjects.recorder import Built, TooLargeError, build_watched
from initdiag.subjects.second_init import second_init
from initdiag.subjects.signatures import arguments_for
from initdiag.subjects.subject import Declared, Subject
from initdiag.subjects.targets import is_hf_config
from initdiag.subjects.tying import tie_of

LARGE_BUILD = 2**31  # bytes, up to which a build whose size nobody knows is let run: some seconds of drawing


def load_module(
    target: Any,
    *,
    kwargs: Mapping[str, Any],
    vocab_size: int = 0,
    causal: bool | None = None,
    trust_remote_code: bool = False,
    seed: int = 0,
    lean: bool | None = False,
) -> Subject:
    """Make the Subject of a module, a Subject, a function that builds one, an import path or a Hugging Face config.

    What is built is built with `seed`, and the global random state is put back.

    Args:
        lean: build it without its large parameters, and record what they are drawn from; None: where it may have a
            billion of them, or asks for 2 GiB of memory.

    Raises:
        UsageError: the target or its arguments are wrong. RunError: it can't be built, or not be looked at.
    """
    if isinstance(target, Subject | nn.Module):
        if lean:
            raise UsageError(
                "--engine weightless: this module has its weights already; give the class or function that builds it"
            )
        if kwargs:
            raise UsageError("kwargs: the module is already built; give the class or function that builds it")
        given = target if isinstance(target, Subject) else Subject(target)
        if given.module is None:
            raise UsageError("Subject: it has no module; expected Subject(module, ...)")
        require_type("name", given.name, (str,), "a name for reports")
        require_type("causal", given.causal, (bool, NoneType), "True or False")
        if given.forward is not None and not callable(given.forward):
            raise UsageError(f"forward: found {printable(repr(given.forward)[:60])}, expected a function (module, ids)")
        subject = from_module(
            given.module,
            forward=given.forward,
            vocab_size=vocab_size or given.vocab_size,
            name=given.name,
            causal=given.causal if causal is None else causal,
        )
        if given.forward is not None and given.causal is causal is None and _two_streams(given.module):
            subject = replace(subject, causal=False)  # that forward says what the encoder reads, later tokens as well
        return replace(subject, history=_history(given.module))
    declared, build, name, asked = Declared(), target, getattr(target, "__name__", "model"), lean is not None
    if isinstance(target, str | Path):
        text = str(target)
        if is_hf_config(text):
            found = load_hf(text, trust_remote_code, kwargs)
            name, declared, build = found.name, found.declared, found.build
            vocab_size, lean = vocab_size or found.vocab_size, found.large if lean is None else lean
            require_fits(found, bool(lean))
        else:
            name, build = load_factory(text, kwargs)
    else:
        build = _called(target, name, kwargs)
    made = _built(build, name, seed, lean, asked)
    _require_new(made, name, asked)
    typed = printable(str(target)) if isinstance(target, str | Path) else name
    subject = from_module(
        made.module, vocab_size=vocab_size, name=name, causal=causal, target=typed, lean=isinstance(made, Lean)
    )
    if isinstance(made, Lean):
        subject = replace(subject, laws=made.laws, unrecorded=dict(made.unrecorded))
    known = {field: value for field, value in vars(declared).items() if value is not None}
    subject = replace(subject, declared=replace(subject.declared, **known), history=_watched(made), owned=True)
    return replace(subject, causal=subject.declared.causal if causal is None else causal)


def _two_streams(module: nn.Module) -> bool:
    return bool(getattr(getattr(module, "config", None), "is_encoder_decoder", False))


def _require_new(made: Built | Lean, name: str, asked: bool) -> None:
    if asked and isinstance(made, Lean) and made.there and not made.laws:
        raise UsageError(
            f"--engine weightless: {name} has its weights already ('{made.there[0]}' was there before it was built); "
            f"give the class or function that builds it"
        )


def _called(function: Callable[..., Any], name: str, kwargs: Mapping[str, Any]) -> Callable[[], Any]:
    """A class or function with its arguments; where it takes one config object, they are the fields of that."""
    home = sys.modules.get(getattr(function, "__module__", ""))
    arguments = arguments_for(function, home, name, dict(kwargs)) if home else dict(kwargs)
    return lambda: function(**arguments)


def _built(
    build: Callable[[], Any], name: str, seed: int, lean: bool | None, asked: bool, room: int | None = None
) -> Built | Lean:
    """Build it whole or lean; None is whole, and lean where that takes too much memory.

    asked: somebody asked for that, so that it isn't built whole where its init code reads what a lean one hasn't.
    room: bytes that a whole one may take.
    """
    room = LARGE_BUILD if lean is None else room
    with seeded(seed):
        try:
            return build_lean(_made(build, name)) if lean else build_watched(_made(build, name), room)
        except TooLargeError:
            if lean is False:
                raise
            return _built(build, name, seed, True, asked)
        except NoEntriesError:
            there = available("cpu")
            if asked:
                raise
            return _built(build, name, seed, False, True, None if there is None else int(SHARE * there))
        except (RunError, UsageError, torch.OutOfMemoryError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            if any(words in str(error).lower() for words in OUT_OF_MEMORY):
                raise RunError(
                    f"{name} doesn't fit in memory ({first_line(error)}); use --engine weightless, or a smaller size"
                ) from error
            where = failing_line(error)
            said = f"building it fails: {first_line(error)}"
            raise RunError(f"{name}: {said}" + (f" at {where}" if where else "")) from error


def _watched(made: Built | Lean) -> InitHistory:
    built = made.built if isinstance(made, Lean) else made
    return replace(
        _history(built.module),
        watched=True,
        unwritten=built.unwritten,
        untouched=built.untouched,
        drawn=built.distributions,
    )


def _history(module: nn.Module) -> InitHistory:
    declared, found = tie_of(module)
    return InitHistory(rescaled=second_init(module), tie_declared=declared, tie_found=found)


def _made(build: Callable[[], Any], name: str) -> Callable[[], nn.Module]:
    """Hold what a function returns against what it is to return."""

    def made() -> nn.Module:
        module = build()
        if not isinstance(module, nn.Module):
            raise UsageError(f"{name} returned {printable(repr(module)[:60])}; expected an nn.Module")
        return module

    return made


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch, numpy (where it is loaded) and random, and put their states and torch's defaults back at the end."""
    numpy: Any = sys.modules.get("numpy")
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    state, own = torch.get_rng_state(), random.getstate()
    theirs = numpy.random.get_state() if numpy else None
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        torch.manual_seed(seed)
        random.seed(seed)
        if numpy:
            numpy.random.seed(seed % 2**32)
        yield
    finally:
        torch.set_default_dtype(dtype)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        torch.set_rng_state(state)
        random.setstate(own)
        if numpy:
            numpy.random.set_state(theirs)
        if devices:
            torch.cuda.set_rng_state_all(devices)
