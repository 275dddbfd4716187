"""What is diagnosed: a model that can be built, the plan for its weights, and how to call it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

from initdiag.errors import Place
from initdiag.schemes import InitPlan, Role
from initdiag.schemes.roles import RESIDUAL_PROJECTIONS
from initdiag.subjects.history import NOT_WATCHED, InitHistory
from initdiag.weightless import Law

if TYPE_CHECKING:
    from torch import Tensor, nn

    from initdiag.model import Architecture


UNIT = 2.0  # the largest logit std that doesn't fail by itself (gate.max_logit_std)


def _nowhere(*_: str) -> None:
    return None


UNPLANNED = InitPlan("as built", {}, ())


@dataclass(frozen=True)
class Declared:
    """What a model's config, or its user, promises; None where nothing is said.

    std: of its matrices (Hugging Face's initializer_range). tied: the head shares the embedding's storage. causal: no
    position sees later ones. residual_scaling: residual projections are scaled with depth. context: tokens that it
    can read at most. embedding_multiplier: the embedding is multiplied, or
    normed, on its way into the stream.
    """

    std: float | None = None
    tied: bool | None = None
    causal: bool | None = None
    residual_scaling: bool | None = None
    context: int | None = None
    embedding_multiplier: bool | None = None


@dataclass(frozen=True)
class Subject:
    """What is diagnosed: a module, or how to build one, with its vocabulary and the plan for its weights.

    Of your own, `initdiag.Subject(module, forward=..., vocab_size=..., name=...)`:

    module: an nn.Module whose weights are looked at as they are; None where build() makes it.
    forward(module, ids (B, T) of int64): returns logits (B, T, V), or an object, tuple or dict that holds them, and a
        loss besides where it likes. Default: module(ids).
    vocab_size: V; 0 to find it in the module. name: for reports. causal: whether positions must not see later ones;
        None for what the module's config says, else yes.

    Set by the loaders:

    build() makes the module on torch's current default device. owned: the module was built for us, so that its weights
        are ours to draw and it may be moved.
    states and logits split the forward: states(module, ids) is what the head reads, (B, T, d_model), and
        logits(module, states (…, d_model), rows) the logits of a range of the vocabulary, (…, rows), so that the
        logits of all tokens never exist at once.
    unused: roles that the config draws and the model doesn't have.
    keys: where advice is about keys that aren't those of the user's own file, which they are and how to use them.
    locate(*paths) says who sets the first of some values of the config, for findings that point there.
    declared and history: what its config promises, and what its init code was seen to do.
    laws: what its large parameters, which have no memory (weightless engine), are drawn from; unrecorded: of which that
        isn't known, and why.
    options: what is typed after the target for this very model, such as "--set model.n_layers=4".
    plan: what the parameters are drawn from; of a module, roles are known when it has run once.
    likeness: of a module, the architecture of the reference Transformer that computes the same, where it is known.
    demands: what the scheme changed in the forward pass; of a module, what it asks of it besides the weights.
    """

    module: nn.Module | None = None
    forward: Callable[[nn.Module, Tensor], Any] | None = None
    vocab_size: int = 0
    name: str = ""
    causal: bool | None = None
    _: KW_ONLY
    target: str = ""
    options: tuple[str, ...] = ()
    plan: InitPlan = UNPLANNED
    demands: tuple[str, ...] = ()
    architecture: Architecture | None = None
    likeness: Architecture | None = None
    declared: Declared = Declared()
    history: InitHistory = NOT_WATCHED
    owned: bool = False
    laws: Mapping[str, Law] = field(default_factory=dict)
    unrecorded: Mapping[str, str] = field(default_factory=dict)
    build: Callable[[], nn.Module] | None = None
    states: Callable[[nn.Module, Tensor], Tensor] | None = None
    logits: Callable[[nn.Module, Tensor, slice], Tensor] | None = None
    unused: tuple[str, ...] = ()
    keys: str = ""
    locate: Callable[..., Place | None] = _nowhere

    @property
    def drawn_by_us(self) -> bool:
        """Whether a scheme of ours draws the weights; else they are taken as they are."""
        return self.plan.scheme != UNPLANNED.scheme

    @property
    def typed(self) -> str:
        """Target and options, as a command takes them."""
        return " ".join((self.target, *self.options))

    @property
    def head(self) -> str:
        """The name of the matrix that gives the logits; the embedding where the head is tied."""
        heads = self.plan.with_role(Role.LM_HEAD) or self.plan.with_role(Role.TOKEN_EMBEDDING)
        return heads[0].parameter.name if heads else "the head"

    @property
    def head_std(self) -> float:
        """The planned std of that matrix; nan where none was found."""
        head = self.plan.by_name.get(self.head)
        return head.distribution.std if head else math.nan

    @property
    def residual_projections(self) -> str:
        """The residual projections, in words: their names without the layer."""
        entries = self.plan.with_role(*RESIDUAL_PROJECTIONS)
        return " and ".join(without_layers(entry.parameter.name for entry in entries))

    @property
    def residual_stds(self) -> dict[str, float]:
        """The std of each role of residual projection before depth scaling (in the first layer)."""
        entries = self.plan.with_role(*RESIDUAL_PROJECTIONS)
        return {str(entry.parameter.role): entry.unscaled_std for entry in reversed(entries)}

    def declares_multiplier(self, tied: bool) -> bool:
        """Whether a tied head's large self-logit is the work of a declared embedding multiplier (or embedding norm).

        It is where the table itself, without the multiplier, would give logits of no more than about unit std, as in
        Gemma: a multiplier doesn't excuse an N(1) table.
        """
        shape, head = self.architecture, self.plan.by_name.get(self.head)
        if head is None or not tied:
            return False
        if shape is None:
            declared, times = bool(self.declared.embedding_multiplier), 1.0
        else:
            declared, times = shape.embedding_multiplier > 1 or shape.embedding_norm, shape.logit_multiplier
        return declared and self.head_std * math.sqrt(head.parameter.fan_in) * times <= UNIT


def without_layers(names: Iterable[str]) -> tuple[str, ...]:
    """Names with their layer numbers as *, each once."""
    return tuple(dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".*", name) for name in names))
