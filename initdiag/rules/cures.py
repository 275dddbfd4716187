"""What to write into a config of the reference Transformer so that a finding goes away: keys that it really has."""

from __future__ import annotations

import math
from collections.abc import Container

from initdiag.schemes import SCHEMES, Draw, Role
from initdiag.schemes.roles import RESIDUAL_PROJECTIONS
from initdiag.subjects import Subject

# The keys of a config that say how matrices are drawn; the first that is set counts
RESIDUAL_PLACES = (*(f"init.roles.{role}" for role in RESIDUAL_PROJECTIONS), "init.residual_std", "init.scheme")
ATTENTION_PLACES = ("init.roles.attention_query", "init.roles.attention_key", "init.std", "init.scheme")

FAR = 3.0  # times as wide: queries or keys alone are what is wrong, where they are wrong

# The same matrices with the residual scaling, where a scheme has a sibling or a setting for that.
SCALED = {
    "gpt2": "init.scheme: scaled",
    "gpt2-release": "init.scheme: scaled",
    "bert": "init.scheme: cerebras",
    "wang": "init.scheme: bigscience",
    "deepseek": 'init.residual_std: "std / sqrt(2 * n_layers)"',
    "lingua": "init.factor: global",
    "depth-mup": "init.scheme: completep",
    "minicpm": 'init.depth_scale: "1 / sqrt(2)"',
}


def scaled_with_depth(subject: Subject, scaling_ratio: float) -> str:
    """Say how a config brings Σ branch variance to that of one unscaled branch (see ResidualMeasure.scaling_ratio)."""
    name, shape = subject.plan.scheme, subject.architecture
    if name in SCALED:
        return SCALED[name]
    if shape is not None and shape.residual_multiplier != 1 and "residual_multiplier" not in _demanded(subject):
        by_branch = isinstance(shape.residual_multiplier, tuple)
        return f"divide model.residual_multiplier{' of every branch' if by_branch else ''} by {scaling_ratio**0.5:.3g}"
    draws = SCHEMES[name].roles if name in SCHEMES else {}
    own = (
        f"{role}: {_over_depth(draws.get(role) or Draw('normal', f'{subject.residual_stds[role]:.3g}'))}"
        for role in RESIDUAL_PROJECTIONS
        if subject.residual_stds.get(role)  # those of zeros stay
    )
    return f"init.roles: {{{', '.join(own)}}}"


def _over_depth(draw: Draw) -> str:
    """Write, for init.roles, a draw that is this one over √(2N), and what it is without that."""
    formula = draw.unscaled or draw.formula
    rest = (f', cut: "{draw.cut}"' if draw.cut else "") + (", corrected: true" if draw.corrected else "")
    return f'{{{draw.distribution}: "{formula} / sqrt(2 * n_layers)", unscaled: "{formula}"{rest}}}'


def head_drawn(subject: Subject, std: str) -> str:
    """Say how a config draws the matrix that gives the logits with another std, and nothing else."""
    return f"init.roles: {{{_head_role(subject)}: {{normal: {std}}}}}"


def all_drawn(subject: Subject, std: str) -> str:
    """Say how a config draws all matrices with another std; nothing where the head has one of its own."""
    return f"init.std: {std}" if subject.plan.settings.get("std") == subject.head_std else ""


def head_places(subject: Subject) -> tuple[str, ...]:
    """The keys of a config that say how the matrix is drawn that gives the logits; the first that is set counts."""
    role = _head_role(subject)
    own = "init.head_std" if role is Role.LM_HEAD else "init.embedding_std"
    return f"init.roles.{role}", own, "init.std", "init.scheme"


def written(*lines: str) -> tuple[str, ...]:
    """Keep the lines of a config that say something."""
    return tuple(line for line in lines if line)


def _head_role(subject: Subject) -> Role:
    return Role.LM_HEAD if subject.plan.with_role(Role.LM_HEAD) else Role.TOKEN_EMBEDDING


def logits_multiplied(subject: Subject, factor: float) -> str:
    """Say how a config multiplies the logits; nothing where the scheme has its own factor, which goes before."""
    if subject.architecture is None or "logit_multiplier" in _demanded(subject):
        return ""
    return f"model.logit_multiplier: {round_down(factor * subject.architecture.logit_multiplier)}"


def cooler_lines(subject: Subject, logit_std: float) -> tuple[str, ...]:
    """The same as lines of a config."""
    said = cooler_attention(subject, logit_std)
    return tuple(said[said.index(key) :] for key in ("model.attention_scale: ", "init.roles: ") if key in said)


def cooler_attention(subject: Subject, logit_std: float) -> str:
    """Say what brings the std of attention logits from what it is to 1."""
    shape, times = subject.architecture, logit_std**-0.5
    if shape is not None and shape.qk_norm != "none":
        text = f"norms on queries and keys undo their std: multiply the attention scale by {1 / logit_std:.2g}"
        key = f", model.attention_scale: {round_down(shape.attention_scale / logit_std)}"
        return text if "attention_scale" in _demanded(subject) else text + key
    roles = (Role.ATTENTION_QUERY, Role.ATTENTION_KEY)
    stds = {role: entries[0].distribution.std for role in roles if (entries := subject.plan.with_role(role))}
    wide, narrow = sorted(stds, key=lambda role: -stds[role]) if len(stds) == len(roles) else (roles[0], roles[0])
    if shape is not None and 0 < FAR * stds.get(narrow, 0.0) < stds.get(wide, 0.0):
        drawn = f"init.roles: {{{wide}: {{normal: {round_down(stds[wide] / logit_std)}}}}}"
        times_as_wide = f"the std of {wide} is {stds[wide] / stds[narrow]:.2g} times that of {narrow}"
        return f"{times_as_wide}: divide it by {logit_std:.2g} to bring the logit std to 1: {drawn}"
    text = f"multiply the std of query and key by {times:.2g} to bring the logit std to 1"
    if shape is None:
        return f"{text}, and check that the logits are divided by √head_dim"
    own = ", ".join(f"{role}: {{normal: {round_down(std * times)}}}" for role, std in stds.items() if std > 0)
    return f"{text}: init.roles: {{{own}}}" if own else text


def _demanded(subject: Subject) -> Container[str]:
    """Fields of `model:` that the scheme decides, whatever the config says."""
    name = subject.plan.scheme.partition("+")[0]
    return SCHEMES[name].forward if name in SCHEMES else ()


def round_down(value: float) -> str:
    """Two significant digits, rounded towards zero, so that the advice is inside the limit."""
    if not (value > 0 and math.isfinite(value)):
        return f"{value:g}"
    digits = 1 - math.floor(math.log10(value))
    return f"{math.floor(value * 10**digits) / 10**digits:.12g}"
