"""initdiag plan"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from initdiag.cli import options
from initdiag.cli.output import require_no_input, style_of, write
from initdiag.cli.progress import Progress
from initdiag.engines import Settings
from initdiag.errors import require_one_of
from initdiag.plan import plan as run_plan

FORMATS = ("table", "json")


def plan(
    target: Annotated[str, typer.Argument(help=options.TARGET)],
    scheme: options.Scheme = None,
    seed: options.Seed = None,
    set_: options.Set = None,
    kwargs: options.Kwargs = None,
    vocab_size: options.VocabSize = None,
    trust_remote_code: options.TrustRemoteCode = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    threads: options.Threads = None,
    engine: options.Engine = None,
    output_format: Annotated[
        str, typer.Option("--output-format", metavar="NAME", help=f"One of {', '.join(FORMATS)}.")
    ] = "table",
    output_file: options.Output = None,
    color: options.Color = "auto",
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """List every parameter: shape, role, what it is drawn from, and the std that was drawn.

    A module runs once, which shows what its parameters are for; without --scheme it keeps its own weights.
    """
    require_no_input(output_file, [target, kwargs])
    require_one_of("--output-format", output_format, FORMATS)
    arguments = options.arguments(kwargs)
    with Progress(quiet) as progress:
        planned = run_plan(
            target,
            scheme=scheme,
            seed=seed,
            overrides=set_ or (),
            settings=Settings(device, dtype, threads, engine, own_process=True),
            kwargs=arguments,
            vocab_size=vocab_size,
            trust_remote_code=trust_remote_code,
            progress=progress,
        )
    from initdiag.report.planned import as_json, as_table  # only here: the errors of a config need neither

    text = as_json(planned) if output_format == "json" else as_table(planned, style_of(sys.stdout, color))
    write(text, output_file)
