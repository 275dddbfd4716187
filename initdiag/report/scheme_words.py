"""A scheme in words: what its roles are drawn from, in one line or one row for each draw, and what a cut leaves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from initdiag.errors import PlanError
from initdiag.report.formulas import is_number, names_in, spelled_out
from initdiag.schemes import Draw, InitPlan, Role, Scheme, Truncated
from initdiag.schemes.formula import evaluate
from initdiag.schemes.roles import EMBEDDINGS, INPUT_PROJECTIONS, LINEAR_WEIGHTS, RESIDUAL_PROJECTIONS
from initdiag.schemes.scheme import PLAIN

WEIGHTS = tuple(role for role in Role if role in (*EMBEDDINGS, *LINEAR_WEIGHTS))
UNBROKEN = 52  # formulas up to so many columns stay on one line of an 80-column terminal
QUERY, KEY, VALUE = INPUT_PROJECTIONS[:3]
# names of sets of roles, the largest first
GROUPS: tuple[tuple[tuple[Role, ...], str], ...] = (
    (EMBEDDINGS, "embedding"),
    (INPUT_PROJECTIONS, "in"),
    (RESIDUAL_PROJECTIONS, "out"),
    ((QUERY, KEY, VALUE, Role.ATTENTION_OUT), "attention"),
    ((Role.MLP_IN, Role.MLP_GATE, Role.MLP_OUT), "mlp"),
    ((QUERY, KEY, VALUE), "q/k/v"),
    ((QUERY, KEY), "q/k"),
    ((KEY, VALUE), "k/v"),
    ((QUERY,), "q"),
    ((KEY,), "k"),
    ((VALUE,), "v"),
    ((Role.TOKEN_EMBEDDING,), "token embedding"),
    ((Role.POSITION_EMBEDDING,), "positions"),
    ((Role.MLP_GATE,), "gate"),
    ((Role.LM_HEAD,), "head"),
    *(((role,), str(role).replace("_", " ")) for role in Role),
)


def draws(scheme: Scheme) -> list[tuple[Draw, tuple[Role, ...]]]:
    """Return each draw of a scheme with the roles that share it, in the order of Role."""
    sharing: dict[Draw, list[Role]] = {}
    for role in Role:
        if role in scheme.roles:
            sharing.setdefault(scheme.roles[role], []).append(role)
    return [(draw, tuple(roles)) for draw, roles in sharing.items()]


def written(draw: Draw) -> str:
    """Write a draw as Draw does, but cuts that are formulas so that they can be read."""
    if draw.cut is None or is_number(draw.cut):
        return str(draw)
    return str(replace(draw, cut=f"{draw.cut}·" if draw.cut.isidentifier() else f"({draw.cut})·"))


def in_short(scheme: Scheme, space: str = " ") -> tuple[str, ...]:
    """Return what a scheme draws, a few words at a time: 'all N(std)', 'out N(std / sqrt(2 * n_layers))', 'std 0.02'.

    Parameters are written as their defaults, but numbers by name, and their values last. Of norms, biases and
    multipliers only what isn't usual is told. And which fields of the forward pass a scheme demands.

    Args:
        space: what to write for a space in a formula that is better not broken there.
    """
    weights = [role for role in WEIGHTS if role in scheme.roles]
    others = [role for role in PLAIN if role in scheme.roles and scheme.roles[role] != PLAIN[role]]
    told: list[str] = []
    for draw, roles in _alike(scheme, weights):
        name = "all" if 2 * len(roles) > len(weights) else ", ".join(_named(roles, weights))
        told.insert(0 if name == "all" else len(told), _unbroken(name, draw, space))
    told += [_unbroken(", ".join(_named(roles, others)), draw, space) for draw, roles in _alike(scheme, others)]
    used = [name for role in (*weights, *others) for name in names_in(_spelled(scheme.roles[role], scheme).formula)]
    if numbers := [
        f"{name}{space}{scheme.parameters[name]}" for name in dict.fromkeys(used) if name in scheme.parameters
    ]:
        told.append(", ".join(numbers))
    if scheme.forward:
        told.append(f"forward: {', '.join(scheme.forward)}")
    return tuple(told)


def plan_in_short(plan: InitPlan) -> tuple[str, ...]:
    """Return what a plan draws, in numbers: 'all N(0.02)', 'out N(0.008) … N(0.004)' from the first layer to the last.

    Of norms, biases and multipliers only what isn't usual is told.
    """
    told: list[str] = []
    for usual, roles in ((False, WEIGHTS), (True, tuple(PLAIN))):
        drawn: dict[str, list[Role]] = {}
        there = [role for role in roles if plan.with_role(role)]
        for role in there:
            words = [str(entry.distribution) for entry in plan.with_role(role)]
            text = " … ".join(dict.fromkeys((words[0], words[-1])))
            if not usual or text != str(PLAIN[role]):
                drawn.setdefault(text, []).append(role)
        for text, alike in drawn.items():
            every = not usual and 2 * len(alike) > len(there)
            told.insert(0 if every else len(told), f"{'all' if every else ', '.join(_named(alike, there))} {text}")
    return tuple(told)


def _unbroken(name: str, draw: Draw, space: str) -> str:
    text = written(draw)
    whole = f"{name} {text}"
    if len(whole) <= UNBROKEN:
        return whole.replace(" ", space)
    return f"{name} {text.replace(' ', space) if len(text) <= UNBROKEN else text}"


def _alike(scheme: Scheme, roles: Iterable[Role]) -> list[tuple[Draw, list[Role]]]:
    sharing: dict[Draw, list[Role]] = {}
    for role in roles:
        sharing.setdefault(_spelled(scheme.roles[role], scheme), []).append(role)
    return list(sharing.items())


def _spelled(draw: Draw, scheme: Scheme) -> Draw:
    """Return a draw with the scheme's defaults in it; a cut with all of their numbers."""
    formula = spelled_out(draw.formula, scheme)
    if formula == "0":
        return Draw("constant", "0")
    cut = draw.cut and _number_of(spelled_out(draw.cut, scheme, numbers=True))
    return Draw(draw.distribution, formula, cut=cut, corrected=draw.corrected)


def _number_of(formula: str) -> str:
    """Return the value of a formula of numbers; another formula as it is."""
    try:
        return f"{evaluate(formula, {}):.4g}"
    except PlanError:
        return formula


def _named(roles: Iterable[Role], of: Iterable[Role]) -> list[str]:
    """Name roles in short: whole groups, as far as the scheme has them, by the group's name."""
    left, of, names = list(roles), tuple(of), list[tuple[Role, str]]()
    for group, name in GROUPS:
        had = [role for role in group if role in of]
        if had and all(role in left for role in had):
            names.append((had[0], name))
            left = [role for role in left if role not in had]
    order = list(Role)
    return [name for _, name in sorted(names, key=lambda one: order.index(one[0]))]


def truncations(scheme: Scheme) -> list[str]:
    """Say for every cut of a scheme where it lies, whether the variance is corrected for it, and what std it leaves."""
    cuts = {
        (draw.cut, draw.corrected): None
        for role, draw in scheme.roles.items()
        if draw.distribution == "truncated" and draw.cut is not None
    }
    return [_truncation(cut, corrected, scheme) for cut, corrected in cuts]


def _truncation(cut: str, corrected: bool, scheme: Scheme) -> str:
    number = _number_of(spelled_out(cut, scheme, numbers=True))
    where = f"TN is cut at {number} sigmas" + ("" if cut == number else f" ({cut}, by default)")
    left = "less than sigma"
    if is_number(number):
        left = f"{Truncated(1.0, float(number)).std:.4f} of sigma"
    else:
        where = f"TN is cut at {cut} sigmas"
    if corrected:
        return f"{where} and corrected: its number is the std that is left, which is {left}"
    return f"{where} and not corrected: its number is sigma, and the std that is left is {left}"
