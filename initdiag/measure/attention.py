"""How sharp an attention is, from its last queries."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from initdiag.measure.statistics import largest, widened
from initdiag.measure.values import QUERIES
from initdiag.trace import Attention, FusedAttention

LOGITS = 2**22  # attention logits held at a time, at most
FAR = 5e3  # a logit that far below another has a weight of exactly zero


def sharpness(attention: Attention) -> tuple[float, float]:
    """Return (logit std, entropy ratio), averaged over batch, heads and the last queries.

    The std is over the keys that a query sees; the entropy is divided by ln of their number. Queries that see a
    single key say nothing and are left out; nan if there are no others.
    """
    logits = _last_logits(attention) if isinstance(attention, FusedAttention) else attention.logits[..., -QUERIES:, :]
    visible = ~_masked(logits)
    logits = widened(logits)
    keys = visible.sum(-1)
    kept = logits.masked_fill(~visible, 0.0)
    mean = kept.sum(-1, keepdim=True) / keys.unsqueeze(-1)
    spread = ((kept - mean).square().masked_fill(~visible, 0.0).sum(-1) / keys).sqrt()
    weights = logits.masked_fill(~visible, -torch.inf).softmax(-1)
    entropy = torch.special.entr(weights).sum(-1)
    several = keys > 1
    if not bool(several.any()):
        return float("nan"), float("nan")
    return float(spread[several].mean()), float((entropy[several] / keys[several].to(entropy.dtype).log()).mean())


def largest_logit(attention: Attention) -> float:
    """Return the largest |attention logit| before scaling and masks: what a low-precision product has to hold."""
    if isinstance(attention, FusedAttention):
        bare = replace(attention, causal=False, mask=None, scale=1.0)
        return largest(_last_logits(bare))
    logits = attention.logits
    return largest(logits.masked_fill(_masked(logits), 0.0))


def _masked(logits: Tensor) -> Tensor:
    """Tell which logits are masked: −inf, about the lowest number, or the −1e4 of GPT-1 and BERT below others."""
    lowest = torch.finfo(logits.dtype).min / 2
    below = logits.amax(-1, keepdim=True) > logits + FAR
    return (logits <= lowest) | ((logits < -FAR) & below)


def _last_logits(attention: FusedAttention) -> Tensor:
    """Compute the masked logits of the last queries: (B, H, few, T)."""
    query, key = attention.query, attention.key
    batch, heads, length, _ = query.shape
    few = max(1, min(QUERIES, length, LOGITS // (batch * heads * key.shape[2])))
    query = widened(query[:, :, -few:])
    key = widened(key).repeat_interleave(heads // key.shape[1], dim=1)
    logits = query @ key.transpose(-1, -2) * attention.scale
    if attention.causal:
        hidden = torch.ones(length, key.shape[2], dtype=torch.bool, device=key.device).triu(1)[-few:]
        logits = logits.masked_fill(hidden, -torch.inf)
    if attention.mask is not None:
        mask = attention.mask.expand(batch, heads, length, key.shape[2])[:, :, -few:]
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    return logits
