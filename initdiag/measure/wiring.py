"""How a model is put together, from what its branches read and how the stream was carried between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from initdiag.measure.values import Branch, Wiring

if TYPE_CHECKING:
    from initdiag.measure.watch import Watch
    from initdiag.trace import Tracer
    from initdiag.trace.lineage import Lineage


def wiring_of(tracer: Tracer, logits: Lineage, watch: Watch) -> Wiring:
    """Return the wiring of a forward that ended in logits of the given lineage."""
    branches = watch.branches
    head = logits.projection
    reads = [read for at, read in watch.reads.items() if read.reader == head and at in logits.reads]
    tables = list(dict.fromkeys(tracer.embeddings))
    return Wiring(
        placement=placement(branches),
        d_model=watch.width,
        n_layers=len({branch.layer for branch in branches if branch.layer is not None}) or (len(branches) + 1) // 2,
        head=head,
        head_read=reads[-1] if reads else None,
        embedding=tables[0] if tables else None,
        tied=head in tables,
        head_bias=next((bias for bias, weight in tracer.notes.biases.items() if weight == head), None),
        broken=_broken(logits, branches),
        tried="" if branches else _tried(tracer, tables),
    )


def placement(branches: Sequence[Branch]) -> str:
    """Say where the norms stand; most branches decide."""
    if not branches:
        return "unknown"
    half = len(branches) / 2
    reading = sum(any(read.normed for read in branch.reads) for branch in branches) > half
    if sum(branch.normed for branch in branches) > half:
        return "sandwich" if reading else "reordered"
    later = [branch for branch in branches if branch.carried != "first"]
    if later and sum(branch.carried == "normed" for branch in later) > len(later) / 2:
        return "post"
    return "pre" if reading else "none"


def _broken(logits: Lineage, branches: Sequence[Branch]) -> str:
    """A head reads the stream, through no more than a small transform; attention on the way means that the skip
    around some branch is missing."""
    if branches and logits.left and logits.mixes:
        last = branches[-1]
        return (
            f"the head reads something that passed attention since it left the stream: after branch {last.index}, "
            f"{last.name}, a branch replaces the stream instead of being added to it"
        )
    return ""


def _tried(tracer: Tracer, tables: Sequence[str]) -> str:
    if not tables:
        return "no table was looked up by the token ids, nor was a one-hot product of them found"
    return (
        f"the stream was followed from {tables[0]}, through norms and scalings, also across "
        f"{', '.join(tracer.entries[:3]) or 'no product'}; no value that had left it was added to it again"
    )
