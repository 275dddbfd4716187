"""The rule on tensors that hold the same numbers though nobody declared it."""

from __future__ import annotations

from collections.abc import Iterator

from initdiag.measure import Copy
from initdiag.rules.rule import Evidence, Rule, Trouble, as_python

SHOWN = 3  # pairs that a message lists

FAULTS = {  # kind: (what is wrong with one, with several, what to do)
    "equal": (
        "1 tensor holds the numbers of another",
        "{} tensors hold the numbers of another",
        "draw each for itself: no copy.deepcopy of a drawn layer, no [layer] * n, no torch.manual_seed inside the loop "
        "over layers or experts",
    ),
    "rows": (
        "1 matrix repeats a block of its own",
        "{} matrices repeat a block of their own",
        "draw the packed matrix as a whole: not cat([A, A]), not the same shard or gate copied to up",
    ),
    "scaled": (
        "1 tensor follows another, times a factor",
        "{} tensors follow another, times a factor",
        "draw each from one generator that goes on: the same seed was set before both, or one was made from the other",
    ),
}


def _copies(evidence: Evidence) -> Iterator[Trouble]:
    for kind, (one, several, cure) in FAULTS.items():
        copies = [copy for copy in evidence.measured.copies if copy.kind == kind]
        if copies:
            shown = ", ".join(map(_equation, copies[:SHOWN]))
            more = f", and {len(copies) - SHOWN} more" if len(copies) > SHOWN else ""
            yield Trouble(
                f"{one if len(copies) == 1 else several.format(len(copies))}: {shown}{more}; expected numbers of "
                "their own",
                copies[0].second,
                f"{cure}; in your init function: {_code(copies[0])}. If they are meant to be one, let them share the "
                "Parameter; if they are meant to start alike (upcycled experts), gate.ignore: [INIT003]",
                "init.scheme",
            )


def _equation(copy: Copy) -> str:
    if copy.kind == "scaled":
        return f"{copy.second} ≈ {copy.factor:.3g} · {copy.first}"
    return f"{copy.second} = {copy.first}"


def _code(copy: Copy) -> str:
    whole = copy.second.partition("[")[0] if copy.kind == "rows" else copy.second
    return f"nn.init.normal_({as_python(whole)}, std=…)"


COPIES = Rule(
    id="INIT003",
    name="copied-tensors",
    severity="error",
    what="Two parameters, two experts, or two blocks of rows or columns of a matrix hold the same numbers, or the same "
    "numbers times a factor, without sharing memory. Norms, multipliers, zeros and tensors that no chance went into "
    "are not compared; of an embedding or a head, a few equal rows pass.",
    why="Units that start alike and get the same gradients stay alike: equal experts are one expert, two equal halves "
    "of a matrix are one half. Equal layers differ in time, but the model starts with the choices of a single one. The "
    "loss starts where it should.",
    example="`nn.ModuleList([copy.deepcopy(block) for _ in range(12)])` without an init function that runs afterwards.",
    instead="Apply the init function once, after the whole model is built, with one generator for all of it.",
    references=("torch.nn.TransformerEncoder clones its layer by deepcopy, so all its layers start equal",),
    check=_copies,
)
