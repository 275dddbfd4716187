"""The program `initdiag`. Nothing here, nor in what it imports at once, imports torch."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from initdiag.cli.check import check
from initdiag.cli.compare import compare
from initdiag.cli.config_files import new, schema
from initdiag.cli.explain import rule, scheme
from initdiag.cli.failure import guarded
from initdiag.cli.plan import plan
from initdiag.versions import own_version

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (check, compare, plan, rule, scheme, schema, new):
    app.command()(command)


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"initdiag {own_version()}\n")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None:
    """See what a Transformer does before its first optimizer step, and whether its init kept its promise.

    Start with: initdiag check gpt2
    """


def main() -> None:
    """Run the program and exit with its code."""
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")  # torch's complaint; nothing here needs it
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # an ASCII terminal gets '?', not a traceback
    sys.exit(guarded(lambda: app(prog_name="initdiag")))
