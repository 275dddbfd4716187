"""Dead parameters: without a gradient at step zero, and still without one after a few SGD steps on a copy.

A zero head or zero branch outputs leave most parameters without a gradient at step zero and wake up within as many
steps as zeros stand one behind the other; a product of two zeros never does.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from initdiag.measure.statistics import widened

STEP = 1e-2  # of a weight's own size: far above rounding, far below what would saturate something

TYPICAL = 0.02  # the size of a weight where the tensor itself is smaller, or zero


@dataclass(frozen=True)
class Revival:
    """What became of the parameters without gradient.

    dead: still exactly zero after `steps` steps, or out of the loss's reach altogether. steps: steps that were made;
    fewer than asked for where nothing was left to revive. skipped: why nothing could be found out (steps is 0), else
    "".
    """

    dead: tuple[str, ...] = ()
    steps: int = 0
    skipped: str = ""


def dead_parameters(
    module: nn.Module,
    step: Callable[[nn.Module], Tensor],
    zero: tuple[str, ...],
    steps: int = 3,
    memory: int | None = None,
) -> Revival:
    """Train a copy of the module for a few steps and look which of the `zero` parameters get a gradient.

    The module and torch's random state are left alone.

    Args:
        step: runs a forward of the module that it is given and returns the loss, a scalar with a graph.
        zero: names of trainable parameters without gradient at step zero; where there are none, nothing is run.
        memory: bytes that are free; None where that isn't known.

    Raises whatever `step` raises.
    """
    if not zero:
        return Revival()
    needed = sum(tensor.numel() * tensor.element_size() for tensor in [*module.parameters(), *module.buffers()])
    needed += sum(one.numel() * one.element_size() for one in module.parameters() if one.requires_grad)
    if memory is not None and needed > memory:
        return Revival(skipped=f"a copy with gradients takes {needed / 2**30:.3g} GiB, {memory / 2**30:.3g} are free")
    try:
        twin = copy.deepcopy(module)
    except Exception as error:  # whatever a user's __deepcopy__, or a handle inside the module, raises
        return Revival(skipped=f"the module can't be copied ({type(error).__name__}: {_first_line(error)})")
    with _random_state_kept(module), torch.enable_grad():
        return _trained(twin, step, zero, steps)


def _trained(twin: nn.Module, step: Callable[[nn.Module], Tensor], zero: tuple[str, ...], steps: int) -> Revival:
    waiting = list(zero)
    for done in range(steps + 1):
        gradients = _gradients(twin, step(twin))
        if not all(bool(gradient.isfinite().all()) for gradient in gradients.values()):
            return Revival(skipped=f"gradients are not finite after {done} steps")
        asleep = [name for name, _ in _trainable(twin) if name not in gradients or not bool(gradients[name].any())]
        if done == 0 and not set(asleep) <= set(zero):
            return Revival(skipped="a copy of the module does not run as the module itself does")
        waiting = [name for name in waiting if name in asleep]
        if not waiting or done == steps:
            break
        _descend(twin, gradients)
    return Revival(dead=tuple(waiting), steps=done)


def _trainable(module: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]


def _gradients(twin: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """Run the backward, as training does; leave out parameters without any gradient."""
    for _, parameter in _trainable(twin):
        parameter.grad = None
    if loss.requires_grad:
        loss.backward()
    grads = {name: parameter.grad for name, parameter in _trainable(twin)}
    return {
        name: grad.coalesce().values() if grad.is_sparse else grad for name, grad in grads.items() if grad is not None
    }


@torch.no_grad()
def _descend(twin: nn.Module, gradients: dict[str, Tensor]) -> None:
    """Normalised SGD: every tensor moves by STEP of its own root mean square, however small its gradient is."""
    for name, parameter in _trainable(twin):
        if name not in gradients or (grad := parameter.grad) is None or not parameter.numel():
            continue
        direction = widened(grad.to_dense() if grad.is_sparse else grad)
        largest = direction.abs().max()
        if largest == 0:
            continue
        direction = direction / largest  # before it is squared: 1e-30 is a gradient too
        size = max(_root_mean_square(parameter), TYPICAL)
        parameter.sub_((direction * (STEP * size / _root_mean_square(direction))).to(parameter.dtype))


def _root_mean_square(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(widened(x))) / math.sqrt(x.numel())


@contextlib.contextmanager
def _random_state_kept(module: nn.Module) -> Iterator[None]:
    devices = {tensor.device for tensor in module.parameters() if tensor.device.type == "cuda"}
    with torch.random.fork_rng([device.index or 0 for device in devices]):
        yield


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0]
