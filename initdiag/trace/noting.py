"""What elementwise operations and norms show of the parameters that they meet."""

from __future__ import annotations

from initdiag.schemes import Role
from initdiag.trace.calls import Call, wide
from initdiag.trace.lineage import NORMS, NOTHING, Lineage
from initdiag.trace.roles import Notes

GAIN, SHIFT = "the gain of a norm", "the shift of a norm"


def note(call: Call, notes: Notes) -> None:
    """Note the roles that an operation shows."""
    operation, parents = call.operation, call.parents
    if operation in NORMS:
        names = [parent.parameter for parent in parents[1:]]
        notes.note(names[0] if names else None, Role.NORM_SCALE, GAIN)
        notes.note(names[1] if len(names) > 1 else None, Role.NORM_BIAS, SHIFT)
    elif operation == "glu":
        notes.halves(parents[0])
    elif operation in ("mul", "add", "sub", "div") and len(parents) == 2:
        for at, other in ((0, 1), (1, 0)):
            parameter, value = parents[at], parents[other]
            if parameter.parameter and not parameter.from_ids and value.from_ids:
                if operation in ("mul", "div"):
                    _multiplied(parameter.parameter, wide(call, parameter.parameter), value, notes)
                else:
                    _added(parameter.parameter, call.inputs[at].dim(), value, notes)
        if operation == "mul" and all(parent.left for parent in parents):
            notes.gated(parents[0], parents[1])
        if operation in ("mul", "div"):
            _divided(parents[0], parents[1], notes)


def mixed(a: Lineage, b: Lineage, notes: Notes) -> None:
    """Note attention that is put together by hand: weights times values, or queries times (keys times values)."""
    if a.weights and a.mixes:
        notes.attention(NOTHING, NOTHING, b)
    elif a.scores and not b.mixes:
        notes.attention(*a.scores, b)
    elif b.scores and not a.mixes:
        notes.attention(a, *b.scores)


def _multiplied(parameter: str, wide: bool, value: Lineage, notes: Notes) -> None:
    if value.normed and wide:
        notes.note(parameter, Role.NORM_SCALE, GAIN)
    else:
        notes.note(parameter, Role.MULTIPLIER, "it multiplies a branch or the stream")


def _divided(value: Lineage, stat: Lineage, notes: Notes) -> None:
    """A gain that was multiplied before the norm divided: g·(x − μ)/σ."""
    if stat.stat and not value.stat and value.gain and not value.normed:
        notes.found[value.gain] = {None: (Role.NORM_SCALE, GAIN)}


def _added(parameter: str, axes: int, value: Lineage, notes: Notes) -> None:
    if value.scores:
        notes.note(parameter, Role.OTHER, "added to attention logits")
    elif axes > 1 and value.stream:
        said = "added to the embedding without looking at token ids"
        notes.note(parameter, Role.POSITION_EMBEDDING, said)
    elif value.normed and value.gain:
        notes.note(parameter, Role.NORM_BIAS, SHIFT)
    elif value.left and value.projection:
        notes.bias(parameter, value.projection)
