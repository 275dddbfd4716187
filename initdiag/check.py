"""The use case `check`: from targets to a Report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from initdiag.advice import advised
from initdiag.case import case_of, diagnose, kept_weights
from initdiag.errors import UsageError
from initdiag.predict import again
from initdiag.request import Path, Progress, Request

if TYPE_CHECKING:
    from initdiag.engines import Settings
    from initdiag.report import Report


def check(
    *targets: Any,
    scheme: str | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
    text: Path | None = None,
    tokens: Path | None = None,
    tokenizer: Path | None = None,
    settings: Settings | None = None,
    kwargs: Mapping[str, Any] | None = None,
    vocab_size: int | None = None,
    causal: bool | None = None,
    trust_remote_code: bool = False,
    backward: bool = False,
    expect: Path | Mapping[str, Any] | None = None,
    command: str = "",
    progress: Progress | None = None,
) -> Report:
    """Run every target once and judge it.

    Args:
        targets: your own nn.Module, a function that builds one, or an `initdiag.Subject`; an import path
            ("pkg.model:GPT", "model.py:build"); a Hugging Face config.json or its folder; or a config of the reference
            Transformer: a YAML file, the name of a shipped one, a mapping with its sections.
        scheme, seed: in place of the config's own; for a module, draw its weights anew by this scheme.
        overrides: as after --set: "init.std=0.01".
        text, tokens: a text file, or a .bin or .npy file of token ids, in place of the config's tokens.
        tokenizer: a tokenizer.json for the text; without it, its bytes are the tokens.
        settings: device, dtype, threads and engine.
        kwargs: arguments of the class or function that an import path names; fields of a Hugging Face config.
        vocab_size: V of a module, where it can't be found in it.
        causal: False for a model whose positions may see later ones.
        trust_remote_code: let a Hugging Face config run the code that comes with it.
        backward: run a backward as well.
        expect: for a module, a config of the model that it should be; overrides of model and init are then about that.
        command, progress: for the report and for a person who waits.

    Returns:
        A Report with one run per target; `report.verdict` is "pass" or "fail". A module comes back as it was.

    Raises:
        ConfigError, UsageError, TokenError, PlanError: bad input, before anything runs.
        RunError: the model can't be built, or the forward could not be run.
    """
    if not targets:
        raise UsageError("nothing to check; expected a config file, a shipped config or a module")
    request = Request(
        scheme=scheme,
        seed=seed,
        overrides=overrides,
        text=text,
        tokens=tokens,
        tokenizer=tokenizer,
        settings=settings,
        kwargs=kwargs if kwargs is not None else {},
        vocab_size=vocab_size,
        causal=causal,
        trust_remote_code=trust_remote_code,
        backward=backward,
        expect=expect,
    )
    cases = [case_of(target, request, progress) for target in targets]
    runs = []
    for i, (target, case) in enumerate(zip(targets, cases, strict=True)):
        told = f"run {i + 1} of {len(cases)}: " if len(cases) > 1 else ""
        with kept_weights(case.subject) if case.subject.drawn_by_us else nullcontext():
            run = diagnose(case, request, progress, told=told)[0]
        runs.append(run if case.subject.architecture is None else advised(run, request, again(target)))
    from initdiag.report import Report  # only here: the errors of a config need no rules

    return Report(tuple(runs), command)


def assert_healthy(*targets: Any, **arguments: Any) -> Report:
    """Check, and raise an AssertionError that holds every finding if any of them is an error: for a test.

    Arguments and other errors are those of `check`.
    """
    report = check(*targets, **arguments)
    if report.verdict == "fail":
        from initdiag.report import findings_text

        raise AssertionError(findings_text(report))
    return report
