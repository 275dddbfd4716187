"""Numbers of positions that need no parameters: rotary and sinusoid frequencies, ALiBi slopes. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

from initdiag.model.architecture import Architecture
from initdiag.model.sections import RotaryScaling

SINUSOID_BASE = 10_000.0  # arXiv 1706.03762, section 3.5; RoFormer (arXiv 2104.09864, section 3.2.2) has it from there


def frequencies(pairs: int, base: float) -> list[float]:
    """Return by how many radians the angle of each feature pair grows a token: base^(−i/pairs)."""
    return [base ** (-pair / pairs) for pair in range(pairs)]


def rotary_frequencies(shape: Architecture, local: bool = False) -> list[float]:
    """Return the frequencies of the rotary_dims / 2 feature pairs, scaled as the architecture says.

    Args:
        local: for a layer with a window, where `local_rotary_base` is another and isn't scaled.
    """
    own = shape.local_rotary_base if local else None
    base = own or shape.rotary_base
    unscaled = frequencies(shape.rotary_dims // 2, base)
    return unscaled if shape.rotary_scaling is None or own else scaled(unscaled, shape.rotary_scaling, base)


def scaled(unscaled: Sequence[float], scaling: RotaryScaling, base: float) -> list[float]:
    """Return slower frequencies for a longer context, in radians a token.

    linear: all are divided by `factor`. llama3: a pair that turns at most `low` times within the original context is,
    one that turns at least `high` times stays as it is, and between them the share of the old frequency grows linearly
    with the number of turns: meta-llama/llama-models, models/llama3/model.py, apply_scaling (there by wavelengths,
    context / turns). yarn: the same borders, but the share grows linearly with the index of the pair: arXiv 2309.00071,
    section 3.2, in the form of jquesnelle/yarn, find_correction_range, where `rounded` borders are at whole pairs.
    """
    if scaling.kind == "linear":
        return [one / scaling.factor for one in unscaled]
    assert scaling.context is not None
    if scaling.kind == "llama3":
        turns = [scaling.context * one / (2 * math.pi) for one in unscaled]
        kept = [_within((turn - scaling.low) / (scaling.high - scaling.low)) for turn in turns]
    else:
        kept = [1 - slow for slow in _ramp(len(unscaled), scaling, scaling.context, base)]
    return [one * (share + (1 - share) / scaling.factor) for one, share in zip(unscaled, kept, strict=True)]


def _ramp(pairs: int, scaling: RotaryScaling, context: int, base: float) -> list[float]:
    """Return 0 for pairs that turn often, 1 for those that turn seldom."""

    def pair(turns: float) -> float:  # the index of the pair that turns so often within the context
        return pairs * math.log(context / (turns * 2 * math.pi)) / math.log(base)

    first, last = pair(scaling.high), pair(scaling.low)
    if scaling.rounded:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    return [_within((index - first) / max(last - first, 0.001)) for index in range(pairs)]


def _within(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def alibi_slopes(heads: int) -> list[float]:
    """Return by how much each head's attention logits fall a token.

    2^(−8k/n), k = 1 … n, for n a power of two; for others those of the power below and, for what is missing, every
    other one of the power above: ofirpress/attention_with_linear_biases, get_slopes (arXiv 2108.12409, section 3).
    """
    below = 2 ** int(math.log2(heads))
    slopes = [2.0 ** (-8 * k / below) for k in range(1, below + 1)]
    return slopes + [2.0 ** (-8 * k / (2 * below)) for k in range(1, 2 * (heads - below) + 1, 2)]
