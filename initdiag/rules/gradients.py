"""Rules on the backward pass; they are silent where none was run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from initdiag.measure import Branch, GradientMeasure
from initdiag.rules.finding import Severity
from initdiag.rules.rule import Evidence, Rule, Trouble

# Healthy models, 3 to 24 layers, widths 64 to 256, six seeds (they differ little), plain, scaled, Xavier and PyTorch
# inits, gated and not: per block pre-norm and sandwich 1.00–1.5 (the most at 3 layers), post-norm 0.93–1.1, DeepNorm
# and ReZero 1.00.
WARN_PER_BLOCK = (0.7, 1.4)
FAIL_PER_BLOCK = (0.5, 2.0)

FEWEST_LAYERS = 3

FEWEST_TO_WARN = 6  # an unscaled stream grows by N^(1/(2(N−1))) per block in std: 1.3 at N = 3, 1.2 at 6; a gated MLP,
# whose two factors both pass gradient, nearly squares that

STEP = 10.0  # from one block to the next; healthy ones stay within 0.65–2.6, hot Xavier post-norm and a 0.001 embedding

# A skip hands the gradient on as it is, and what comes through the branch is added: ‖(1 + J)ᵀg‖² ≈ ‖g‖² + ‖Jᵀg‖², so
# it can't shrink on its way down. Healthy ones measure 0.99 at least; a skip that is cut leaves 0.05–0.66.
LEAST_THROUGH_SKIP = 0.7

EXACT = 1e-2  # an addition whose identity holds no better than this is not known well enough


@dataclass(frozen=True)
class _Block:
    """The gradient norm where a block ends."""

    last: Branch
    norm: float


def _imbalance(evidence: Evidence) -> Iterator[Trouble]:
    seen = [branch for branch in evidence.measured.residual.branches if branch.gradient_norm is not None]
    if not all(map(math.isfinite, map(_norm, seen))) or underflows(evidence):
        return
    for stream in sorted({branch.stream for branch in seen}):
        branches = [branch for branch in seen if branch.stream == stream]
        cut = list(_cut_skips(branches))
        yield from cut or _over_depth(branches)


def _cut_skips(branches: Sequence[Branch]) -> Iterator[Trouble]:
    """Name the worst addition whose skip loses gradient."""
    passed = [
        (_norm(before) / (abs(branch.keep) * _norm(branch)), before, branch)
        for before, branch in pairwise(branches)
        if branch.carried == "same" and branch.residue < EXACT and branch.keep and _norm(branch)
    ]
    lost = [one for one in passed if one[0] < LEAST_THROUGH_SKIP]
    if not lost:
        return
    share, before, branch = min(lost, key=lambda one: one[0])
    more = f", and at {len(lost) - 1} more additions" if len(lost) > 1 else ""
    where = f" ({branch.source})" if branch.source else ""
    yield Trouble(
        f"the skip around {branch.name}{where} loses the gradient{more}: its norm is {_norm(branch):.3g} after the "
        f"addition and {_norm(before):.3g} before it, {share:.2g} times; expected at least {LEAST_THROUGH_SKIP:g}, as "
        "a skip passes all of it",
        branch.name,
        "add the branch to the stream itself, `x = x + branch`, without detach(), no_grad() or a factor on x that "
        "only the backward sees; look into custom backward functions there",
        "model",
    )


def _over_depth(branches: Sequence[Branch]) -> Iterator[Trouble]:
    blocks = blocks_of(branches)
    steps = [(_ratio(early, late), early, late) for early, late in pairwise(blocks) if late.norm > 0]
    if len(blocks) < FEWEST_LAYERS or not steps:
        return
    worst, early, late = max(steps, key=lambda step: abs(_log(step[0])))
    if not 1 / STEP <= worst <= STEP:
        yield Trouble(
            f"the gradient changes {_times(worst)} in one block: its norm is {late.norm:.3g} after layer "
            f"{late.last.layer} and {early.norm:.3g} after layer {early.last.layer}; expected less than {STEP:g} times",
            late.last.name,
            f"compare the weights of layer {late.last.layer} and {early.last.layer} with those of the others: one is "
            "drawn with another std, or scaled twice",
            "init.std",
        )
        return
    per_block = math.exp(sum(math.log(ratio) for ratio, _, _ in steps) / len(steps))
    outside = not FAIL_PER_BLOCK[0] <= per_block <= FAIL_PER_BLOCK[1]
    # a stream that grows divides the gradient by its std (sandwich norms over an embedding of 0.02): then a warning
    failed = outside and not FAIL_PER_BLOCK[0] <= per_block / _forward_growth(blocks) <= FAIL_PER_BLOCK[1]
    low, high = FAIL_PER_BLOCK if failed else WARN_PER_BLOCK
    if outside or (len(blocks) >= FEWEST_TO_WARN and not low <= per_block <= high):
        yield Trouble(
            f"the gradient {'grows' if per_block > 1 else 'shrinks'} by {per_block:.3g} per block on its way down, "
            f"from {blocks[-1].norm:.3g} after layer {blocks[-1].last.layer} to {blocks[0].norm:.3g} after layer "
            f"{blocks[0].last.layer}; expected {low:g} to {high:g}",
            "residual stream",
            _cure(blocks, per_block),
            "init.scheme",
            Severity.ERROR if failed else Severity.WARNING,
        )


def blocks_of(branches: Sequence[Branch]) -> list[_Block]:
    """Take the last addition of every layer; shared layers come by more than once."""
    numbered = [branch for branch in branches if branch.layer is not None]
    ends = [list(group)[-1] for _, group in groupby(numbered, key=lambda branch: branch.layer)]
    return [_Block(end, _norm(end)) for end in ends]


def _forward_growth(blocks: Sequence[_Block]) -> float:
    """By how much the stream's std grows per block; nan where it can't be told."""
    first, last = blocks[0].last.stream_variance, blocks[-1].last.stream_variance
    return math.sqrt(last / first) ** (1 / (len(blocks) - 1)) if first > 0 and last > 0 else math.nan


def _cure(blocks: Sequence[_Block], per_block: float) -> str:
    forward = _forward_growth(blocks)
    if per_block > 1 and all(block.last.normed for block in blocks):
        return (
            f"the stream's std grows by {forward:.3g} per block from a small embedding, as norms behind the branches "
            "give these their size whatever their matrices are: draw the embedding with a std near 1, or multiply it "
            "by √d_model, as Gemma does"
        )
    if per_block > 1 and forward > math.sqrt(per_block):  # most of it, on a log scale
        return (
            f"the stream's std grows by {forward:.3g} per block, and the gradient falls as 1/std: divide the std of "
            f"the residual projections by √(2N) = {math.sqrt(2 * len(blocks)):.3g}"
        )
    return (
        f"the forward does not explain it (the stream's std changes by {forward:.3g} per block): look for skips that "
        "are scaled, detached or missing, and for saturated attention (ATTN001)"
    )


def _ratio(early: _Block, late: _Block) -> float:
    return early.norm / late.norm


def _log(ratio: float) -> float:
    return math.log(ratio) if ratio > 0 else -math.inf


def _times(ratio: float) -> str:
    return "from something to nothing" if ratio == 0 else f"{max(ratio, 1 / ratio):.3g} times"


def _norm(branch: Branch) -> float:
    return branch.gradient_norm or 0.0


def underflows(evidence: Evidence) -> bool:
    """In float16 small gradients round to zero unless the loss is scaled, as training then does."""
    return any(parameter.dtype == "float16" for parameter in evidence.measured.parameters)


def _not_finite(evidence: Evidence) -> Iterator[Trouble]:
    gradients = evidence.measured.gradients
    if gradients is None:
        return
    branches = [
        branch
        for branch in evidence.measured.residual.branches
        if branch.gradient_norm is not None and not math.isfinite(branch.gradient_norm)
    ]
    if not gradients.not_finite and not branches:
        return
    nearest = branches[-1].name if branches else gradients.not_finite[-1]
    forward = "" if math.isfinite(evidence.measured.loss.value) else ", as the loss is"
    yield Trouble(
        f"gradients of {len(gradients.not_finite)} of {trainable(gradients)} parameters are inf or nan{forward}: "
        f"{few(gradients.not_finite) or nearest}; expected finite ones",
        nearest,
        "the loss itself is not finite: cure that first (NUM001)"
        if forward
        else f"the forward is finite, so an operation at or after {nearest} has no finite derivative where it stands: "
        "√x or a norm at 0, 0·log 0, a division that torch.where hides; add an eps inside it, "
        "`(x.square().mean(-1) + eps).rsqrt()`; in float16, scale the loss",
        "init",
    )


def trainable(gradients: GradientMeasure) -> int:
    return len({name for name, _ in gradients.norms} | set(gradients.zero))


def few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


IMBALANCE = Rule(
    id="GRAD001",
    name="gradient-imbalance",
    severity="error; warning where the gradient changes by less than 0.5 or 2 per block, but more than 0.7 or 1.4",
    what="The gradient of the loss changes along the residual stream: by a constant factor per block outside 0.7 to "
    "1.4 (from six layers on) or 0.5 to 2; more than tenfold in a single block; or it gets smaller than 0.7 on its way "
    "down past a skip that leaves the stream as it is. Fewer than three layers have no depth to judge, float16 "
    "gradients are not judged. The first layer has no block before it: the embedding may be of any size.",
    why="A factor per block is exponential in depth: 2 per block is 4096 over twelve blocks, and no learning rate "
    "suits both ends. A skip passes all of the gradient, and the branch adds to it; where it shrinks, the skip is cut "
    "or scaled in the backward, which forward and loss can't show.",
    example="`x = x.detach() + self.attn(self.norm(x))`, a leftover of debugging: the same logits, and a tenth of the "
    "gradient below that block.",
    instead="`x = x + branch` in every block, all blocks drawn alike, residual projections with std/√(2N).",
    references=("arXiv 2002.04745 (gradients in pre- and post-norm)", "arXiv 2203.00555 (DeepNorm)"),
    check=_imbalance,
)

NOT_FINITE = Rule(
    id="GRAD002",
    name="non-finite-gradient",
    severity="error",
    what="The gradient of a parameter or of a branch is inf or nan.",
    why="The loss can be finite and its derivative not. The first optimizer step then makes the weights nan, or a loss "
    "scaler skips every step.",
    example="`x / x.norm(dim=-1, keepdim=True)` on a branch that starts at zero: the forward is cleaned by nan_to_num, "
    "the backward is nan.",
    instead="An eps inside the root: `x * (x.square().mean(-1, keepdim=True) + eps).rsqrt()`.",
    references=(),
    check=_not_finite,
    on_trained=True,
)
