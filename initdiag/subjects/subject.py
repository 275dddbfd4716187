"""What is diagnosed: a model that can be built, the plan for its weights, and how to call it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from initdiag.errors import Place
from initdiag.schemes import InitPlan, Role
from initdiag.schemes.roles import RESIDUAL_PROJECTIONS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from initdiag.model import Architecture


UNIT = 1.2  # a logit std that is about 1


@dataclass(frozen=True)
class Subject:
    """A model before it has weights.

    build() returns it on torch's current default device, without drawing anything.
    states(module, ids (B, T)) returns what the head reads, (B, T, d_model).
    logits(module, states (…, d_model), rows) returns the logits of a range of the vocabulary, (…, rows), so that
    the logits of all tokens never exist at once.
    locate(path) says who sets a value of the config, for findings that point there.
    """

    name: str
    target: str
    vocab_size: int
    plan: InitPlan
    architecture: Architecture
    build: Callable[[], nn.Module]
    states: Callable[[nn.Module, Tensor], Tensor]
    logits: Callable[[nn.Module, Tensor, slice], Tensor]
    locate: Callable[[str], Place]

    @property
    def head(self) -> str:
        """The name of the matrix that gives the logits; the embedding where the head is tied."""
        heads = self.plan.with_role(Role.LM_HEAD) or self.plan.with_role(Role.TOKEN_EMBEDDING)
        return heads[0].parameter.name

    @property
    def head_std(self) -> float:
        """The planned std of that matrix."""
        return self.plan[self.head].distribution.std

    @property
    def residual_projections(self) -> str:
        """The residual projections, in words: their names without the layer."""
        entries = self.plan.with_role(*RESIDUAL_PROJECTIONS)
        return " and ".join(dict.fromkeys(re.sub(r"\.\d+\.", ".*.", entry.parameter.name) for entry in entries))

    @property
    def residual_stds(self) -> dict[str, float]:
        """The std of each role of residual projection before depth scaling (in the first layer)."""
        entries = self.plan.with_role(*RESIDUAL_PROJECTIONS)
        return {str(entry.parameter.role): entry.unscaled_std for entry in reversed(entries)}

    @property
    def declares_multiplier(self) -> bool:
        """Whether a tied head's large self-logit is the work of a declared embedding multiplier.

        It is where the table itself, without the multiplier, would give logits of no more than about unit std, as in
        Gemma: a multiplier doesn't excuse an N(1) table.
        """
        shape = self.architecture
        return shape.tied and shape.embedding_multiplier > 1 and self.head_std * math.sqrt(shape.d_model) <= UNIT
