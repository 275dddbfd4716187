"""initdiag check"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from initdiag.check import check as run_check
from initdiag.cli import options
from initdiag.cli.command_line import command_line
from initdiag.cli.failure import Exit
from initdiag.cli.output import require_no_input, style_of, write
from initdiag.cli.progress import Progress
from initdiag.engines import Settings
from initdiag.report import render, require_format

if TYPE_CHECKING:
    from initdiag.report import Report


def check(
    targets: Annotated[
        list[str],
        typer.Argument(metavar="TARGET", help=f"{options.TARGET} Several are checked one by one."),
    ],
    scheme: options.Scheme = None,
    seed: options.Seed = None,
    set_: options.Set = None,
    text: options.Text = None,
    tokens: options.Tokens = None,
    tokenizer: options.Tokenizer = None,
    kwargs: options.Kwargs = None,
    vocab_size: options.VocabSize = None,
    trust_remote_code: options.TrustRemoteCode = False,
    backward: options.Backward = False,
    expect: options.Expect = None,
    bidirectional: options.Bidirectional = False,
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
    """Run a model once, print what it does before its first step, and judge it.

    Exit code 0: pass. 1: findings of severity error. 2: bad config, usage or run.
    """
    require_format(output_format)
    require_no_input(output_file, [*targets, text, tokens, tokenizer, kwargs])
    arguments = options.arguments(kwargs)
    with Progress(quiet) as progress:
        report = run_check(
            *targets,
            scheme=scheme,
            seed=seed,
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
            expect=expect,
            command=command_line(),
            progress=progress,
        )
    deliver(report, output_format, output_file, color, exit_zero)


def deliver(
    report: Report,
    output_format: str,
    output_file: options.Output,
    color: options.Color,
    exit_zero: bool,
) -> None:
    """Render and write a report, and leave with its exit code."""
    to_file = output_file is not None and str(output_file) != "-"
    style = style_of(sys.stdout, color)
    if to_file:
        style = type(style)(color=color == "always")
    write(render(report, output_format, style), output_file)
    if to_file:
        print(f"initdiag: {report.verdict}; report in {output_file}", file=sys.stderr)
    failed = report.verdict == "fail" and not exit_zero
    raise typer.Exit(Exit.FINDINGS if failed else Exit.PASS)
