"""Rules on the residual stream."""

from __future__ import annotations

import math
from collections.abc import Iterator

from initdiag.measure import ResidualMeasure
from initdiag.rules.cures import RESIDUAL_PLACES, scaled_with_depth, written
from initdiag.rules.finding import Severity
from initdiag.rules.rule import Evidence, Rule, Trouble

FEWEST_BRANCHES = 4  # with one layer there is no depth to speak of

# Part of the embedding's variance that all branches together must have: below, a stream has no growth that a norm
# could see (half a per cent in std), as behind LayerScale's gain of 1e-4 or under an embedding of a hundred times the
# branches.
NOTICED = 0.01

FALLING = frozenset({"wang", "tinyllama", "gptj", "completep"})  # published: branches that all together fall like 1/N


def depth_exponent(residual: ResidualMeasure) -> float:
    """Return ln(scaling ratio) / ln(number of branches): 0 for 1/√(2N), +1 without scaling, −1 for scaling twice."""
    ratio, branches = residual.scaling_ratio, len(residual.branches)
    return math.log(ratio) / math.log(branches) if ratio > 0 and branches > 1 else math.nan


def _judged(evidence: Evidence) -> bool:
    """Post-norm resets the stream after every addition, and a norm behind the projection undoes its scale: there is
    no growth to judge. Nor is there one growth where there are two streams."""
    branches = evidence.measured.residual.branches
    one = not any(branch.stream for branch in branches)
    return len(branches) >= FEWEST_BRANCHES and evidence.measured.wiring.placement == "pre" and one


def _unscaled(evidence: Evidence) -> Iterator[Trouble]:
    residual = evidence.measured.residual
    if not _judged(evidence) or depth_exponent(residual) <= evidence.gate.depth_exponent:
        return
    branches, total = len(residual.branches), residual.branch_variance_sum
    first, last = residual.embedding_variance, residual.branches[-1].stream_variance
    if total <= NOTICED * first:
        return
    grows = total > first
    what = (
        "the stream grows with depth: its variance"
        if grows
        else "no branch is scaled with depth, and the embedding hides it: the stream's variance"
    )
    yield Trouble(
        f"{what} goes from {first:.3g} to {last:.3g} over {branches} branches, whose variances sum to "
        f"{residual.scaling_ratio:.1f} unscaled branches (scaled: 1, unscaled: {branches})",
        "residual stream",
        f"{_how(evidence)}; many released models leave it so",
        RESIDUAL_PLACES,
        Severity.WARNING if grows else Severity.INFO,
        _lines(evidence),
    )


def _how(evidence: Evidence) -> str:
    subject, draw = evidence.subject, f"draw {_right_stds(evidence)}"
    if subject.plan.calibration:
        key = 'model.residual_multiplier: "1 / sqrt(2 * n_layers)"'
        return f"multiply the branches, as calibration undoes any std: in the config, {key}"
    if subject.architecture is not None:
        return f"{draw}; in the config, {scaled_with_depth(subject, evidence.measured.residual.scaling_ratio)}"
    return f"{draw}; `initdiag scheme scaled --for {subject.typed}` writes the init function"


def _lines(evidence: Evidence) -> tuple[str, ...]:
    """The same as lines of a config."""
    subject, multiplied = evidence.subject, 'model.residual_multiplier: "1 / sqrt(2 * n_layers)"'
    if subject.architecture is None:
        return ()
    if subject.plan.calibration:
        return (multiplied,)
    line = scaled_with_depth(subject, evidence.measured.residual.scaling_ratio)
    return written(line if ": " in line else "", "" if subject.architecture.residual_multiplier != 1 else multiplied)


def _twice(evidence: Evidence) -> Iterator[Trouble]:
    residual = evidence.measured.residual
    branches = len(residual.branches)
    if _judged(evidence) and depth_exponent(residual) < -evidence.gate.depth_exponent:
        falling = evidence.subject.plan.scheme in FALLING
        yield Trouble(
            f"the branches are too small: their variances sum to {residual.scaling_ratio:.3g} unscaled branches; "
            f"expected about 1, and 1/{branches} = {1 / branches:.3g} is what scaling twice gives"
            + (f"; those of scheme {evidence.subject.plan.scheme} fall like 1/N" if falling else ""),
            "residual stream",
            f"apply 1/√(2N) once: draw {_right_stds(evidence)}",
            "init.residual_std",
            Severity.WARNING if falling else Severity.ERROR,
            _once(evidence),
        )


def _once(evidence: Evidence) -> tuple[str, ...]:
    """What _right_stds says, as a line of a config."""
    depth = math.sqrt(len(evidence.measured.residual.branches))
    stds = {role: std for role, std in evidence.subject.residual_stds.items() if std > 0}
    own = ", ".join(f"{role}: {{normal: {std / depth:.4g}}}" for role, std in stds.items())
    return (f"init.roles: {{{own}}}",) if own else ()


def _right_stds(evidence: Evidence) -> str:
    """Say which std each role of residual projection should have: its unscaled one over √(2N)."""
    branches = len(evidence.measured.residual.branches)
    depth = f"2·{branches // 2}" if branches % 2 == 0 else f"{branches}"
    return " and ".join(
        f"{role} with std {std:.3g}/√({depth}) = {std / math.sqrt(branches):.3g}"
        for role, std in evidence.subject.residual_stds.items()
        if std > 0
    )


UNSCALED = Rule(
    id="RES001",
    name="unscaled-residual",
    severity="warning; info where all branches together are smaller than the embedding",
    what="The branches of a pre-norm model add up to more than (2N)^gate.depth_exponent unscaled branches. Fewer than "
    "four branches are not judged: there is no depth to speak of; nor are branches that all together have less than "
    "a hundredth of the embedding's variance, such as those behind LayerScale.",
    why="Every branch adds its variance to the stream, so 2N equal branches make it grow like N: late layers change a "
    "large stream by a small part, and the gradients of early ones differ from those of late ones. The loss does "
    "not see it: GPT-2 small starts at 10.98 either way. Many released models leave it so; it is a choice, not a "
    "fault, and so this warns.",
    example="`init: {scheme: gpt2}` at 12 layers: the branch variances sum to 24 unscaled branches, and the stream's "
    "variance ends at 2.3 instead of 0.087.",
    instead="Attention out and MLP out with std/√(2N): `init: {scheme: scaled}` is gpt2 with it, cerebras is bert, "
    "bigscience is wang; of deepseek, residual_std says it, of lingua factor; for any other scheme, init.roles.",
    references=("GPT-2 paper, section 2.3", "arXiv 2002.04745 (pre-norm variance grows with depth)"),
    check=_unscaled,
)

TWICE = Rule(
    id="RES002",
    name="residual-scaled-twice",
    severity="error; warning for schemes whose branches fall like 1/N by design (wang, tinyllama, gptj, completep)",
    what="The branches of a pre-norm model add up to less than (2N)^−gate.depth_exponent unscaled branches. Branches "
    "that are exactly zero are a known choice; they and models of fewer than four branches are not judged.",
    why="When 1/√(2N) is applied by two hands (in the init function, and again by a loop over names that end in "
    "c_proj.weight), every branch is 2N times too small in variance: the model starts as a near-identity and deep "
    "layers learn late. The loss does not see it.",
    example="`init: {scheme: scaled, residual_std: 0.000833}` for 12 layers, which is 0.02/24 instead of 0.02/√24.",
    instead="std/√(2N), once.",
    references=("GPT-2 paper, section 2.3",),
    check=_twice,
)
