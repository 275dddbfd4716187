"""The rule on parameters that never get a gradient; it is silent where no backward was run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from initdiag.measure import GradientMeasure
from initdiag.rules.finding import Severity
from initdiag.rules.gradients import few, trainable, underflows
from initdiag.rules.rule import Evidence, Rule, Trouble, as_python
from initdiag.schemes import Role
from initdiag.schemes.roles import layer_of


def _dead(evidence: Evidence) -> Iterator[Trouble]:
    gradients = evidence.measured.gradients
    if gradients is None or not gradients.zero:
        return
    reached = {name for name, _ in gradients.norms}
    followed = gradients.steps > 0
    without = gradients.dead if followed else gradients.zero
    unused = [name for name in without if name not in reached]
    excused = [name for name in without if _excused(evidence, name)]
    dead = [name for name in gradients.dead if name in reached and name not in excused] if followed else []
    unused = [name for name in unused if name not in excused]
    if dead:
        yield _dead_trouble(evidence, dead, gradients)
    if unused:
        yield Trouble(
            f"the loss does not depend on {len(unused)} of {trainable(gradients)} parameters: {few(unused)}; "
            "expected each to be used in the forward",
            unused[0],
            f"use {_owner(unused[0])} in the forward, drop it, or freeze it: "
            f"`{as_python(unused[0])}.requires_grad_(False)` "
            "(distributed training waits for its gradient for ever)",
            "model",
            Severity.WARNING,
        )
    if excused:
        yield Trouble(
            f"{few(excused)}: no gradient here, since no token was routed there or only an auxiliary loss trains it",
            excused[0],
            "look with a larger --batch; nothing to do where an auxiliary loss trains the router",
            "tokens",
            Severity.INFO,
        )
    sleeping = [name for name in gradients.zero if name not in {*dead, *unused, *excused}]
    if sleeping:
        yield Trouble(
            f"{len(sleeping)} of {trainable(gradients)} parameters have no gradient at step 0: {few(sleeping)}; "
            + (f"all of them have one after {_steps(gradients)}" if followed else f"not followed: {gradients.skipped}"),
            sleeping[0],
            "nothing to do: a zero head or zero branch outputs start so"
            if followed
            else "train a few steps and look at their gradients again",
            "init",
            Severity.INFO,
        )


def _dead_trouble(evidence: Evidence, dead: Sequence[str], gradients: GradientMeasure) -> Trouble:
    measured = {parameter.name: parameter for parameter in evidence.measured.parameters}
    zeros = [name for name in dead if name in measured and measured[name].std == 0 and measured[name].mean == 0]
    matrices = [name for name in zeros if len(measured[name].shape) != 1 and not name.endswith("bias")]
    gains = [name for name in zeros if _role(evidence, name) == Role.NORM_SCALE]
    layers = {layer_of(name) for name in matrices} - {None}
    first = (matrices or zeros or list(dead))[0]
    alike = [*gains, *(name for name in matrices if layer_of(name) == layer_of(first))]
    partners = [name for name in alike if name != first]
    draw = f"`nn.init.normal_({as_python(first)}, std={evidence.subject.declared.std or 0.02:g})`"
    if underflows(evidence):
        cure = "float16 gradients round to zero below 6e-8: scale the loss, or check with --dtype float32"
    elif matrices and partners:
        partner = partners[0]
        cure = (
            f"zeros multiply each other, {few([first, partner])}; keep one of them at most: {draw}"
            + (f" or `nn.init.ones_({as_python(partner)})`" if partner in gains else "")
            + (f", and so in all {len(layers)} layers" if len(layers) > 1 else "")
        )
    elif len(layers) > 1:
        cure = (
            f"each of {few(matrices)} multiplies other zeros of its layer, such as rows of a packed matrix; draw one "
            f"of the two in every layer: {draw}"
        )
    elif zeros:
        cure = f"draw it: {draw}"
    else:
        cure = (
            f"the gradient ends on its way to {dead[0]}: look there for multiplication by a constant zero, argmax or "
            "rounding, and for a ReLU whose inputs are all negative"
        )
    return Trouble(
        f"{len(dead)} of {trainable(gradients)} parameters are dead: {few(dead)} have no gradient at step 0 and none "
        f"after {_steps(gradients)}; expected some",
        first,
        cure,
        "init",
        Severity.WARNING if underflows(evidence) else Severity.ERROR,
    )


def _excused(evidence: Evidence, name: str) -> bool:
    """An expert that may have got no token, or a router."""
    shares = [router.min_share for router in evidence.measured.routers]
    idle = not shares or min(shares) == 0
    expert = any("expert" in part and "shared" not in part for part in name.lower().split("."))
    return (expert and idle) or _role(evidence, name) == Role.ROUTER


def _role(evidence: Evidence, name: str) -> Role | None:
    planned = evidence.subject.plan.by_name.get(name)
    return planned.parameter.role if planned else None


def _steps(gradients: GradientMeasure) -> str:
    return f"{gradients.steps} SGD step" + ("s" if gradients.steps > 1 else "")


def _owner(name: str) -> str:
    return name.rpartition(".")[0] or name


DEAD = Rule(
    id="GRAD003",
    name="dead-parameters",
    severity="error; warning for parameters that the forward does not use and for float16; info for those that wake "
    "up, for experts without tokens and for routers",
    what="A trainable parameter has a gradient of exactly zero at step 0 and still after three small SGD steps on a "
    "copy. What has one by then is only told; so are experts that got no token.",
    why="Zero times zero stays zero: where two factors of one product start at zero, each waits for the other, and "
    "neither ever learns. One zero alone (a zero head, zero branch outputs) wakes up after a step, which is why the "
    "gradients of step 0 alone say nothing.",
    example="`nn.init.zeros_` on both attn.v and attn.out of one block; a zero final gain under a zero head, below "
    "which nothing learns.",
    instead="Zero only one factor of a product: the one that writes into the stream.",
    references=("arXiv 1901.09321 (Fixup: zero branch outputs)", "arXiv 2003.04887 (ReZero)"),
    check=_dead,
)
