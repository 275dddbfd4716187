"""The use case `plan`: every parameter, what it is to be drawn from, and what was drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from initdiag.case import configure, kept_weights, load_module, module_case, planned
from initdiag.request import Progress, Request

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
    kwargs: Mapping[str, Any] | None = None,
    vocab_size: int | None = None,
    trust_remote_code: bool = False,
    progress: Progress | None = None,
) -> Planned:
    """Plan and draw the weights of a target. A config is not run; a module runs once, which shows what its parameters
    are for, and keeps its own weights unless a scheme is given. Arguments and errors as of `check`.
    """
    from initdiag import subjects
    from initdiag.engines import import_torch
    from initdiag.engines.choose import choose

    request = Request(
        scheme=scheme,
        seed=seed,
        overrides=overrides,
        settings=settings,
        kwargs=kwargs if kwargs is not None else {},
        vocab_size=vocab_size,
        trust_remote_code=trust_remote_code,
    )
    if subjects.is_module_target(target):
        case = module_case(load_module(target, request, progress), request)
        subject = case.subject if scheme is not None else planned(case, request.run_settings, as_they_are=True)
        file = case.file
    else:
        file = configure(target, request)
        subject = subjects.load(file)
    tokens = file.config.tokens.batch * file.config.length
    engine = choose(subject, tokens, request.run_settings).engine
    if progress and subject.drawn_by_us:
        progress(f"{subject.name}: drawing weights")
    import_torch(request.run_settings)
    from initdiag.engines import dense, weightless
    from initdiag.measure.weights import measure_parameters
    from initdiag.report.planned import Planned

    seed, settings = file.config.init.seed, request.run_settings
    with kept_weights(subject):
        if engine == "weightless":
            weights = weightless.realize(subject, seed, settings, tokens).weights
        else:
            weights = dense.realize(subject, seed, settings)
        return Planned(subject, weights.seed, measure_parameters(weights.module))
