"""Initialization as data: distributions, roles, schemes, and the plan that a scheme makes for a model."""

from __future__ import annotations

from initdiag.errors import UsageError, did_you_mean, printable
from initdiag.schemes.custom import CUSTOM, with_roles
from initdiag.schemes.data_dependent import DATA_DEPENDENT_SCHEMES
from initdiag.schemes.depth import DEPTH_SCHEMES
from initdiag.schemes.distributions import (
    AsFound,
    Constant,
    Distribution,
    Normal,
    Orthogonal,
    Packed,
    Truncated,
    Uniform,
)
from initdiag.schemes.entry_points import offered, offered_scheme
from initdiag.schemes.gpt2 import GPT2_SCHEMES
from initdiag.schemes.llama import LLAMA_SCHEMES
from initdiag.schemes.megatron import MEGATRON_SCHEMES
from initdiag.schemes.mup import MUP_SCHEMES
from initdiag.schemes.olmo import OLMO_SCHEMES
from initdiag.schemes.original import ORIGINAL_SCHEMES
from initdiag.schemes.parameter import Parameter, Part
from initdiag.schemes.plan import InitPlan, PlannedParameter, make_plan
from initdiag.schemes.pytorch import PYTORCH_SCHEMES
from initdiag.schemes.roles import Role
from initdiag.schemes.scheme import Draw, Scheme
from initdiag.schemes.speedrun import SPEEDRUN_SCHEMES

SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        *PYTORCH_SCHEMES,
        *ORIGINAL_SCHEMES,
        *GPT2_SCHEMES,
        *MEGATRON_SCHEMES,
        *LLAMA_SCHEMES,
        *OLMO_SCHEMES,
        *SPEEDRUN_SCHEMES,
        *MUP_SCHEMES,
        *DEPTH_SCHEMES,
        *DATA_DEPENDENT_SCHEMES,
    )
}
_ALIASES = {alias: scheme for scheme in SCHEMES.values() for alias in scheme.aliases}


def scheme_named(name: str) -> Scheme:
    """Return a scheme: of the table, by its name or an alias, else of an entry point of another distribution.

    Raises:
        UsageError: there is no scheme of that name, or the entry point of that name is broken.
    """
    scheme = SCHEMES.get(name) or _ALIASES.get(name) or offered_scheme(name)
    if scheme is None:
        raise UsageError(f"unknown scheme '{printable(name[:60])}'; {expected_name(name)}")
    return scheme


def scheme_names() -> tuple[str, ...]:
    """Return the names of all schemes, those of other distributions last, without loading any of them."""
    own = {*SCHEMES, *_ALIASES, CUSTOM.name}  # which no other distribution can take
    return (*SCHEMES, *(name for name in offered() if name not in own))


def known_schemes() -> dict[str, Scheme | UsageError]:
    """Return all schemes by name, those of other distributions last; in place of one that can't be used, why."""
    return {name: _scheme_or_error(name) for name in scheme_names()}


def _scheme_or_error(name: str) -> Scheme | UsageError:
    try:
        return scheme_named(name)
    except UsageError as error:
        return error


def expected_name(name: str) -> str:
    """Say what a name of no scheme should have been: 'expected one of the 60 that …'."""
    names = scheme_names()
    near = [known for known in names if name.lower() in known] if len(name) > 2 else []
    guess = f" (did you mean one of {', '.join(near)}?)" if len(near) > 1 else ""
    guess = guess or did_you_mean(name[:60].lower(), (*names, *_ALIASES))
    return f"expected one of the {len(names)} that 'initdiag scheme' lists{guess}"


__all__ = [
    "CUSTOM",
    "SCHEMES",
    "AsFound",
    "Constant",
    "Distribution",
    "Draw",
    "InitPlan",
    "Normal",
    "Orthogonal",
    "Packed",
    "Parameter",
    "Part",
    "PlannedParameter",
    "Role",
    "Scheme",
    "Truncated",
    "Uniform",
    "expected_name",
    "known_schemes",
    "make_plan",
    "scheme_named",
    "scheme_names",
    "with_roles",
]
