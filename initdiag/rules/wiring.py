"""Rules on how the residual stream is wired."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from initdiag.measure import Branch
from initdiag.rules.cures import RESIDUAL_PLACES
from initdiag.rules.finding import Severity
from initdiag.rules.rule import Evidence, Rule, Trouble
from initdiag.schemes import SCHEMES, PlannedParameter, Role
from initdiag.schemes.roles import RESIDUAL_PROJECTIONS, layer_of
from initdiag.subjects.subject import without_layers

ADDITIVE = 1e-3  # relative
COARSE = {"float16": 2.0**-9, "bfloat16": 2.0**-6}  # four roundings of a sum
NEAR = math.log(1.25)  # a measured factor is taken for 1/√(2N), 1 or √(2N) when it is this close
CLOSE = 0.05  # relative: a measured std is the planned one; small matrices are drawn to 2 %
FEWEST_LAYERS = 4  # below, 1/√(2N) can't be told from an MLP's 1/√4


def _wrong_matrices(evidence: Evidence) -> Iterator[Trouble]:
    """The factor of a role is the measured std of its residual projections over what it would be without scaling."""
    branches, wiring = evidence.measured.residual.branches, evidence.measured.wiring
    if wiring.placement != "pre" or wiring.n_layers < FEWEST_LAYERS or any(branch.stream for branch in branches):
        return
    depth = math.sqrt(len(branches))
    factors = {role: factor for role in RESIDUAL_PROJECTIONS if (factor := _factor(evidence, role)) is not None}
    if len(factors) < len(RESIDUAL_PROJECTIONS):
        return
    attention, mlp = factors[Role.ATTENTION_OUT], factors[Role.MLP_OUT]
    misplaced = _feeders(evidence, depth)
    undo = f"; give {misplaced} the std of the others back" if misplaced else ""
    backwards = [role for role, factor in factors.items() if _near(factor, depth)]
    if backwards:
        names = _writers(evidence, *backwards)
        yield Trouble(
            f"{names}: their std is {depth:.3g} times that of the matrices that feed them; expected 1/√(2N) = "
            f"{1 / depth:.3g} times",
            names,
            f"the scaling is on the wrong matrices: divide what feeds {names} by {1 / depth:.3g}, and multiply {names} "
            f"by it{undo}",
            RESIDUAL_PLACES,
        )
        return
    for (scaled, factor), (other, rest) in (
        ((Role.ATTENTION_OUT, attention), (Role.MLP_OUT, mlp)),
        ((Role.MLP_OUT, mlp), (Role.ATTENTION_OUT, attention)),
    ):
        if _near(factor, 1 / depth) and _near(rest, 1.0):
            names = _writers(evidence, other)
            published = _as_published(evidence)
            yield Trouble(
                f"{scaled} is scaled by {factor:.3g} (1/√(2N) = {1 / depth:.3g}), but {other} by {rest:.3g}; expected "
                f"the same factor on both: {names}" + (f"; {misplaced} is scaled instead" if misplaced else ""),
                names,
                f"scheme {published} is published so; init.scheme: scaled is what it was meant to be"
                if published
                else f"scale {names} by {1 / depth:.3g} too{undo}; the rule of your init function that matches names "
                "misses them",
                "init.scheme" if published else RESIDUAL_PLACES,
                Severity.WARNING if published else Severity.ERROR,
            )


def _as_published(evidence: Evidence) -> str:
    """Return the scheme where it says itself what was found, and the weights are as it says."""
    plan = evidence.subject.plan
    stds = {parameter.name: parameter.std for parameter in evidence.measured.parameters}
    drawn = all(
        abs(stds.get(entry.parameter.name, math.nan) - entry.distribution.std) <= CLOSE * entry.distribution.std
        for entry in plan.with_role(*RESIDUAL_PROJECTIONS)
    )
    return plan.scheme if plan.scheme in SCHEMES and drawn else ""


def _feeders(evidence: Evidence, depth: float) -> str:
    """Names of the matrices that feed a branch and are 1/√(2N) of their siblings: where the scaling went by mistake."""
    stds = {parameter.name: parameter.std for parameter in evidence.measured.parameters}
    plan = evidence.subject.plan
    found: list[str] = []
    for group in ((Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE), (Role.MLP_IN, Role.MLP_GATE)):
        typical = {
            role: median([stds[entry.parameter.name] for entry in entries])
            for role in group
            if (entries := [entry for entry in plan.with_role(role) if stds.get(entry.parameter.name, 0.0) > 0])
        }
        widest = max(typical.values(), default=0.0)
        found += [_writers(evidence, role) for role, std in typical.items() if _near(std / widest, 1 / depth)]
    return " and ".join(found)


def _factor(evidence: Evidence, role: Role) -> float | None:
    stds = {parameter.name: parameter.std for parameter in evidence.measured.parameters}
    factors = [
        stds[entry.parameter.name] / entry.unscaled_std
        for entry in evidence.subject.plan.with_role(role)
        if entry.unscaled_std > 0 and stds.get(entry.parameter.name, 0.0) > 0
    ]
    return median(factors) if factors else None


def _near(factor: float, wanted: float) -> bool:
    return abs(math.log(factor / wanted)) < NEAR


def _writers(evidence: Evidence, *roles: Role) -> str:
    entries: tuple[PlannedParameter, ...] = evidence.subject.plan.with_role(*(roles or RESIDUAL_PROJECTIONS))
    return " and ".join(without_layers(entry.parameter.name for entry in entries))


def _not_added(evidence: Evidence) -> Iterator[Trouble]:
    wiring, branches = evidence.measured.wiring, evidence.measured.residual.branches
    if wiring.broken:
        yield Trouble(
            wiring.broken,
            branches[-1].name if branches else "residual stream",
            "add the branch to what it read: x = x + branch(norm(x))",
            "model",
        )
        return
    overwritten = [at for at in range(len(branches)) if _overwritten(branches, at)]
    if overwritten and len(overwritten) * 2 >= len({branch.layer for branch in branches}):
        first = branches[overwritten[0]]
        at = f" at {first.source}" if first.source else ""
        yield Trouble(
            f"the norm {(first.carried_by or '').rpartition('.')[0]}, of the block of branch {first.index}, is written "
            f"over the stream{at} ({len(overwritten)} blocks): the stream that {first.name} is added to has been reset "
            "to unit variance; expected it to be normed for the branch only",
            first.module or first.name,
            "x = x + attn(norm(x)) in place of x = norm(x); x = x + attn(x)",
            "model.placement",
        )
    coarse = {parameter.dtype for parameter in evidence.measured.parameters} & set(COARSE)
    allowed = max([ADDITIVE, *(COARSE[dtype] for dtype in coarse)])
    off = [branch for branch in branches if branch.residue > allowed]
    if off:
        worst = max(off, key=lambda branch: branch.residue)
        yield Trouble(
            f"branch {worst.index}, {worst.name}: the stream after it is not the stream before it plus the branch; "
            f"relative difference {worst.residue:.3g}, expected at most {allowed:g}",
            worst.name,
            f"look at the addition{f' at {worst.source}' if worst.source else ''}",
            "model",
        )


def _overwritten(branches: tuple[Branch, ...], at: int) -> bool:
    """The stream that a block's first branch is added to was normed by that very block. In post-norm it is the block
    before that norms its own sum, and a norm of the embedding belongs to no block."""
    branch = branches[at]
    if branch.carried_by is None or branch.layer is None or layer_of(branch.carried_by) != branch.layer:
        return False
    earlier = [one for one in branches[:at] if one.stream == branch.stream]
    return not earlier or earlier[-1].layer != branch.layer


WRONG_MATRICES = Rule(
    id="RES003",
    name="residual-scaling-misplaced",
    severity="error; warning where a published scheme has it so (llama2c)",
    what="In a pre-norm model of at least four layers, 1/√(2N) is found on the matrices that read the stream instead "
    "of those that write to it, or on only one of the two kinds that write to it.",
    why="Only the std of what is added decides how the stream grows. Scaling the inputs instead makes attention flat "
    "and MLPs linear, and leaves the outputs as large as ever; scaling one kind leaves the other to dominate.",
    example="`if name.endswith('c_attn.weight')` where 'c_proj.weight' was meant; or c_proj renamed to fc2 in the MLP "
    "alone.",
    instead="std/√(2N) on attention out and on MLP out, and on nothing else.",
    references=("GPT-2 paper, section 2.3", "docs/concepts.md, scaling ratio"),
    check=_wrong_matrices,
)

NOT_ADDED = Rule(
    id="RES004",
    name="stream-not-additive",
    severity="error",
    what="A block writes its norm over the stream, or a branch replaces the stream instead of being added to it.",
    why="The skip is what carries early layers to the head and gradients back. A lost skip trains, slowly and worse, "
    "and the step-zero loss is the same.",
    example="`x = self.norm(x); x = x + self.attn(x)`: the stream's variance is 1 at every block, whatever was added.",
    instead="`x = x + self.attn(self.norm(x))`.",
    references=("arXiv 2002.04745, figure 1", "docs/concepts.md, residual stream"),
    check=_not_added,
    on_trained=True,
)
