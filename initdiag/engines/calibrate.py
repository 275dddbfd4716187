"""Data-dependent init: drawn weights that are rescaled on a batch. LSUV (arXiv 1511.06422, algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from initdiag.engines.dense import Weights
from initdiag.errors import RunError
from initdiag.schemes import Distribution, Orthogonal, Packed, PlannedParameter
from initdiag.schemes.distributions import is_orthogonal
from initdiag.subjects import Subject
from initdiag.tokens import TokenBatch

TOLERANCE = 0.1  # |std − 1| that is left alone
POSITIONS = 64  # whose logits scale an untied head: the std of 64·V numbers is known to far less than the tolerance


PRODUCTS: frozenset[object] = frozenset(
    function
    for function in (
        *(F.linear, torch.addmm, torch.matmul, torch.mm, torch.bmm, torch.baddbmm, torch.einsum),
        *(Tensor.matmul, Tensor.mm, Tensor.bmm, Tensor.addmm, Tensor.__matmul__, Tensor.__rmatmul__),
        *(getattr(torch, "_grouped_mm", None), getattr(F, "grouped_mm", None)),
    )
    if function is not None
)


@dataclass
class _Lsuv(TorchFunctionMode):
    """Divides every matrix by the std of its first outputs, in the order in which they are computed.

    The outputs are linear in the matrix, so that the paper's repeated correction is a single one, and the whole
    algorithm one forward. Experts that are used one by one have a factor each, those of one operation one for all.
    """

    names: Mapping[int, str]  # storage -> parameter
    factors: dict[str, list[float]] = field(default_factory=dict)
    met: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if func in PRODUCTS and isinstance(outputs, Tensor):
            for weight in (one for one in args if isinstance(one, Tensor)):
                if self._divided(weight, outputs):
                    return func(*args, **(kwargs or {}))
        return outputs

    def _divided(self, weight: Tensor, outputs: Tensor) -> bool:
        """Say whether a matrix of ours was divided, and note that it was met."""
        storage = weight.untyped_storage().data_ptr()
        place, name = (storage, int(weight.storage_offset())), self.names.get(storage)
        if name is None or place in self.met or not outputs.numel():
            return False
        self.met.add(place)
        std = float(outputs.float().std(correction=0))
        factor = std if abs(std - 1) > TOLERANCE and 0 < std < math.inf else 1.0
        self.factors.setdefault(name, []).append(factor)
        if factor != 1:
            weight.div_(factor)
        return factor != 1


def calibrated(subject: Subject, weights: Weights, batch: TokenBatch) -> tuple[Subject, Weights]:
    """Rescale drawn weights as the plan's calibration says; the plan then says what they are drawn from by now.

    Raises:
        RunError: a matrix was not met in the forward, or by an operation that isn't known here.
    """
    names = {
        parameter.untyped_storage().data_ptr(): name
        for name, parameter in weights.module.named_parameters()
        if is_orthogonal(subject.plan[name].distribution)
    }
    mode = _Lsuv(names)
    ids = torch.tensor(batch.inputs, device=next(weights.module.parameters()).device)
    with torch.no_grad(), mode:
        _forward(subject, weights.module, ids)
    if unmet := [name for name in names.values() if name not in mode.factors]:
        raise RunError(
            f"{subject.name}: scheme '{subject.plan.scheme}' divides a matrix by the std of what it computes; found no "
            f"product with '{unmet[0]}' in the forward, expected nn.Linear, Conv1D, matmul or the like. Use another "
            "--scheme"
        )
    entries = tuple(_rescaled(entry, mode.factors.get(entry.parameter.name, [])) for entry in subject.plan.entries)
    plan = replace(subject.plan, entries=entries)
    return replace(subject, plan=plan), replace(weights, plan=plan)


def _forward(subject: Subject, module: nn.Module, ids: Tensor) -> None:
    if subject.states and subject.logits:
        states = subject.states(module, ids)
        subject.logits(module, states.flatten(0, 1)[:POSITIONS], slice(None))
    elif subject.forward is not None:
        subject.forward(module, ids)
    else:
        module(ids)


def _rescaled(entry: PlannedParameter, factors: list[float]) -> PlannedParameter:
    """Return a plan's entry after its matrices were divided by factors; of several, by the root of the mean square."""
    if not factors:
        return entry
    times = math.sqrt(math.fsum(factor**-2 for factor in factors) / len(factors))
    return replace(entry, distribution=_times(entry.distribution, times), unscaled_std=entry.unscaled_std * times)


def _times(law: Distribution, times: float) -> Distribution:
    if isinstance(law, Packed):
        pieces = tuple(replace(piece, distribution=_times(piece.distribution, times)) for piece in law.pieces)
        return replace(law, pieces=pieces)
    return replace(law, gain=law.gain * times) if isinstance(law, Orthogonal) else law
