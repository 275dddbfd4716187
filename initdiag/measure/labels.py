"""What the loss that a model returns is made of: cross-entropies of its own logits, at which shift, reduced how."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from initdiag.measure.lens_values import LabelMeasure
from initdiag.measure.statistics import widened

SHIFTS = (0, 1, 2)
TILE = 2**20  # logits held in float32 at a time
ROUNDING = 1e-5  # relative: float32 sums over a vocabulary and its positions err by 1e-6 at most; shifts differ by 1e-3
HALF_ROUNDINGS = 4  # spacings of half precision: the terms, their sum (CPUs add them up in float16) and the mean


@torch.no_grad()
def explain_loss(
    logits: Tensor, ids: Tensor, targets: Tensor, returned: Tensor, argument: str, shifted: bool
) -> LabelMeasure:
    """Find the shift and the reduction that turn the model's own logits into the loss that it returned.

    Among explanations within rounding, the mean at shift 1 comes first (a zero head gives ln V at every shift), then
    the closest. Where the loss may have been computed in a lower precision than float32, a second look allows for the
    roundings of that dtype.

    Args:
        logits: (B, T, V). ids: what the model read, (B, T). targets: the ids that follow, (B, T).
        returned: the loss, one number.
        argument: the name of the argument that the labels were passed as.
        shifted: whether the targets were passed, and not the ids again.
    """
    tokens = torch.cat((ids, targets[:, -1:]), dim=1) if shifted else ids
    losses = _cross_entropies(logits, tokens)
    value, reference = float(returned), _mean(losses[1])
    candidates = list(_candidates(losses, shifted))
    precisions = {returned.dtype, logits.dtype} - {torch.float32, torch.float64}
    loose = HALF_ROUNDINGS * max(
        (torch.finfo(dtype).eps for dtype in precisions if dtype.is_floating_point), default=0.0
    )
    for tolerance in (ROUNDING, loose):
        near = [
            (abs(value - predicted), shift, reduction)
            for predicted, shift, reduction in candidates
            if abs(value - predicted) <= tolerance * max(1.0, abs(predicted))  # log-sum-exps round by themselves
        ]
        if near:
            usual = any((shift, reduction) == (1, "mean") for _, shift, reduction in near)
            _, shift, reduction = (0.0, 1, "mean") if usual else min(near)
            return LabelMeasure(argument, shifted, value, shift, reduction, reference)
    return LabelMeasure(argument, shifted, value, None, "other", reference)


def _mean(losses: Tensor) -> float:
    return float(losses.mean()) if losses.numel() else math.nan


def _candidates(losses: tuple[Tensor, ...], shifted: bool) -> Iterator[tuple[float, int, str]]:
    """Yield (loss, shift, reduction) of all that is tried. Targets passed ready may lose their last position."""
    batch, length = losses[0].shape
    for shift in SHIFTS:
        whole = losses[shift]
        for used in (whole, whole[:, :-1]) if shifted and shift else (whole,):
            if not used.numel():
                continue
            total, count = float(used.sum()), used.numel()
            yield total / count, shift, "mean"
            yield total, shift, "sum"
            yield total / batch, shift, "sum over positions"
            yield total * batch / count, shift, "sum over sequences"
            yield total / (batch * length), shift, "mean over all positions"


def _cross_entropies(logits: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
    """Return −log p(tokens[t + s]) at every position t that has one, (B, ≤ T) in float64, for each shift s."""
    batch, length, vocab_size = logits.shape
    device = torch.device("cpu") if logits.device.type == "mps" else logits.device  # mps has no float64
    losses = tuple(
        torch.empty(batch, max(0, min(length, tokens.shape[1] - shift)), dtype=torch.float64, device=device)
        for shift in SHIFTS
    )
    step = max(1, TILE // vocab_size)
    for row in range(batch):
        for start in range(0, length, step):
            block = widened(logits[row, start : start + step])  # (n, V)
            normalizer = block.logsumexp(-1)
            for shift, out in zip(SHIFTS, losses, strict=True):
                wanted = tokens[row, start + shift : start + shift + len(block)]
                picked = block[: len(wanted)].gather(1, wanted.unsqueeze(1)).squeeze(1)
                out[row, start : start + len(wanted)] = (normalizer[: len(wanted)] - picked).to(device)
    return losses
