"""initdiag schema, initdiag new"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from initdiag.cli import options
from initdiag.cli.output import style_of, write
from initdiag.errors import UsageError


def schema(debug: options.Debug = False) -> None:
    """Print the JSON schema of config files, for editors."""
    from initdiag.config.json_schema import text

    write(text())


def new(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Where to write it, e.g. my.yaml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the shipped configs instead.")] = False,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="NAME", help="Copy this shipped config (see --list) instead.")
    ] = None,
    color: options.Color = "auto",
    debug: options.Debug = False,
) -> None:
    """Write a commented config to start from; with --list, see what is shipped: 'initdiag check NAME' takes these."""
    from initdiag.config.starter import write_starter

    if list_:
        from initdiag.config.presets import described
        from initdiag.report.preset_list import preset_list

        write(preset_list(described(), style_of(sys.stdout, color)))
        return
    if file is None:
        raise UsageError("no file to write; expected a name such as my.yaml, or --list")
    write_starter(file, force, from_)
    print(f"initdiag: wrote {file}; try: initdiag check {file}", file=sys.stderr)
