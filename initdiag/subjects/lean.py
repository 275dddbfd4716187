"""Builds a module without its large parameters' entries, and says what these would have been drawn from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from torch import Tensor, nn

from initdiag.subjects.global_state import random_states, switches
from initdiag.subjects.laws import UNWRITTEN, draws_of, law_of, unwritten
from initdiag.subjects.lean_build import LeanRecorder, NoEntriesError
from initdiag.subjects.operands import storage_key
from initdiag.subjects.recorder import Built, deterministic_fill, seen
from initdiag.weightless.law import LARGE, Law

ROOM = 2**26  # entries of large tensors that may be real, all together, where something else is computed from them
LAWLESS = 2**26  # entries of parameters that may be real because what they are drawn from has no name
_TRIES = 64  # what is real on one try may ask for more on the next: a table, then what is computed from it


@dataclass(frozen=True)
class Lean:
    """A module whose large parameters have no entries.

    module: its parameters of `large` entries or more are on the meta device; all others and every buffer are real, with
    the values that the init code gave them. A large parameter is real where its entries were needed for something else,
    or have no law but are there: it is in neither of the two lists. laws: what the large ones are drawn from, by name,
    a tied one once. unrecorded: the names of the large ones for which that can't be said, and why. built: as
    build_watched returns it. there: the names of the large ones that existed before the build.
    """

    module: nn.Module
    laws: Mapping[str, Law]
    unrecorded: tuple[tuple[str, str], ...]
    built: Built
    there: tuple[str, ...] = ()


def build_lean(build: Callable[[], nn.Module], large: int = LARGE) -> Lean:
    """Build a module on the CPU, without memory for parameters of `large` entries or more.

    build is called again where a buffer, a small parameter or a Python value depends on entries of a large tensor: that
    tensor is then real, as long as such tensors have no more than ROOM entries in all. What build() raises is raised.
    Random states and torch's switches are put back.

    Raises:
        RunError: init code reads more entries than that.
    """
    real: frozenset[int] = frozenset()
    lawless: frozenset[int] = frozenset()
    for tries in range(_TRIES):
        recorder = LeanRecorder(large, real)
        try:
            with _put_back(), deterministic_fill(), recorder:
                module = build()
        except NoEntriesError as error:
            needed = real | error.sources
            if needed == real or _entries(recorder, needed) > ROOM or tries == _TRIES - 1:
                raise
        else:
            tables = real | _sources(recorder, _tables(module, recorder))
            needed = tables | _sources(recorder, _small(module, large))
            if needed != tables and _entries(recorder, needed - tables) > ROOM:
                break
            lawless = _with_lawless(module, recorder, needed, lawless)
            needed = needed | lawless
            if needed == real:
                break
        real = needed
    _lighten(module, recorder)
    _tie(module)
    return _described(module, recorder)


def _described(module: nn.Module, recorder: LeanRecorder) -> Lean:
    laws: dict[str, Law] = {}
    unrecorded: list[tuple[str, str]] = []
    missing: list[str] = []
    owners: dict[int | None, str] = {}
    copied: dict[int, str] = {}
    for name, tensor in chain(module.named_parameters(), module.named_buffers()):
        if not tensor.is_meta:
            continue
        if tensor.numel() < recorder.large or not isinstance(tensor, nn.Parameter):
            unrecorded.append((name, "computed from entries of large parameters"))
            continue
        found = _law(tensor, recorder)
        owner = owners.setdefault(storage_key(tensor), name)
        if owner != name:
            unrecorded.append((name, f"another view of the memory of {owner}"))
        elif (first := _same_draw(tensor, name, recorder, copied)) is not None:
            unrecorded.append((name, f"the same draw as {first}"))
        elif isinstance(found, Law):
            laws[name] = found
        else:
            unrecorded.append((name, found))
            missing += [name] if found == UNWRITTEN else []
    built = seen(module, recorder)
    there = tuple(
        name
        for name, tensor in module.named_parameters()
        if tensor.numel() >= recorder.large and not tensor.is_meta and recorder.content(tensor) is None
    )
    return Lean(module, laws, tuple(unrecorded), replace(built, unwritten=(*built.unwritten, *missing)), there)


def _law(tensor: Tensor, recorder: LeanRecorder) -> Law | str:
    content = recorder.content(tensor)
    if content is None:
        return "made before it was built"
    if unwritten(content):
        return UNWRITTEN
    offset = int(tensor.storage_offset()) if tensor.is_contiguous() else None
    return law_of(content, tuple(tensor.shape), offset)


def _same_draw(tensor: Tensor, name: str, recorder: LeanRecorder, copied: dict[int, str]) -> str | None:
    """Return the parameter that holds the same entries, up to a factor: layers made by copy.deepcopy, say."""
    content = recorder.content(tensor)
    found = [copied.setdefault(draw, name) for draw in (draws_of(content) if content else ())]
    return next((first for first in found if first != name), None)


def _tables(module: nn.Module, recorder: LeanRecorder) -> Iterator[Tensor]:
    """Yield the buffers without memory, and the frozen parameters without a law: these are tables, not draws."""
    yield from (buffer for buffer in module.buffers() if buffer.is_meta)
    for parameter in module.parameters():
        if parameter.is_meta and not parameter.requires_grad and not isinstance(_law(parameter, recorder), Law):
            yield parameter


def _with_lawless(
    module: nn.Module, recorder: LeanRecorder, needed: frozenset[int], lawless: frozenset[int]
) -> frozenset[int]:
    """Add large parameters without a law (orthogonal ones, say) to `lawless`, the smallest first, up to LAWLESS."""
    room = LAWLESS - _entries(recorder, lawless)
    found = [one for one in module.parameters() if one.is_meta and not isinstance(_law(one, recorder), Law)]
    for parameter in sorted(found, key=Tensor.numel):
        more = recorder.sources(parameter) - needed - lawless
        if more and (size := _entries(recorder, more)) <= room:
            lawless, room = lawless | more, room - size
    return lawless


def _small(module: nn.Module, large: int) -> Iterator[Tensor]:
    yield from (tensor for tensor in module.parameters() if tensor.is_meta and tensor.numel() < large)


def _sources(recorder: LeanRecorder, found: Iterable[Tensor]) -> frozenset[int]:
    return frozenset().union(*map(recorder.sources, found))


def _entries(recorder: LeanRecorder, allocations: frozenset[int]) -> int:
    return sum(recorder.entries[number] for number in allocations if number < len(recorder.entries))


def _lighten(module: nn.Module, recorder: LeanRecorder) -> None:
    """Take the memory of large parameters that are real although they have a law, in all their owners.

    Those of which something else was computed keep it, and so do those that were made before the build.
    """
    light: dict[nn.Parameter, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is None or parameter.is_meta or parameter.numel() < recorder.large:
                continue
            if not recorder.sources(parameter) & recorder.real and isinstance(_law(parameter, recorder), Law):
                if parameter not in light:
                    light[parameter] = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
                    vars(light[parameter]).update(vars(parameter))
                    recorder.replaced(parameter, light[parameter])
                part._parameters[name] = light[parameter]


def _tie(module: nn.Module) -> None:
    """Make one parameter of those without memory that are one view of one storage, tied by `.data`."""
    first: dict[tuple[Any, ...], nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta:
                view = (parameter.shape, parameter.stride(), parameter.storage_offset(), parameter.requires_grad)
                part._parameters[name] = first.setdefault((storage_key(parameter), *view), parameter)


@contextmanager
def _put_back() -> Iterator[None]:
    restore = [*random_states(), *switches()]
    try:
        yield
    finally:
        for back in restore:
            back()
