"""From a target to a run: what `check`, `compare` and `plan` have in common. It knows all rooms."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from initdiag.errors import PlanError, UsageError, require_type
from initdiag.inference import outside
from initdiag.request import Progress, Request, blocks_told
from initdiag.versions import versions

if TYPE_CHECKING:
    from initdiag.config import ConfigFile
    from initdiag.engines import Settings
    from initdiag.engines.dense import Weights
    from initdiag.measure import Measurements
    from initdiag.report import Run
    from initdiag.subjects import Subject
    from initdiag.tokens import TokenBatch


@dataclass(frozen=True)
class Case:
    """A subject, the settings it is judged by, the tokens that it will read, and the model that it should be, where
    somebody says so."""

    file: ConfigFile
    subject: Subject
    batch: TokenBatch
    promised: Subject | None = None

    @property
    def tokens(self) -> int:
        """B·T."""
        return self.batch.batch * self.batch.length


def case_of(target: Any, request: Request, progress: Progress | None = None) -> Case:
    """Prepare any target.

    Raises:
        ConfigError, UsageError, TokenError, PlanError: bad input.
        RunError: a module that can't be built, or looked at.
    """
    from initdiag import subjects

    if not subjects.is_module_target(target):
        if request.expect is not None:
            raise UsageError(
                f"--expect {name_of(request.expect)}: only for modules and Hugging Face configs; {name_of(target)} is "
                "a config, and says itself what to expect"
            )
        return prepare(configure(target, request))
    return module_case(load_module(target, request, progress), request)


@outside
def load_module(target: Any, request: Request, progress: Progress | None = None) -> Subject:
    """Build or take the module that a target names, on the device and in the dtype that are asked for."""
    from initdiag.engines import import_torch

    if progress:
        progress(f"{name_of(target)}: building the model")
    settings = request.run_settings
    import_torch(settings)
    from initdiag.engines import dense
    from initdiag.engines.choose import fits
    from initdiag.subjects.loading import load_module as load

    def loaded(lean: bool | None) -> Subject:
        return load(
            target,
            kwargs=request.kwargs,
            vocab_size=request.vocab_size or 0,
            causal=request.causal,
            trust_remote_code=request.trust_remote_code,
            seed=request.seed or 0,
            lean=lean,
        )

    subject = loaded({"weightless": True, "dense": False}.get(settings.engine or ""))
    unsure = bool(subject.laws or subject.unrecorded) and settings.engine != "weightless"  # by its size alone
    if unsure and fits(subject, settings, request.scheme is not None):
        subject = loaded(False)
    return replace(dense.placed(subject, settings), options=request.of_the_model)


def name_of(target: Any) -> str:
    """How a target is called before anything is known of it."""
    return target if isinstance(target, str) else getattr(target, "name", "") or type(target).__name__


def configure(target: Any, request: Request, *, drop_options: bool = False) -> ConfigFile:
    """Load a config and put the caller's words in place of the config's.

    With `drop_options`, an override of a parameter that the scheme doesn't have is dropped in silence.
    """
    from initdiag.config import Config, ConfigFile, from_mapping, load

    path = (str, os.PathLike)
    expected = (
        "a config file, a shipped config, a mapping, an import path such as pkg.model:GPT, a Hugging Face config.json, "
        "an nn.Module or an initdiag.Subject"
    )
    require_type("target", target, (*path, Mapping, Config, ConfigFile), expected)
    for name, given in (
        ("--kwargs", bool(request.kwargs)),
        ("--vocab-size", request.vocab_size is not None),
        ("--trust-remote-code", request.trust_remote_code),
        ("--bidirectional", request.causal is not None),
    ):
        if given:
            raise UsageError(f"{name}: only for modules and Hugging Face configs; {name_of(target)} is neither")
    if isinstance(target, ConfigFile):
        file = target
    elif isinstance(target, Mapping | Config):
        file = from_mapping(target, "config", request.overrides, request.scheme)
    else:
        file = load(os.fspath(target), request.overrides, request.scheme)
    return _worded(file, request, drop_options)


def _worded(file: ConfigFile, request: Request, drop_options: bool) -> ConfigFile:
    from initdiag.config import with_init, with_tokens

    file = with_init(file, scheme=request.scheme, seed=request.seed, drop_options=drop_options)
    text, tokens = request.text, request.tokens
    if text is not None or tokens is not None or request.tokenizer is not None:
        source = "text" if text is not None else "file" if tokens is not None else None
        path = text if text is not None else tokens
        file = with_tokens(file, source=source, path=path, tokenizer=request.tokenizer)
    return file


def prepare(file: ConfigFile) -> Case:
    """Plan the weights and read the tokens; everything that can be wrong without a model is found here."""
    from initdiag import subjects

    changes = dict.fromkeys(option for option in file.options.values() if option.startswith("--set"))
    return _read(file, replace(subjects.load(file), options=tuple(changes)))


def module_case(subject: Subject, request: Request, *, drop_options: bool = False) -> Case:
    """The case of a module: its settings are those of a config without a model, and a scheme plans by role."""
    from initdiag import config

    promised = promise(subject, request)
    if promised:  # --set of the model is about what is expected
        request = replace(request, overrides=[one for one in request.overrides if not _of_expected(one)])
    given = [one for one in request.overrides if re.match(r"\s*init\s*(=|\.(?!\s*seed\s*=))", one)]
    if request.scheme is None and given:
        raise UsageError(f"--set {given[0]}: {subject.name} draws its own weights; give a --scheme to draw them anew")
    file = config.without_model(
        subject.name, subject.target, subject.vocab_size, subject.declared.context, request.overrides, request.scheme
    )
    file = _worded(file, request, drop_options)
    case = replace(_read(file, subject), promised=promised)
    return replace(case, subject=planned(case, request.run_settings)) if request.scheme is not None else case


def promise(subject: Subject, request: Request) -> Subject | None:
    """Return the config that --expect names as a subject; --set model.… and init.… are about it.

    Raises:
        ConfigError, PlanError: it is wrong. UsageError: its vocabulary is another than the module's.
    """
    if request.expect is None:
        return None
    from initdiag import subjects
    from initdiag.subjects.targets import is_hf_config
    from initdiag.translated import translated

    target, asked = request.expect, Request(overrides=[one for one in request.overrides if _of_expected(one)])
    if isinstance(target, str | os.PathLike) and is_hf_config(os.fspath(target)):
        file = translated(target, asked)
    else:
        file = configure(target, asked)
    expected = subjects.load(file)
    if subject.vocab_size and subject.vocab_size != expected.vocab_size:
        raise UsageError(
            f"--expect {name_of(target)}: its vocabulary is {expected.vocab_size:,}, that of {subject.name} "
            f"{subject.vocab_size:,}; add --set model.vocab_size={subject.vocab_size}"
        )
    return expected


def _of_expected(override: str) -> bool:
    """Whether a --set is about a model or its init, and not about tokens, the gate, or the seed."""
    return re.match(r"\s*(model|init)\s*(=|\.(?!\s*seed\s*=))", override) is not None


@contextmanager
def kept_weights(subject: Subject) -> Iterator[None]:
    """Put the weights of a module back that is the caller's own, where a scheme is drawn over them."""
    if subject.module is None or subject.owned:
        yield
        return
    from initdiag.engines import dense

    with dense.own_weights(subject):
        yield


@outside
def planned(case: Case, settings: Settings, *, as_they_are: bool = False) -> Subject:
    """Plan a module's weights, by the config's scheme or as they are: one forward shows what every parameter is for."""
    from initdiag.config import scheme_of
    from initdiag.engines import dense, weightless
    from initdiag.engines.choose import choose
    from initdiag.measure.observe import as_built, survey
    from initdiag.measure.weights import measure_parameters
    from initdiag.report.demands import demands_with_numbers
    from initdiag.subjects.planned import plan_by_role

    init, subject = case.file.config.init, case.subject
    if choose(subject, case.tokens, settings).engine == "weightless":
        guessed = not as_they_are
        (roles, sizes), made = weightless.run(subject, case.batch, init.seed, settings, survey, guessed)
        weights = made.weights
    else:
        weights = dense.realize(subject, init.seed, dense.AS_THEY_ARE)
        roles, sizes = dense.forward(subject, weights, case.batch, survey)
    if as_they_are:
        return replace(subject, plan=as_built(subject, roles, measure_parameters(weights.module)))
    scheme = scheme_of(init)
    try:
        plan = plan_by_role(scheme, roles, sizes, init.parameters, weights.module)
    except PlanError as error:
        raise PlanError(f"{subject.name}: {error}") from error
    return replace(subject, demands=demands_with_numbers(scheme, sizes, plan.settings), plan=plan)


def _read(file: ConfigFile, subject: Subject) -> Case:
    from initdiag import rules, tokens

    config = file.config
    rules.selected(subject, config.gate)
    batch = tokens.read(
        config.tokens,
        vocab_size=subject.vocab_size,
        length=config.length,
        seed=config.token_seed,
        folder=file.folder,
    )
    return Case(file, subject, batch)


def require_room(case: Case, request: Request) -> None:
    """Check that a case can be run by the engine that would be chosen for it; imports no torch.

    Raises:
        RunError: its weights don't fit in memory, or its scheme needs real ones that the engine hasn't got.
    """
    from initdiag.engines.choose import choose
    from initdiag.engines.room import require

    settings = request.run_settings
    if settings.device in ("auto", "cpu") or settings.engine == "weightless":
        require(case.subject, choose(case.subject, case.tokens, settings).engine, settings)


@outside
def diagnose(
    case: Case, request: Request, progress: Progress | None = None, reuse: Weights | None = None, told: str = ""
) -> tuple[Run, Weights]:
    """Run a case and judge it; returns its weights too, for the next case to draw over. `told` begins its progress."""
    from initdiag import rules, theory
    from initdiag.engines import import_torch
    from initdiag.engines.choose import choose
    from initdiag.report import Run

    seed, settings, subject = case.file.config.init.seed, request.run_settings, case.subject
    chosen = choose(subject, case.tokens, settings)
    drawing = f"{subject.plan.scheme}, seed {seed}: " if subject.drawn_by_us else ""
    drawing += "drawing weights, " if subject.drawn_by_us and chosen.engine == "dense" else ""
    drawing += "weightless, " if chosen.engine == "weightless" else ""
    stage = f"{told}{subject.name}, {drawing}one forward{' and backward' if request.backward else ''}"
    if progress:
        progress(stage)
    import_torch(settings)  # only here, when all that can be wrong without it has been checked
    from initdiag.engines import dense, weightless
    from initdiag.measure.observe import observe

    def observed(of: Subject, module: Any, batch: TokenBatch) -> Measurements:
        return observe(of, module, batch, backward=request.backward)

    notes = None
    if chosen.engine == "weightless":
        measured, made = weightless.run(
            subject, case.batch, seed, settings, observed, tell=blocks_told(progress, stage)
        )
        weights, notes = made.weights, made.notes
    else:
        measured, weights = dense.run(subject, case.batch, seed, settings, observed, reuse)
    subject = replace(subject, plan=measured.plan)
    expected = theory.expect(subject, case.batch, measured, case.promised)
    findings = rules.judge(subject, measured, expected, case.file.config.gate)
    run = Run(
        subject=subject,
        batch=case.batch,
        seed=seed,
        engine=chosen.engine,
        why=chosen.why,
        notes=notes,
        dtype=dense.dtype_of(weights.module),
        measured=measured,
        expected=expected,
        findings=findings,
        versions={**versions(), **dense.environment(settings, weights.module)},
    )
    return run, weights
