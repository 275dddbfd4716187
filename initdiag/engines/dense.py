"""The dense engine: real tensors, one forward."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import nn

from initdiag.engines.draw import draw
from initdiag.engines.room import require
from initdiag.engines.settings import Settings
from initdiag.errors import PlanError, RunError, UsageError
from initdiag.memory import OUT_OF_MEMORY
from initdiag.schemes import InitPlan
from initdiag.subjects import Subject
from initdiag.subjects.guard import unchanged
from initdiag.tokens import TokenBatch

Seen = TypeVar("Seen")
AS_THEY_ARE = Settings()
COPIED = (
    2**30
)  # bytes of weights of the caller's own that are copied, so that a forward that writes into them does no harm


@dataclass(frozen=True)
class Weights:
    """A module whose parameters hold what `plan` says, drawn with `seed`."""

    module: nn.Module
    plan: InitPlan
    seed: int


def realize(subject: Subject, seed: int, settings: Settings, reuse: Weights | None = None) -> Weights:
    """Give a subject its weights.

    Args:
        reuse: the weights of an earlier run; where it is the same model, its memory is drawn over, and what is the
            same in both plans stays.

    Raises:
        PlanError: the plan and the module don't have the same parameters.
        RunError: the device isn't there, or the weights don't fit in memory.
    """
    if reuse and subject.module is None and subject.architecture != getattr(reuse.module, "shape", None):
        reuse = None  # the scheme asks for another forward pass
    with torch.inference_mode(False):
        if subject.module is not None:
            module = subject.module
        else:
            module = reuse.module if reuse else _allocate(subject, settings)
        if subject.drawn_by_us:
            drawn = reuse.plan if reuse and reuse.seed == seed else None
            draw(dict(module.named_parameters()), subject.plan, seed, settings.threads, drawn)
    return Weights(module, subject.plan, seed)


def placed(subject: Subject, settings: Settings) -> Subject:
    """Move a module that was built for us to the device and dtype of the settings.

    Raises:
        UsageError: the module is the caller's own, and isn't there. RunError: the device isn't available.
    """
    module = subject.module
    if module is None or settings in (Settings(), Settings(threads=settings.threads)):
        return subject
    if subject.laws or subject.unrecorded:  # built without its large parameters, on the CPU
        if settings.dtype == dtype_of(module):
            return subject
        return replace(subject, module=module.to(getattr(torch, settings.dtype)))
    first = next(module.parameters())
    device = first.device.type if settings.device == "auto" else device_named(settings.device)
    if not subject.owned and (device != first.device.type or settings.dtype != dtype_of(module)):
        raise UsageError(
            f"settings: {subject.name} is {dtype_of(module)} on {first.device.type}, and stays as it is; expected the "
            f"same, or module.to({device!r}, torch.{settings.dtype}) by you"
        )
    return replace(subject, module=module.to(device, getattr(torch, settings.dtype)))


@contextmanager
def own_weights(subject: Subject) -> Iterator[None]:
    """Put the weights of a module back that isn't ours but is to be drawn over."""
    if subject.module is None or subject.owned:
        yield
        return
    parameters = list(subject.module.parameters())
    kept = [parameter.detach().clone() for parameter in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, values in zip(parameters, kept, strict=True):
                parameter.copy_(values)


def dtype_of(module: nn.Module) -> str:
    """The dtype of a module's first parameter, as "float32"."""
    return str(next(module.parameters()).dtype).removeprefix("torch.")


def forward(
    subject: Subject,
    weights: Weights,
    batch: TokenBatch,
    observe: Callable[[Subject, nn.Module, TokenBatch], Seen],
) -> Seen:
    """Run one forward, in evaluation mode and without gradients, under an observer.

    Raises:
        RunError: memory runs out.
    """
    device = next(weights.module.parameters()).device.type
    try:
        copied = not (subject.owned or subject.module is None) and _size(weights.module) <= COPIED
        with unchanged(weights.module, fastpath=False, copied=copied), _plain_mode(device):
            return observe(subject, weights.module, batch)
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise RunError(_out_of_memory(subject, str(error))) from error
    except RuntimeError as error:
        if any(words in str(error) for words in OUT_OF_MEMORY):
            raise RunError(_out_of_memory(subject, str(error))) from error
        raise


def _size(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())


@contextmanager
def _plain_mode(device: str) -> Iterator[None]:
    """Whatever the caller has switched on: no gradients, no inference tensors (the tracer needs to tell tensors
    apart), no autocast (the dtype is the one that the report names)."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
        yield


def _allocate(subject: Subject, settings: Settings) -> nn.Module:
    device, dtype = torch.device(device_named(settings.device)), getattr(torch, settings.dtype)
    planned = {entry.parameter.name: entry.parameter for entry in subject.plan.entries}
    require(subject, "dense", settings, device.type)
    assert subject.build is not None
    with torch.device("meta"):
        module = subject.build()
    shapes = {name: tuple(parameter.shape) for name, parameter in module.named_parameters()}
    for name in {**shapes, **planned}:
        if name not in planned or name not in shapes or planned[name].shape != shapes[name]:
            raise PlanError(
                f"parameter '{name}': the plan says {planned[name].shape if name in planned else 'nothing'}, "
                f"the module has {shapes.get(name, 'no such parameter')}"
            )
    try:
        for owner in module.modules():  # nn.Module.to_empty does the same, but imports sympy first, 0.5 s
            for name, parameter in list(owner.named_parameters(recurse=False)):
                memory = torch.empty(parameter.shape, dtype=dtype, device=device)
                setattr(owner, name, nn.Parameter(memory, requires_grad=parameter.requires_grad))
    except (RuntimeError, MemoryError) as error:
        raise RunError(_out_of_memory(subject, str(error))) from error
    return module


def device_named(name: str) -> str:
    """Return the device to use: 'auto' is cuda, else mps, else cpu.

    Raises:
        RunError: the device isn't there.
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return next(device for device, available in there.items() if available)
    if not there[name]:
        found = ", ".join(device for device, available in there.items() if available)
        raise RunError(f"--device {name}: not available here; this PyTorch sees {found}")
    return name


def _out_of_memory(subject: Subject, detail: str) -> str:
    first_line = detail.strip().splitlines()[0] if detail.strip() else "no more memory"
    return f"{subject.name} ran out of memory ({first_line}). Use a smaller batch or length, or --dtype bfloat16"


def environment(settings: Settings, module: nn.Module) -> dict[str, str]:
    """Return what a run depends on besides its inputs."""
    return {
        "torch": torch.__version__,
        "device": next(module.parameters()).device.type,
        "threads": str(settings.threads or os.cpu_count() or 1),
    }


def run(
    subject: Subject,
    batch: TokenBatch,
    seed: int,
    settings: Settings,
    observe: Callable[[Subject, nn.Module, TokenBatch], Seen],
    reuse: Weights | None = None,
) -> tuple[Seen, Weights]:
    """Draw the weights of a subject and run it once under an observer; see `realize` and `forward`.

    Weights of a data-dependent scheme are rescaled on the batch before.
    """
    weights = realize(subject, seed, settings, reuse)
    if subject.plan.calibration:
        from initdiag.engines.calibrate import calibrated

        subject, weights = calibrated(subject, weights, batch)
    return forward(subject, weights, batch, observe), weights
