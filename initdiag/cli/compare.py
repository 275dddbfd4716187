"""initdiag compare"""

from __future__ import annotations

from typing import Annotated

import typer

from initdiag.cli import options
from initdiag.cli.check import deliver
from initdiag.cli.command_line import command_line
from initdiag.cli.output import require_no_input
from initdiag.cli.progress import Progress
from initdiag.compare import DEFAULT_SCHEMES, DEFAULT_TARGET
from initdiag.compare import compare as run_compare
from initdiag.engines import Settings
from initdiag.report import require_format


def compare(
    target: Annotated[str, typer.Argument(help=options.TARGET)] = DEFAULT_TARGET,
    schemes: Annotated[str, typer.Option("--schemes", metavar="A,B,…", help="Schemes to put side by side.")] = ",".join(
        DEFAULT_SCHEMES
    ),
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="K", help="Run K seeds; cells are mean ± standard deviation.")
    ] = 1,
    seed: options.Seed = None,
    set_: options.Set = None,
    text: options.Text = None,
    tokens: options.Tokens = None,
    tokenizer: options.Tokenizer = None,
    kwargs: options.Kwargs = None,
    vocab_size: options.VocabSize = None,
    trust_remote_code: options.TrustRemoteCode = False,
    bidirectional: options.Bidirectional = False,
    backward: options.Backward = False,
    device: options.Device = "auto",
    dtype: options.Dtype = "float32",
    threads: options.Threads = None,
    engine: options.Engine = None,
    output_format: options.Format = "table",
    output_file: options.Output = None,
    exit_zero: options.ExitZero = False,
    color: options.Color = "auto",
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Put init schemes side by side on one model, with the same random draws, and pick one.

    Exit code 1 if any scheme has findings of severity error.
    """
    require_format(output_format)
    require_no_input(output_file, [target, text, tokens, tokenizer, kwargs])
    arguments = options.arguments(kwargs)
    names = [name.strip() for name in schemes.split(",") if name.strip()]
    with Progress(quiet) as progress:
        report = run_compare(
            target,
            schemes=names,
            seed=seed,
            seeds=seeds,
            overrides=set_ or (),
            text=text,
            tokens=tokens,
            tokenizer=tokenizer,
            settings=Settings(device, dtype, threads, engine, own_process=True),
            kwargs=arguments,
            vocab_size=vocab_size,
            causal=False if bidirectional else None,
            trust_remote_code=trust_remote_code,
            backward=backward,
            command=command_line(),
            progress=progress,
        )
    deliver(report, output_format, output_file, color, exit_zero)
