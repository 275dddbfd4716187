"""What to write into a config of the reference Transformer so that a finding goes away: keys that it really has."""

from __future__ import annotations

import math

from initdiag.model import Architecture
from initdiag.schemes import SCHEMES, Draw, Role
from initdiag.schemes.roles import RESIDUAL_PROJECTIONS
from initdiag.subjects import Subject

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
    if shape is not None and shape.residual_multiplier != 1:
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


def _head_role(subject: Subject) -> Role:
    return Role.LM_HEAD if subject.plan.with_role(Role.LM_HEAD) else Role.TOKEN_EMBEDDING


def logits_multiplied(shape: Architecture, scheme: str, factor: float) -> str:
    """Say how a config multiplies the logits; nothing where the scheme has its own factor, which goes before."""
    if scheme in SCHEMES and "logit_multiplier" in SCHEMES[scheme].forward:
        return ""
    return f"model.logit_multiplier: {round_down(factor * shape.logit_multiplier)}"


def round_down(value: float) -> str:
    """Two significant digits, rounded towards zero, so that the advice is inside the limit."""
    if not (value > 0 and math.isfinite(value)):
        return f"{value:g}"
    digits = 1 - math.floor(math.log10(value))
    return f"{math.floor(value * 10**digits) / 10**digits:.12g}"
