"""The use case `plan`: every parameter, what it is to be drawn from, and what was drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from initdiag.check import Progress, as_overrides, as_settings, configure

if TYPE_CHECKING:
    from initdiag.engines import Settings
    from initdiag.report.planned import Planned


def plan(
    target: Any,
    *,
    scheme: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> Planned:
    """Plan and draw the weights of a target; nothing is run. Arguments and errors as of `check`."""
    from initdiag import subjects
    from initdiag.engines import import_torch

    settings = as_settings(settings)
    file = configure(target, scheme, seed, as_overrides(overrides))
    subject = subjects.load(file)
    if progress:
        progress(f"{subject.name}: drawing weights")
    import_torch()
    from initdiag.engines import dense
    from initdiag.measure.observe import measure_parameters
    from initdiag.report.planned import Planned

    weights = dense.realize(subject, file.config.init.seed, settings)
    return Planned(subject, weights.seed, measure_parameters(weights.module))
