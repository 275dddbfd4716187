"""Initialization as data: distributions, roles, schemes, and the plan that a scheme makes for a model."""

from __future__ import annotations

from initdiag.errors import UsageError, did_you_mean
from initdiag.schemes.distributions import AsFound, Constant, Distribution, Normal, Truncated, Uniform
from initdiag.schemes.gpt2 import GPT2, SCALED
from initdiag.schemes.plan import InitPlan, Parameter, Part, PlannedParameter, make_plan
from initdiag.schemes.pytorch import DEFAULT
from initdiag.schemes.roles import Role
from initdiag.schemes.scheme import Draw, Scheme

SCHEMES: dict[str, Scheme] = {scheme.name: scheme for scheme in (DEFAULT, GPT2, SCALED)}


def scheme_named(name: str) -> Scheme:
    """Return a scheme of the table.

    Raises:
        UsageError: there is no scheme of that name.
    """
    if name not in SCHEMES:
        raise UsageError(f"unknown scheme '{name}'; expected one of {', '.join(SCHEMES)}{did_you_mean(name, SCHEMES)}")
    return SCHEMES[name]


__all__ = [
    "SCHEMES",
    "AsFound",
    "Constant",
    "Distribution",
    "Draw",
    "InitPlan",
    "Normal",
    "Parameter",
    "Part",
    "PlannedParameter",
    "Role",
    "Scheme",
    "Truncated",
    "Uniform",
    "make_plan",
    "scheme_named",
]
