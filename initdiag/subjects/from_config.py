"""A config file as a Subject: the reference Transformer and the plan that the config's scheme makes for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from initdiag.config import ConfigFile, scheme_of
from initdiag.model.demands import changes
from initdiag.model.planning import planned
from initdiag.subjects.subject import Subject

if TYPE_CHECKING:
    from torch import Tensor, nn


def from_config(file: ConfigFile) -> Subject:
    """Plan the weights of the reference Transformer that a config describes. Imports no torch.

    Raises:
        PlanError, UsageError: the scheme can't answer for this model.
    """
    given, init = file.config.model, file.config.init
    shape, plan = planned(given, scheme_of(init), init.parameters)

    def build() -> nn.Module:
        from initdiag.model.transformer import Transformer

        return Transformer(shape)

    def states(module: nn.Module, ids: Tensor) -> Tensor:
        return cast("Tensor", module.states(ids))  # type: ignore[operator]

    def logits(module: nn.Module, hidden: Tensor, rows: slice) -> Tensor:
        return cast("Tensor", module.logits(hidden, rows))  # type: ignore[operator]

    return Subject(
        name=file.name,
        target=file.target,
        vocab_size=shape.vocab_size,
        causal=True,
        plan=plan,
        architecture=shape,
        demands=changes(shape, given),
        unused=tuple(str(role) for role in (init.roles.draws if init.roles else ()) if not plan.with_role(role)),
        build=build,
        states=states,
        logits=logits,
        locate=file.locate,
    )
