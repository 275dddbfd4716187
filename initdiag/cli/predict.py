"""initdiag predict"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from initdiag.cli import options
from initdiag.cli.command_line import command_line
from initdiag.cli.failure import Exit
from initdiag.cli.output import require_no_input, style_of, write
from initdiag.cli.progress import Progress
from initdiag.errors import UsageError
from initdiag.predict import predict as run_predict
from initdiag.report import Style, render, require_format


def predict(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A YAML config, the name of a shipped one, or a Hugging Face config.json or its folder.",
            show_default=False,
        ),
    ],
    scheme: options.Scheme = None,
    seed: options.Seed = None,
    set_: options.Set = None,
    vary: options.Vary = None,
    text: options.Text = None,
    tokens: options.Tokens = None,
    tokenizer: options.Tokenizer = None,
    backward: options.PredictBackward = False,
    kwargs: options.Kwargs = None,
    trust_remote_code: options.TrustRemoteCode = False,
    output_format: options.Format = "table",
    output_file: options.Output = None,
    exit_zero: options.ExitZero = False,
    color: options.Color = "auto",
    quiet: options.Quiet = False,
    debug: options.Debug = False,
) -> None:
    """Predict what check would measure, by theory: no weights, no forward, any size in under a second.

    With --vary, one row for each value, and how every number grows with it.
    Exit code 0: pass. 1: findings of severity error. 2: bad config or usage.
    """
    require_format(output_format)
    require_no_input(output_file, [target, text, tokens, tokenizer, kwargs])
    arguments: dict[str, Any] = {
        "scheme": scheme,
        "seed": seed,
        "overrides": set_ or (),
        "text": text,
        "tokens": tokens,
        "tokenizer": tokenizer,
        "backward": backward,
        "kwargs": options.arguments(kwargs),
        "trust_remote_code": trust_remote_code,
        "command": command_line(),
    }
    to_file = output_file is not None and str(output_file) != "-"
    style = style_of(sys.stdout, color)
    if to_file:
        style = type(style)(color=color == "always")
    with Progress(quiet) as progress:
        if vary:
            verdict, shown = _varied(target, vary, output_format, style, arguments | {"progress": progress})
        else:
            report = run_predict(target, **arguments, progress=progress)
            verdict, shown = report.verdict, render(report, output_format, style)
    write(shown, output_file)
    if to_file:
        print(f"initdiag: {verdict}; report in {output_file}", file=sys.stderr)
    raise typer.Exit(Exit.FINDINGS if verdict == "fail" and not exit_zero else Exit.PASS)


def _varied(
    target: str, given: list[str], output_format: str, style: Style, arguments: dict[str, Any]
) -> tuple[str, str]:
    """Return verdict and text of a --vary."""
    from initdiag.config.varied import split
    from initdiag.report.varied_formats import render as render_varied
    from initdiag.vary import vary

    if len(given) > 1:
        raise UsageError(f"--vary {' --vary '.join(given)}: expected one --vary; the others stay as --set sets them")
    key, values = split(given[0])
    varied = vary(target, key, values, **arguments)
    return varied.verdict, render_varied(varied, output_format, style)
