"""The `init:` section of a config: which scheme draws the weights, and everything about it that can be set."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from initdiag.config.roles import Roles
from initdiag.config.scheme_fields import SchemeFields
from initdiag.schemes import CUSTOM, Scheme, scheme_named, with_roles

NO_PARAMETERS = ("scheme", "seed", "roles")


class Init(SchemeFields):
    """Which scheme draws the weights, and its parameters (`initdiag scheme NAME` lists them).

    Parameters are numbers, or formulas in quotes that may use the sizes of the model. Those of schemes of other
    distributions, which are not among the fields here, are taken as well.
    """

    model_config = ConfigDict(extra="allow", defer_build=False)

    seed: int = Field(
        default=0, ge=0, lt=2**63, description="seed of the weights, and of the tokens unless they have one"
    )
    roles: Roles | None = Field(
        default=None,
        description="single roles that are drawn differently from what the scheme says, such as {mlp_out: {normal: "
        '"0.02 / sqrt(2 * n_layers)"}, lm_head: 0}. They belong to the scheme above: another one by --scheme goes '
        "without them, but for those that --set gives; default: none",
    )

    @property
    def parameters(self) -> dict[str, float | str]:
        """The scheme parameters that were given."""
        given = {name: getattr(self, name) for name in type(self).model_fields} | (self.model_extra or {})
        return {name: value for name, value in given.items() if name not in NO_PARAMETERS and value is not None}


def base_scheme(name: str) -> Scheme:
    """Return the scheme that a config names, which `roles` go over.

    Raises:
        UsageError: as scheme_named.
    """
    return CUSTOM if name == CUSTOM.name else scheme_named(name)


def scheme_of(init: Init) -> Scheme:
    """Return the scheme that draws the weights: the named one, with the roles of the config over it.

    Raises:
        UsageError: as scheme_named.
    """
    return with_roles(base_scheme(init.scheme), init.roles.draws if init.roles else {})
