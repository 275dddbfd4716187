"""Rules on attention."""

from __future__ import annotations

import math
from collections.abc import Iterator

from initdiag.rules.cures import ATTENTION_PLACES, cooler_attention, cooler_lines
from initdiag.rules.finding import Severity
from initdiag.rules.rule import Evidence, Rule, Trouble


def _saturated(evidence: Evidence) -> Iterator[Trouble]:
    gate = evidence.gate
    seen = [layer for layer in evidence.measured.attention if math.isfinite(layer.entropy_ratio)]
    if not seen:
        return
    sharpest, hottest = min(seen, key=lambda at: at.entropy_ratio), max(seen, key=lambda at: at.logit_std)
    failed = sharpest.entropy_ratio < gate.min_attention_entropy
    complaints = []
    if failed or sharpest.entropy_ratio < gate.warn_attention_entropy:
        complaints.append(
            f"entropy {sharpest.entropy_ratio:.3f} of its maximum in {sharpest.name}, expected at least "
            f"{max(gate.warn_attention_entropy, gate.min_attention_entropy):g}"
            + (f" (less than {gate.min_attention_entropy:g} fails)" if failed else "")
        )
    if hottest.logit_std > gate.warn_attention_logit_std:
        complaints.append(
            f"logit std {hottest.logit_std:.3g} in {hottest.name}, expected at most {gate.warn_attention_logit_std:g}"
        )
    if complaints:
        yield Trouble(
            f"attention is saturated: {'; '.join(complaints)}",
            sharpest.name,
            cooler_attention(evidence.subject, max(hottest.logit_std, 1.0)),
            ATTENTION_PLACES,
            Severity.ERROR if failed else Severity.WARNING,
            cooler_lines(evidence.subject, max(hottest.logit_std, 1.0)),
        )


SATURATED = Rule(
    id="ATTN001",
    name="saturated-attention",
    severity="warning below gate.warn_attention_entropy or above gate.warn_attention_logit_std, error below "
    "gate.min_attention_entropy",
    what="Somewhere, attention looks at few keys: its entropy is a small part of ln(visible keys), or its logits are "
    "wide.",
    why="A saturated softmax passes hardly any gradient to queries and keys, and the token that it looks at was chosen "
    "by chance; such heads start dead and can stay so.",
    example="Xavier query and key without the division by √head_dim: entropy 0.18 of its maximum.",
    instead="Query and key std with d_model·σ_q·σ_k below about 1, logits divided by √head_dim. Norms on queries and "
    "keys undo their std, so that only the scale is left, `model.attention_scale` in a config.",
    references=("arXiv 1706.03762, section 3.2.1", "docs/concepts.md, attention entropy"),
    check=_saturated,
)
