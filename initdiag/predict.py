"""The use case `predict`: from a config to a Report of what theory expects. No weights, no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from initdiag.advice import Again, advised
from initdiag.case import Case, configure, name_of, prepare
from initdiag.errors import UsageError
from initdiag.request import Path, Progress, Request
from initdiag.translated import translated
from initdiag.versions import versions

if TYPE_CHECKING:
    from initdiag.report import Report, Run
    from initdiag.subjects import Subject
    from initdiag.theory import Expectations
    from initdiag.theory.forward import Prediction


# In whose words advice on a config.json is written
KEYS = "keys are those of initdiag's own configs: try one with --set; init.std is initializer_range of config.json"


def predict(
    target: Any,
    *,
    scheme: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    text: Path | None = None,
    tokens: Path | None = None,
    tokenizer: Path | None = None,
    backward: bool = False,
    kwargs: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    command: str = "",
    progress: Progress | None = None,
) -> Report:
    """Predict what `check` would measure of a config, and judge that. Takes a fraction of a second at any width.

    Arguments are those of `check`; a Hugging Face config is taken for the architecture that its class computes, where
    the family is known. The report's run has the engine "theory"; its `measured` numbers are the predicted
    ones, and `expected.prediction.spreads` their standard deviations over draws of the weights. Rules that need
    weights are silent, so a pass is none of the tensors.

    Raises:
        ConfigError, UsageError, TokenError: bad input; a module, too, which theory knows nothing of.
        PlanError: a plan that can't be made, or that theory has no answer for (`theory.UnpredictableError`).
    """
    request = Request(
        scheme=scheme,
        seed=seed,
        overrides=overrides,
        text=text,
        tokens=tokens,
        tokenizer=tokenizer,
        backward=backward,
        kwargs=kwargs if kwargs is not None else {},
        trust_remote_code=trust_remote_code,
    )
    run = predicted(case_of(target, request), request, progress)
    from initdiag.report import Report  # only here: the errors of a config need no rules

    return Report((advised(run, request, again(target)),), command)


def again(target: Any) -> Again:
    """Return what predicts a target for a changed request."""
    return lambda request, brief: predicted(case_of(target, request), replace(request, backward=False), brief=brief)


def case_of(target: Any, request: Request) -> Case:
    """Prepare a target of which theory knows the architecture.

    Raises:
        ConfigError, UsageError, TokenError, PlanError: bad input.
    """
    from initdiag import subjects
    from initdiag.subjects.targets import is_hf_config

    if isinstance(target, str | os.PathLike) and is_hf_config(os.fspath(target)):
        bare = replace(request, overrides=(), scheme=None, kwargs={}, trust_remote_code=False)
        case = prepare(configure(translated(target, request), bare))
        return replace(case, subject=replace(case.subject, keys=KEYS))
    if subjects.is_module_target(target):
        raise UsageError(
            f"{name_of(target)}: theory needs an architecture that it knows; expected a config file, a shipped config, "
            "a mapping, or a Hugging Face config (`initdiag check` runs modules)"
        )
    return prepare(configure(target, request))


def predicted(
    case: Case, request: Request, progress: Progress | None = None, told: str = "", *, brief: bool = False
) -> Run:
    """Predict a case and judge it. `told` begins its progress; `brief`: as in theory.predict."""
    from initdiag import rules, theory
    from initdiag.report import THEORY, Run

    subject, seed = case.subject, case.file.config.init.seed
    if progress:
        progress(f"{told}{subject.name}, {subject.plan.scheme}: predicting")
    prediction = theory.predict(subject, case.batch, backward=request.backward, brief=brief)
    expected = _expectations(subject, prediction)
    return Run(
        subject=subject,
        batch=case.batch,
        seed=seed,
        engine=THEORY,
        dtype="",
        measured=prediction.values,
        expected=expected,
        findings=rules.judge(subject, prediction.values, expected, case.file.config.gate),
        versions=versions(),
    )


def _expectations(subject: Subject, prediction: Prediction) -> Expectations:
    """What `theory.expect` gives for a run, where the prediction stands for the run: the loss is the expected one."""
    from initdiag.theory import Expectations
    from initdiag.theory.expect import promised_scaling
    from initdiag.theory.loss import SURE

    values = prediction.values
    return Expectations(
        loss=values.loss.value,
        uniform_targets=values.loss.uniform_targets,
        allowance=SURE * prediction.spreads.loss,
        logit_std=values.logits.std,
        scaling_ratio=promised_scaling(subject.plan),
        prediction=prediction,
    )
