"""The weightless engine: large matrices answer products without having entries (docs/weightless.md)."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from initdiag.engines import dense
from initdiag.engines.dense import Seen, Weights
from initdiag.engines.draw import draw, fill
from initdiag.engines.notes import WeightlessNotes
from initdiag.engines.room import require
from initdiag.engines.settings import Settings
from initdiag.engines.sizes import is_large
from initdiag.errors import RunError
from initdiag.schemes import AsFound, Normal
from initdiag.schemes.distributions import Packed, is_orthogonal
from initdiag.subjects import Subject
from initdiag.tokens import TokenBatch
from initdiag.weightless import Law, uniform_law
from initdiag.weightless.blocks import Tell, in_blocks, silent
from initdiag.weightless.budget import Budget, budget
from initdiag.weightless.first_dispatch import spare_import
from initdiag.weightless.law import law_of
from initdiag.weightless.lazy import is_lazy, lazy_parameter
from initdiag.weightless.met import OverwrittenError
from initdiag.weightless.normals import Normals
from initdiag.weightless.source import AskedAgainError, Source
from initdiag.weightless.span import Bases

GUESS = Normal(0.02)
QR = 3  # float32 matrices that a QR decomposition takes besides what it is given: a copy by columns, Q, R at most


@dataclass(frozen=True)
class Made:
    """A module whose large parameters have no entries, and what stands behind them."""

    weights: Weights
    sources: Mapping[str, Source]
    budget: Budget
    drawn: Mapping[str, int] = field(default_factory=dict)  # entries of large ones that had to be drawn

    @property
    def notes(self) -> WeightlessNotes:
        """What is to be said of them, after a run."""
        return WeightlessNotes(
            parameters=len(self.sources) + len(self.drawn),
            entries=sum(math.prod(source.shape) for source in self.sources.values()) + sum(self.drawn.values()),
            asymptotic=tuple(name for name, source in self.sources.items() if not source.law.exact),
            made_real=tuple(self.budget.made.items()),
        )


def realize(
    subject: Subject, seed: int, settings: Settings, tokens: int, careful: bool = False, guessed: bool = False
) -> Made:
    """Give a subject weights that have no entries where they are large; the others are drawn as the dense engine does.

    Args:
        tokens: B·T of the forward that will be run. careful: keep all that is answered, and copies of the questions.
        guessed: draw what isn't known from N(0, 0.02²): to see what parameters are for, no law is needed.

    Raises:
        RunError: what a parameter is drawn from isn't known; it is orthogonal, and there is no room for its entries.
    """
    if settings.own_process:
        spare_import()
    dtype = getattr(torch, settings.dtype)
    if subject.module is not None:
        module = subject.module
    else:
        assert subject.build is not None
        with torch.device("meta"):
            module = subject.build()
    wide = torch.promote_types(dtype, torch.float32)
    normals = Normals(seed, settings.threads or os.cpu_count() or 1, wide)
    room, bases = budget(), Bases(copied=careful)
    plan = subject.plan if subject.drawn_by_us else None
    sources: dict[str, Source] = {}
    small: dict[str, nn.Parameter] = {}
    made: dict[int, nn.Parameter] = {}
    unmade: list[tuple[str, nn.Parameter, Law]] = []
    drawn: dict[str, int] = {}
    for name, parameter in module.named_parameters():
        shape = tuple(parameter.shape)
        without = parameter.is_meta or is_lazy(parameter)  # lazy: of a run before this one
        law = _law(subject, name, parameter, without, guessed)
        large = is_large(shape, tokens)
        why = _needs_entries(law)
        if large and without and why:
            drawn[name] = math.prod(shape)
            _need_room(subject, name, shape, dtype, room, why, _scratch(law, shape, dtype))
        if law is not None and large and not why:
            matrix = _without_ones(shape)
            sources[name] = Source(name, matrix, law, normals, room.allow, bases)
            made[id(parameter)] = lazy_parameter(sources[name], shape, dtype, parameter.requires_grad)
        elif without:
            assert law is not None
            memory = torch.empty(shape, dtype=dtype)
            small[name] = made[id(parameter)] = nn.Parameter(memory, requires_grad=parameter.requires_grad)
            if plan is None or isinstance(plan[name].distribution, AsFound):
                unmade.append((name, small[name], law))
        else:
            small[name] = parameter
    _replace(module, made)
    if plan is not None:
        entries = tuple(entry for entry in plan.entries if entry.parameter.name in small)
        draw(small, replace(plan, entries=entries), seed, settings.threads)
    _draw(unmade, seed, settings.threads)
    return Made(Weights(module, subject.plan, seed), sources, room, drawn)


def run(
    subject: Subject,
    batch: TokenBatch,
    seed: int,
    settings: Settings,
    observe: Callable[[Subject, nn.Module, TokenBatch], Seen],
    guessed: bool = False,
    tell: Tell = silent,
) -> tuple[Seen, Made]:
    """Run a subject once under an observer; again, with all answers kept, where its code asks twice.

    tell(i, n) is called when block i of n begins.

    Raises:
        As `realize`; RunError where memory runs out, or a scheme has to rescale real weights.
    """
    require(subject, "weightless", settings)
    tokens = batch.batch * batch.length
    for careful in (False, True):
        made = realize(subject, seed, settings, tokens, careful, guessed)
        module = made.weights.module
        entrances = ["forward", *(["states"] if subject.architecture else [])]
        try:
            kept = careful

            def watched(of: Subject, module: nn.Module, batch: TokenBatch) -> Seen:
                with nullcontext() if kept else in_blocks(module, entrances, tell):  # noqa: B023
                    return observe(of, module, batch)

            return dense.forward(subject, made.weights, batch, watched), made
        except (AskedAgainError, OverwrittenError):
            subject = replace(subject, module=module) if subject.module is not None else subject
    raise AssertionError("unreachable: a careful run forgets nothing")


def _law(subject: Subject, name: str, parameter: nn.Parameter, without: bool, guessed: bool) -> Law | None:
    """Return what a parameter is drawn from; None for one that is real and keeps what it holds.

    Raises:
        RunError: it has no entries, and nobody knows what they (or some of them) are drawn from, or they are complex.
    """
    if without and parameter.is_complex():
        raise RunError(f"{subject.name}: '{name}' holds complex numbers, which need --engine dense")
    shape = _without_ones(tuple(parameter.shape))
    rows = math.prod(shape[:-1])
    planned = subject.plan[name].distribution if subject.drawn_by_us else AsFound(math.nan)
    if not isinstance(planned, AsFound):
        if math.isnan(planned.std):
            raise RunError(f"{subject.name}: nobody knows what some rows of '{name}' are for; expected --engine dense")
        return law_of(planned, shape)
    law = subject.laws.get(name)
    if law is None and without and not guessed:
        raise RunError(_unknown(subject, name))
    return uniform_law(GUESS, rows) if law is None and without else law


def _needs_entries(law: Law | None) -> str:
    """Say why products can't stand for a parameter's entries; '' where they can."""
    drawn = [piece.distribution for piece in law.pieces] if law is not None else []
    if any(isinstance(one, Packed) for one in drawn):
        return "its columns are drawn differently"
    return "its entries are not independent (orthogonal)" if _orthogonal(law) else ""


def _orthogonal(law: Law | None) -> bool:
    return law is not None and any(is_orthogonal(piece.distribution) for piece in law.pieces)


def _scratch(law: Law | None, shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return the bytes that drawing a parameter takes besides its own: copies of a part of it, and QR decompositions.

    Those are float32, of one matrix of several experts.
    """
    count, axes = math.prod(shape), _without_ones(shape)
    packed = law is not None and any(isinstance(piece.distribution, Packed) for piece in law.pieces)
    parts = count * dtype.itemsize if packed else 0
    if not _orthogonal(law):
        return parts
    matrix = math.prod(axes[1:] if len(axes) == 3 else axes)
    return parts + 4 * (QR * matrix + (count if dtype != torch.float32 else 0))


def _need_room(
    subject: Subject, name: str, shape: tuple[int, ...], dtype: torch.dtype, room: Budget, why: str, scratch: int
) -> None:
    """Note that a parameter is made real, and why.

    Raises:
        RunError: it doesn't fit, or what drawing it takes besides doesn't.
    """
    size = math.prod(shape) * dtype.itemsize
    needed = size + scratch
    if needed > room.left:
        raise RunError(
            f"{subject.name}: '{name}' has to be drawn, since {why}, which takes {needed / 2**30:.2g} GiB; "
            f"there is room for {room.left / 2**30:.2g} GiB. Use another --scheme, or fewer layers"
        )
    room.allow(name, size, why, True)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without its trailing axes of size 1: those of a convolution of width 1."""
    return _without_ones(shape[:-1]) if len(shape) > 2 and shape[-1] == 1 else shape


def _replace(module: nn.Module, made: Mapping[int, nn.Parameter]) -> None:
    """Put new parameters in the place of old ones, tied ones everywhere."""
    for owner in module.modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None and id(parameter) in made:
                owner._parameters[name] = made[id(parameter)]
                _carry_over(parameter, made[id(parameter)])


def _carry_over(old: nn.Parameter, new: nn.Parameter) -> None:
    """Give a parameter the attributes and the gradient hooks of the one whose place it takes."""
    for name, value in vars(old).items():
        vars(new).setdefault(name, value)
    if not new._backward_hooks:
        for hook in (old._backward_hooks or {}).values():
            new.register_hook(hook)


def _draw(parameters: Sequence[tuple[str, nn.Parameter, Law]], seed: int, threads: int | None) -> None:
    """Draw what was built without memory and turned out small, from its recorded law."""
    todo, means = [], []
    with torch.no_grad():
        for name, parameter, law in parameters:
            rows = parameter.view(-1, parameter.shape[-1]) if parameter.dim() else parameter.view(1, 1)
            for at, piece in enumerate(law.pieces):
                part = rows[piece.start : piece.stop]
                todo.append((part, piece.distribution, f"{name}/{at}" if at else name))
                means.append((part, piece.mean))
        fill(todo, seed, threads)
        for part, mean in means:
            if mean:
                part.add_(mean)


def _unknown(subject: Subject, name: str) -> str:
    why = subject.unrecorded.get(name, "nothing wrote it")
    if why.startswith("the same draw"):
        return (
            f"{subject.name}: '{name}' is a copy ({why}: INIT003), which matrices that are drawn for themselves can't "
            f"stand for; draw each for itself, or use a --scheme, or --engine dense"
        )
    return (
        f"{subject.name}: what '{name}' is drawn from could not be recorded ({why}); expected a draw of its own by "
        f"torch.nn.init or the tensor's methods, normal, uniform or truncated; else a --scheme, or --engine dense"
    )
