"""The program `initdiag`. Nothing here, nor in what it imports at once, imports torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from initdiag.cli.check import check
from initdiag.cli.compare import compare
from initdiag.cli.config_files import new, schema
from initdiag.cli.explain import rule, scheme
from initdiag.cli.failure import guarded
from initdiag.cli.output import write
from initdiag.cli.plan import plan
from initdiag.cli.predict import predict
from initdiag.versions import own_version

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command, summary in (
    (check, "Run a model once and judge it."),
    (compare, "Put init schemes side by side."),
    (predict, "Predict by theory what check measures."),
    (plan, "List every parameter and its distribution."),
    (rule, "Explain a rule, or list all."),
    (scheme, "Explain an init scheme, or list all."),
    (schema, "Print the JSON schema of configs."),
    (new, "Write a config to start from."),
):
    app.command(short_help=summary)(command)


def _version(wanted: bool) -> None:
    if wanted:
        write(f"initdiag {own_version()}\n")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """See what a Transformer does before its first optimizer step, and whether its init kept its promise.

    Start with: initdiag check gpt2
    """


def run() -> int:
    """Run the program and return its exit code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell: `>&-`
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the exit
        if hasattr(stream := getattr(sys, name), "reconfigure"):
            stream.reconfigure(errors="replace")  # an ASCII terminal gets '?', not a traceback
    return guarded(lambda: app(prog_name="initdiag"))
