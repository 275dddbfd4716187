"""Loss and logits of every position, from tiles of the logit matrix: the whole of it never exists.

The (B·T, V) logits are computed a tile at a time, over a range of the vocabulary, and folded into a handful of
running numbers per position; the log-sum-exp is the running one with a moving maximum (arXiv 1805.02867, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from initdiag.measure.statistics import widened
from initdiag.measure.values import LogitMeasure, LossMeasure, PositionLogits

TILE = 2**20  # logits held at a time
ROWS = 2**10  # positions at a time, at most


class _Running:
    """Sums over the vocabulary for some positions (n,), in float64: what all the numbers below are made of."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets
        device = torch.device("cpu") if inputs.device.type == "mps" else inputs.device  # mps has no float64
        zeros = torch.zeros(inputs.shape, dtype=torch.float64, device=device)
        self.sum, self.squares, self.exps, self.weighted = (zeros.clone() for _ in range(4))
        self.own, self.wanted, self.largest = (zeros.clone() for _ in range(3))
        self.peak = torch.full_like(zeros, -math.inf)

    def add(self, tile: Tensor, first: int) -> None:
        """Fold in the logits (n, k) of the vocabulary entries first … first + k − 1."""
        low, high = tile.aminmax(dim=-1)
        peak = torch.maximum(self.peak, self._wide(high))
        exps = (tile - peak.to(tile).unsqueeze(-1)).exp_()
        shrink = (self.peak - peak).exp()  # exp(−inf) = 0 at the first tile
        self.exps = self.exps * shrink + self._wide(exps.sum(-1))
        self.weighted = self.weighted * shrink + self._wide(exps.mul_(tile).sum(-1))
        self.peak = peak
        self.sum += self._wide(tile.sum(-1))
        self.squares += self._wide(torch.linalg.vector_norm(tile, dim=-1)).square()
        self.largest = torch.maximum(self.largest, self._wide(torch.maximum(high, -low)))
        self.own += self._wide(_at(tile, self.inputs - first))
        self.wanted += self._wide(_at(tile, self.targets - first))

    def _wide(self, sums: Tensor) -> Tensor:
        return sums.to(self.sum.device).double()


def _at(tile: Tensor, column: Tensor) -> Tensor:
    """Pick one column per row, or 0 where the column lies in another tile."""
    inside = (column >= 0) & (column < tile.shape[1])
    picked = tile.gather(1, column.clamp(0, tile.shape[1] - 1).unsqueeze(1)).squeeze(1)
    return torch.where(inside, picked, torch.zeros_like(picked))


def measure_logits(
    states: Tensor,
    logits: Callable[[Tensor, slice], Tensor],
    inputs: Tensor,
    targets: Tensor,
    vocab_size: int,
) -> tuple[LossMeasure, LogitMeasure, tuple[PositionLogits, ...]]:
    """Measure the logits of all positions.

    Args:
        states: what the head reads, (B, T, d_model).
        logits: (n, d_model) and a range of the vocabulary to logits (n, k).
        inputs, targets: token ids, (B, T).
    """
    runs = list(_runs(states.flatten(0, 1), logits, inputs.flatten(), targets.flatten(), vocab_size))

    def all_positions(name: str) -> Tensor:
        return torch.cat([getattr(run, name) for run in runs])

    total, squares, own = all_positions("sum"), all_positions("squares"), all_positions("own")
    log_sum_exp = all_positions("peak") + all_positions("exps").log()
    mean = total / vocab_size
    std = (squares / vocab_size - mean.square()).clamp(min=0).sqrt()
    others = (total - own) / (vocab_size - 1)
    others_std = ((squares - own.square()) / (vocab_size - 1) - others.square()).clamp(min=0).sqrt()
    entropy = log_sum_exp - all_positions("weighted") / all_positions("exps")
    same = (inputs == targets).flatten().tolist()
    loss = LossMeasure(
        value=float((log_sum_exp - all_positions("wanted")).mean()),
        uniform_targets=float((log_sum_exp - mean).mean()),
        vocab_size=vocab_size,
    )
    measure = LogitMeasure(
        std=float(std.mean()),
        self_logit=float((own - others).mean()),
        max_abs=float(all_positions("largest").max()),
        entropy_ratio=float(entropy.mean()) / math.log(vocab_size),
    )
    positions = zip(others_std.tolist(), (own - others).tolist(), same, strict=True)
    return loss, measure, tuple(PositionLogits(*position) for position in positions)


def _runs(
    states: Tensor,
    logits: Callable[[Tensor, slice], Tensor],
    inputs: Tensor,
    targets: Tensor,
    vocab_size: int,
) -> Iterator[_Running]:
    for start in range(0, len(states), ROWS):
        rows = slice(start, start + ROWS)
        running = _Running(inputs[rows], targets[rows])
        width = max(1, TILE // len(states[rows]))
        for first in range(0, vocab_size, width):
            tile = logits(states[rows], slice(first, min(first + width, vocab_size)))
            running.add(widened(tile), first)
        yield running
