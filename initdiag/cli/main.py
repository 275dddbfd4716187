"""The program `initdiag`. Nothing here, nor in what it imports at once, imports torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from initdiag.cli.failure import guarded
from initdiag.cli.output import write
from initdiag.versions import own_version

COMMANDS = {  # in the order of --help: where the function of that name is, and what it does in a line
    "check": ("check", "Run a model once and judge it."),
    "compare": ("compare", "Put init schemes side by side."),
    "predict": ("predict", "Predict by theory what check measures."),
    "plan": ("plan", "List every parameter and its distribution."),
    "rule": ("explain", "Explain a rule, or list all."),
    "scheme": ("explain", "Explain an init scheme, or list all."),
    "schema": ("config_files", "Print the JSON schema of configs."),
    "new": ("config_files", "Write a config to start from."),
}


def app(commands: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the program with these of its commands."""
    made = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(top)
    for name in commands:
        module, summary = COMMANDS[name]
        made.command(short_help=summary)(getattr(import_module(f"initdiag.cli.{module}"), name))
    return made


def _version(wanted: bool) -> None:
    if wanted:
        write(f"initdiag {own_version()}\n")
        raise typer.Exit


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
    named = [name for name in sys.argv[1:2] if name in COMMANDS]  # alone: to build the options of all takes 50 ms
    return guarded(lambda: app(named or COMMANDS)(prog_name="initdiag"))
