"""initdiag rule, initdiag scheme: what there is, explained from the data itself."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from initdiag.cli import options
from initdiag.cli.output import style_of, write
from initdiag.cli.progress import Progress
from initdiag.errors import UsageError


def rule(
    name: Annotated[str | None, typer.Argument(metavar="ID", help="An id or a name.")] = None,
    color: options.Color = "auto",
    debug: options.Debug = False,
) -> None:
    """Explain a rule: what it does, why it matters, an example and what to write instead. Without ID: list all."""
    from initdiag.report.reference import rule_list, rule_page
    from initdiag.rules import rule_named

    style = style_of(sys.stdout, color)
    write(rule_list(style) if name is None else rule_page(rule_named(name), style))


def scheme(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="A scheme.")] = None,
    target: Annotated[
        str | None,
        typer.Option("--for", metavar="TARGET", help="A target of check: print an init function for it instead."),
    ] = None,
    kwargs: options.Kwargs = None,
    vocab_size: options.VocabSize = None,
    trust_remote_code: options.TrustRemoteCode = False,
    color: options.Color = "auto",
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Explain a scheme: what every role is drawn from, what it demands of the forward pass, its parameters, what it
    does with depth, its source and who used it. Without NAME: list all.

    With --for: print a function, ready to paste, that draws the weights of that model by the scheme.
    """
    from initdiag.report.scheme_pages import scheme_list, scheme_page
    from initdiag.schemes import Scheme, known_schemes, scheme_named

    if target is not None:
        write(_code(name, target, options.arguments(kwargs), vocab_size, trust_remote_code, quiet))
        return
    alone = {"--kwargs": kwargs, "--vocab-size": vocab_size, "--trust-remote-code": trust_remote_code}
    for option, given in alone.items():
        if given:
            raise UsageError(f"{option}: it belongs to a model; expected --for TARGET as well")
    style = style_of(sys.stdout, color)
    if name is not None:
        write(scheme_page(scheme_named(name), style))
        return
    known = known_schemes()
    good = [one for one in known.values() if isinstance(one, Scheme)]
    write(scheme_list(style, good, {name: str(one) for name, one in known.items() if not isinstance(one, Scheme)}))


def _code(
    name: str | None, target: str, kwargs: dict[str, Any], vocab_size: int | None, trust_remote_code: bool, quiet: bool
) -> str:
    """Plan a target's weights by a scheme and write the plan as Python.

    Raises:
        UsageError: no scheme is named, or there is none of that name; and as `case_of`.
    """
    from initdiag.case import case_of
    from initdiag.engines import Settings
    from initdiag.model.parameters import sizes
    from initdiag.report.init_code import init_code
    from initdiag.request import Request
    from initdiag.schemes import scheme_named

    if name is None:
        raise UsageError(f"--for {target}: no scheme is named; expected one before it (`initdiag scheme` lists all)")
    found = scheme_named(name)
    request = Request(
        scheme=found.name,
        settings=Settings(own_process=True),
        kwargs=kwargs,
        vocab_size=vocab_size,
        trust_remote_code=trust_remote_code,
    )
    with Progress(quiet) as progress:
        subject = case_of(target, request, progress).subject
    known = sizes(subject.architecture) if subject.architecture else {}
    return init_code(subject.plan, subject.name, found, known)
