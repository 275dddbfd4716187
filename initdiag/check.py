"""The use case `check`: from targets to a Report. The only place, with its siblings, that knows all rooms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import TYPE_CHECKING, Any

from initdiag.errors import UsageError, require_type
from initdiag.versions import versions

if TYPE_CHECKING:
    from initdiag.config import ConfigFile
    from initdiag.engines import Settings
    from initdiag.engines.dense import Weights
    from initdiag.report import Report, Run
    from initdiag.subjects import Subject
    from initdiag.tokens import TokenBatch


Progress = Callable[[str], None]


def check(
    *targets: Any,
    scheme: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    text: str | os.PathLike[str] | None = None,
    tokens: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    settings: Settings | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Report:
    """Run every target once and judge it.

    Args:
        targets: YAML files, names of shipped configs, mappings with the sections of a config, or Config values.
        scheme, seed: in place of the config's own.
        overrides: as after --set: "init.std=0.01".
        text, tokens: a text file, or a .bin or .npy file of token ids, in place of the config's tokens.
        tokenizer: a tokenizer.json for the text; without it, its bytes are the tokens.
        settings: device, dtype and threads.
        command, progress: for the report and for a person who waits.

    Returns:
        A Report with one run per target; `report.verdict` is "pass" or "fail".

    Raises:
        ConfigError, UsageError, TokenError, PlanError: bad input, before anything runs.
        RunError: the forward could not be run.
    """
    from initdiag.report import Report

    if not targets:
        raise UsageError("nothing to check; expected a config file or the name of a shipped config")
    settings = as_settings(settings)
    overrides = as_overrides(overrides)
    files = [configure(target, scheme, seed, overrides, text, tokens, tokenizer) for target in targets]
    cases = [prepare(file) for file in files]
    runs = []
    for i, case in enumerate(cases):
        told = f"run {i + 1} of {len(cases)}: " if len(cases) > 1 else ""
        runs.append(diagnose(case, settings, progress, told=told)[0])
    return Report(tuple(runs), command)


def as_settings(settings: Settings | None) -> Settings:
    """Return the settings, or the defaults.

    Raises:
        UsageError: they are something else.
    """
    from initdiag.engines import Settings

    require_type("settings", settings, (Settings, NoneType), "initdiag.Settings(...)")
    return settings or Settings()


def as_overrides(overrides: Sequence[str]) -> tuple[str, ...]:
    """Check a sequence of overrides, and keep it for more than one use.

    Raises:
        UsageError: it is a single string, or holds something else than strings.
    """
    require_type("overrides", overrides, (list, tuple), 'a list such as ["init.std=0.01"]')
    for override in overrides:
        require_type("overrides", override, (str,), 'strings such as "init.std=0.01"')
    return tuple(overrides)


@dataclass(frozen=True)
class Case:
    """All that is known before a model gets its weights."""

    file: ConfigFile
    subject: Subject
    batch: TokenBatch


def configure(
    target: Any,
    scheme: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    text: str | os.PathLike[str] | None = None,
    tokens: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    *,
    drop_options: bool = False,
) -> ConfigFile:
    """Load a target and put the caller's words in place of the config's.

    With `drop_options`, an override of a parameter that the scheme doesn't have is dropped in silence.
    """
    from initdiag.config import Config, ConfigFile, from_mapping, load, with_init, with_tokens

    path = (str, os.PathLike)
    require_type("target", target, (*path, Mapping, Config, ConfigFile), "a config file, a shipped config or a mapping")
    require_type("scheme", scheme, (str, NoneType), "the name of a scheme")
    for name, value in (("text", text), ("tokens", tokens), ("tokenizer", tokenizer)):
        require_type(name, value, (*path, NoneType), "the name of a file")
    if text is not None and tokens is not None:
        raise UsageError(
            f"both a text ({os.fspath(text)}) and a token file ({os.fspath(tokens)}); expected one of them"
        )
    if isinstance(target, ConfigFile):
        file = target
    elif isinstance(target, Mapping | Config):
        file = from_mapping(target, "config", overrides)
    else:
        file = load(os.fspath(target), overrides)
    file = with_init(file, scheme=scheme, seed=seed, drop_options=drop_options)
    if text is not None or tokens is not None or tokenizer is not None:
        source = "text" if text is not None else "file" if tokens is not None else None
        file = with_tokens(file, source=source, path=text if text is not None else tokens, tokenizer=tokenizer)
    return file


def prepare(file: ConfigFile) -> Case:
    """Plan the weights and read the tokens; everything that can be wrong without a model is found here."""
    from initdiag import rules, subjects, tokens

    subject, config = subjects.load(file), file.config
    rules.selected(subject, config.gate)
    batch = tokens.read(
        config.tokens,
        vocab_size=subject.vocab_size,
        length=config.length,
        seed=config.token_seed,
        folder=file.folder,
    )
    return Case(file, subject, batch)


def diagnose(
    case: Case, settings: Settings, progress: Progress | None = None, reuse: Weights | None = None, told: str = ""
) -> tuple[Run, Weights]:
    """Run a case and judge it; returns its weights too, for the next case to draw over. `told` begins its progress."""
    from initdiag import rules, theory
    from initdiag.engines import import_torch
    from initdiag.report import Run

    seed = case.file.config.init.seed
    if progress:
        progress(f"{told}{case.subject.name}, {case.subject.plan.scheme}, seed {seed}: drawing weights, one forward")
    import_torch()  # only here, when all that can be wrong without it has been checked
    from initdiag.engines import dense
    from initdiag.measure.observe import observe

    measured, weights = dense.run(case.subject, case.batch, seed, settings, observe, reuse)
    expected = theory.expect(case.subject, case.batch, measured)
    findings = rules.judge(case.subject, measured, expected, case.file.config.gate)
    run = Run(
        subject=case.subject,
        batch=case.batch,
        seed=seed,
        engine="dense",
        dtype=settings.dtype,
        measured=measured,
        expected=expected,
        findings=findings,
        versions={**versions(), **dense.environment(settings)},
    )
    return run, weights
