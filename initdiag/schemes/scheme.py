"""A scheme: an answer, for every role, to "what is this parameter drawn from?". Data, not code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from initdiag.schemes.roles import Role


@dataclass(frozen=True)
class Draw:
    """A distribution whose one number is still a formula, e.g. Draw("normal", "std / sqrt(2 * n_layers)").

    `unscaled` is the same number without the part of it that depends on depth, where there is such a part: the
    residual scaling that a model really has is measured against it.
    """

    distribution: str
    formula: str
    unscaled: str | None = None

    def __str__(self) -> str:
        return {"normal": f"N({self.formula})", "uniform": f"U({self.formula})"}.get(self.distribution, self.formula)


@dataclass(frozen=True)
class Scheme:
    """One published way to initialize a Transformer.

    `parameters` are what a user may set in YAML: name -> the default, itself a formula. `roles` answers per role.
    """

    name: str
    summary: str
    source: str
    roles: Mapping[Role, Draw]
    parameters: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
