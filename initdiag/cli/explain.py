"""initdiag rule, initdiag scheme: what there is, explained from the data itself."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from initdiag.cli import options
from initdiag.cli.output import style_of, write


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
    color: options.Color = "auto",
    debug: options.Debug = False,
) -> None:
    """Explain a scheme: what every role is drawn from, its parameters and its source. Without NAME: list all."""
    from initdiag.report.reference import scheme_list, scheme_page
    from initdiag.schemes import scheme_named

    style = style_of(sys.stdout, color)
    write(scheme_list(style) if name is None else scheme_page(scheme_named(name), style))
