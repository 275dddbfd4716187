"""Which additions are residual: a branch that is added to the stream that it left, in any of torch's ways to add."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from initdiag.trace.calls import Call
from initdiag.trace.lineage import Lineage, Term


@dataclass(frozen=True, slots=True)
class Residual:
    """A residual addition: after = before + written, of the stream and the branch with these lineages; `before` is
    `keep` times the stream."""

    stream: Lineage
    branch: Lineage
    before: Tensor
    written: Tensor
    keep: float = 1.0


def plain(call: Call, kept: Tensor | None, after: Tensor) -> Residual | None:
    """left + alpha·right, left − right, addcmul or lerp; `kept` is what an in-place one has overwritten."""
    parents, operation = call.parents, call.operation
    if len(parents) < 2 or len(call.args) < 2:
        return None
    first, factors = call.inputs[0] if kept is None else kept, (1.0, 1.0)
    if operation == "addcmul":
        branch = max(parents[1:], key=lambda parent: parent.products)
        pairs = [(parents[0], branch, first, after - first)]
    elif call.inputs[0].shape != call.inputs[1].shape:
        return None
    elif operation == "lerp":  # (1 − w)·left + w·right
        share = call.args[2]
        first, second = first * (1 - share), call.inputs[1] * share
        factors = (1 - share, share) if isinstance(share, float) else factors
        pairs = [(parents[0], parents[1], first, second), (parents[1], parents[0], second, first)]
    else:
        alpha = call.kwargs.get("alpha", 1)
        second, factors = call.inputs[1] if alpha == 1 else call.inputs[1] * alpha, (1.0, float(alpha))
        if operation == "sub":
            second = -second
        elif operation == "rsub":
            first, second = -first * alpha, call.inputs[1]
        pairs = [(parents[0], parents[1], first, second), (parents[1], parents[0], second, first)]
    for at, (stream, branch, before, written) in enumerate(pairs):
        if _leaves(branch, stream):
            return Residual(stream, branch, before, written, factors[at])
    return None


def fused(call: Call, branch: Lineage, after: Tensor) -> Residual | None:
    """addmm with the stream as its bias: after = beta·stream + alpha·(hidden @ weight)."""
    stream = call.parents[0]
    if not _leaves(branch, stream) or call.inputs[0].shape != after.shape:
        return None
    beta = call.kwargs.get("beta", 1)
    before = call.inputs[0] if beta == 1 else call.inputs[0] * beta
    return Residual(stream, branch, before, after - before, float(beta))


def terms(call: Call, kept: Tensor | None, lineage: Lineage) -> tuple[Term, ...]:
    """The addends of a sum of branches that is yet to be added to the stream, attention and MLP apart."""
    if len(call.inputs) != 2 or call.inputs[0].shape != call.inputs[1].shape or call.kwargs.get("alpha", 1) != 1:
        return lineage.terms
    left, right = call.parents
    if not (left.left and right.left and left.projection and right.projection) or lineage.scores:
        return ()
    if left.attention == right.attention and not (left.terms or right.terms):
        return ()
    values = (call.inputs[0] if kept is None else kept, call.inputs[1])
    return tuple(
        term
        for parent, value in zip((left, right), values, strict=True)
        for term in (parent.terms or (Term(replace(parent, terms=()), value),))
    )


def _leaves(branch: Lineage, stream: Lineage) -> bool:
    return bool(stream.stream & branch.roots) and branch.left and not branch.stat and not stream.stat
