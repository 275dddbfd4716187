"""Schemes of a user's own: single roles put over a published scheme, or all of them written down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from initdiag.schemes.roles import Role
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

CUSTOM = Scheme(
    name="custom",
    summary="nothing but what init.roles of the config says; norm scales are 1 and biases 0 unless it says otherwise",
    source="the config itself",
    roles=PLAIN,
)


def with_roles(scheme: Scheme, roles: Mapping[Role, Draw]) -> Scheme:
    """Return a scheme that answers for some roles as given here, and for all others as before.

    Its name tells it from the scheme below it, in few letters since it heads columns: 'gpt2+mlp_out', 'gpt2+3 roles';
    over CUSTOM it stays 'custom'. Parameters, choices and what is demanded of the forward pass stay the scheme's.
    """
    if not roles:
        return scheme
    own = next(iter(roles)) if len(roles) == 1 else f"{len(roles)} roles"
    name = CUSTOM.name if scheme.name == CUSTOM.name else f"{scheme.name}+{own}"
    return replace(scheme, name=name, roles={**scheme.roles, **roles}, aliases=())
