"""What the theory takes from an init plan: second moments of matrices, biases and gains."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from initdiag.errors import PlanError
from initdiag.schemes import Constant, InitPlan
from initdiag.schemes.distributions import Distribution

if TYPE_CHECKING:
    from initdiag.model.architecture import Architecture


class UnpredictableError(PlanError):
    """Theory has nothing to say about this model; the message says why."""


class UnlikeError(UnpredictableError):
    """What was measured isn't the model that was predicted: it has other branches."""


@dataclass(frozen=True)
class Model:
    """An architecture and the plan for its weights."""

    shape: Architecture
    plan: InitPlan

    def weight(self, linear: str) -> float:
        """The variance of the entries of a matrix, whose mean is 0."""
        return self._centred(f"{linear}.weight")

    def bias(self, linear: str) -> float:
        """The variance of the entries of a bias; 0 where there is none."""
        return self._centred(f"{linear}.bias") if f"{linear}.bias" in self.plan.by_name else 0.0

    def gain(self, name: str) -> float:
        """The mean square of what a norm or a learned multiplier multiplies by; 1 where it has no parameters."""
        entry = self.plan.by_name.get(f"{name}.weight")
        if entry is None:
            return 1.0
        law, one = entry.distribution, float(self.shape.norm_scale == "one_plus" and name.endswith("norm"))
        return (one + law.value) ** 2 if isinstance(law, Constant) else one + law.std**2

    def fan_out(self, linear: str) -> int:
        """How many outputs a matrix has."""
        return self.plan[f"{linear}.weight"].parameter.shape[-2]

    def law(self, name: str) -> Distribution | None:
        """What a parameter is drawn from; None where the model hasn't got it."""
        entry = self.plan.by_name.get(name)
        return entry.distribution if entry else None

    def _centred(self, name: str) -> float:
        law = self.plan[name].distribution
        if isinstance(law, Constant) and law.value != 0:
            raise UnpredictableError(
                f"'{name}' is the constant {law.value:g}: what it computes is the same in all features, which the wide "
                "limit has no answer for; expected a distribution of mean 0"
            )
        return law.std**2
