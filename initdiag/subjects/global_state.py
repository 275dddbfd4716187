"""The random states and switches that are global in a process, and functions that put them back."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch


def random_states() -> list[Callable[[], None]]:
    """Functions that put the global random states back."""
    python, cpu = random.getstate(), torch.get_rng_state()
    back: list[Callable[[], None]] = [lambda: random.setstate(python), lambda: torch.set_rng_state(cpu)]
    if torch.cuda.is_initialized():
        cuda = torch.cuda.get_rng_state_all()
        back.append(lambda: torch.cuda.set_rng_state_all(cuda))
    if torch.backends.mps.is_available():
        mps = torch.mps.get_rng_state()
        back.append(lambda: torch.mps.set_rng_state(mps))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        state = numpy.get_state()
        back.append(lambda: numpy.set_state(state))
    return back


def switches() -> list[Callable[[], None]]:
    """Functions that put torch's global switches back."""
    kept: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled),
    ]
    for device in ("cpu", *(("cuda",) if torch.cuda.is_available() else ())):
        kept += [
            (_bound(torch.is_autocast_enabled, device), _bound(torch.set_autocast_enabled, device)),
            (_bound(torch.get_autocast_dtype, device), _bound(torch.set_autocast_dtype, device)),
        ]
    cudnn: Any = torch.backends.cudnn
    kept += [(_reader(cudnn, name), _writer(cudnn, name)) for name in ("deterministic", "benchmark", "enabled")]
    fill: Any = torch.utils.deterministic
    kept.append((_reader(fill, "fill_uninitialized_memory"), _writer(fill, "fill_uninitialized_memory")))
    back = [_back(read, write) for read, write in kept]
    chosen, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()

    def algorithms() -> None:
        now = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        if now != (chosen, warns):
            set_algorithms(chosen, warns)

    return [*back, algorithms]


def set_algorithms(mode: bool, warn_only: bool) -> None:
    """As torch.use_deterministic_algorithms, which imports the compiler to tell it (seconds), if it isn't there yet."""
    if "torch._inductor.config" in sys.modules:
        torch.use_deterministic_algorithms(mode, warn_only=warn_only)
    else:
        torch._C._set_deterministic_algorithms(mode, warn_only=warn_only)


def _back(read: Callable[[], Any], write: Callable[[Any], Any]) -> Callable[[], None]:
    before = read()

    def restore() -> None:
        if read() != before:
            write(before)

    return restore


def _bound(function: Callable[..., Any], device: str) -> Callable[..., Any]:
    return lambda *value: function(device, *value)


def _reader(owner: Any, name: str) -> Callable[[], Any]:
    return lambda: getattr(owner, name)


def _writer(owner: Any, name: str) -> Callable[[Any], Any]:
    return lambda value: setattr(owner, name, value)
