"""What the lenses add to the forward's own numbers: weights, copies, own loss, probes, headroom, gradients, routers.

Definitions, units and healthy ranges: docs/concepts.md. No torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class RouterMeasure:
    """One router of a mixture of experts: its name, E experts, how many assignments it made, the largest share of
    them that one expert got, and the smallest."""

    name: str
    experts: int
    assignments: int
    max_share: float
    min_share: float


@dataclass(frozen=True)
class ParameterMeasure:
    """One parameter or buffer as it stands in the module: mean, std (population), how many entries are not finite.

    kurtosis: fourth standardised moment, 3 for a normal, 1.8 for a uniform (nan where std is 0). max_abs: largest
    |entry|. stable_rank: ‖A‖²_F/‖A‖²₂ of a sample A of at most 256 × 256 entries, over its smaller side (None for
    tensors of fewer than two axes). digest: hash of its bytes. buffer: it is no parameter. drawn: it has entries;
    else (weightless engine) mean, std and kurtosis are those of its law, max_abs the bound of a uniform one, and the
    rest isn't known.
    """

    name: str
    mean: float
    std: float
    not_finite: int
    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    kurtosis: float = math.nan
    max_abs: float = math.nan
    stable_rank: float | None = None
    digest: str = ""
    buffer: bool = False
    trainable: bool = True
    drawn: bool = True

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Copy:
    """Two tensors, or two blocks of rows, that hold the same numbers: `kind` is "equal", "scaled" or "rows"."""

    first: str
    second: str
    kind: str
    factor: float = 1.0


@dataclass(frozen=True)
class LabelMeasure:
    """The loss that the model returned itself, against cross-entropies of its own logits.

    argument: the argument that the labels were passed as. shifted: whether what was passed had already been shifted.
    value: the returned loss. shift: the shift of inputs against targets that explains it (None: none does); 1 is
    next-token prediction. reduction: "mean", "sum", or "other". reference: the mean cross-entropy at shift 1.
    """

    argument: str
    shifted: bool
    value: float
    shift: int | None
    reduction: str
    reference: float


@dataclass(frozen=True)
class ProbeMeasure:
    """What a short second forward shows, run with every all-zero matrix replaced by noise.

    leak: largest |change| of the logits of earlier positions when later tokens change, over the std of the logits.
    position: relative change of the first attention's output at the last position when earlier tokens are permuted
    (nan where no attention was found).
    """

    leak: float
    position: float
    causal: bool = True


@dataclass(frozen=True)
class HeadroomMeasure:
    """The largest |activation| of the forward (masks left out), and the module or weight that made it."""

    max_abs: float
    where: str


@dataclass(frozen=True)
class GradientMeasure:
    """One backward of the mean cross-entropy.

    norms: ‖∂ loss/∂ parameter‖₂ by parameter (frozen ones left out). not_finite: parameters with inf or nan in it.
    zero: parameters without any gradient at step zero. dead: those that still have none after `steps` SGD steps on a
    copy; skipped: why that was not found out, else "". Parameters that the loss doesn't depend on have no norm.
    """

    norms: tuple[tuple[str, float], ...]
    not_finite: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    steps: int = 0
    skipped: str = ""
