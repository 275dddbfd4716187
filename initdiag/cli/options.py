"""The options that commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from initdiag.cli.failure import debug_on
from initdiag.engines.settings import DEVICES, DTYPES
from initdiag.report import FORMATS

TARGET = (
    "A YAML config or the name of a shipped one; pkg.mod:Class or model.py:function, which gives an nn.Module; or a "
    "Hugging Face config.json, or its folder."
)

Scheme = Annotated[
    str | None,
    typer.Option(
        "--scheme",
        metavar="NAME",
        help="Draw the weights by this scheme, not by the config's or the module's own; `initdiag scheme` lists all.",
    ),
]
Kwargs = Annotated[
    str | None,
    typer.Option(
        "--kwargs",
        metavar="JSON_OR_FILE",
        help="Arguments of the class or function, or fields of a Hugging Face config: '{\"n_layer\": 6}', or a YAML or "
        "JSON file.",
    ),
]
VocabSize = Annotated[
    int | None,
    typer.Option("--vocab-size", metavar="N", help="Vocabulary of a module, where it can't be found in it."),
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the code that comes with a Hugging Face config.")
]
Backward = Annotated[
    bool, typer.Option("--backward", help="Run one backward as well: gradient per branch, dead parameters.")
]
PredictBackward = Annotated[bool, typer.Option("--backward", help="Predict one backward as well: gradient per branch.")]
Expect = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="CONFIG",
        help="The model that a module should be: a YAML config or a shipped one; --set of model and init is about it.",
    ),
]
Bidirectional = Annotated[
    bool, typer.Option("--bidirectional", help="Positions of this module may see later ones, as in BERT.")
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of weights and tokens in place of the config's.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one value of the config, e.g. init.std=0.01. Repeatable."
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        "--vary",
        metavar="KEY=A,B,C",
        help="Predict with each of these values, and fit how the numbers grow: n_layers=6,12,24 or init.std=0.01,0.02. "
        "With d_model, heads and d_ff go in proportion.",
    ),
]
Text = Annotated[
    str | None, typer.Option("--text", metavar="FILE", help="Read this text, as bytes or with --tokenizer.")
]
Tokens = Annotated[
    str | None, typer.Option("--tokens", metavar="FILE", help="Read token ids from a .bin or .npy file.")
]
Tokenizer = Annotated[
    str | None,
    typer.Option("--tokenizer", metavar="FILE", help="A tokenizer.json for the text (needs initdiag[text])."),
]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help=f"One of {', '.join(DEVICES)}.")]
Dtype = Annotated[
    str,
    typer.Option(
        "--dtype", metavar="NAME", help=f"Of the model: {', '.join(DTYPES)}. Statistics are float32 or wider."
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="dense draws the weights; weightless answers products without them, at any size; auto, the default, is "
        "weightless for a config whose weights don't fit in memory or take longer to draw (of Hugging Face: from 10⁹ "
        "parameters), dense for all else.",
    ),
]
Threads = Annotated[
    int | None, typer.Option("--threads", help="Threads that draw weights; the numbers don't depend on it.")
]
Format = Annotated[
    str,
    typer.Option(
        "--output-format", metavar="NAME", envvar="INITDIAG_OUTPUT_FORMAT", help=f"One of {', '.join(FORMATS)}."
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output-file", "-o", metavar="FILE", help="Write the report there; - is stdout.")
]
ExitZero = Annotated[bool, typer.Option("--exit-zero", help="Exit 0 even with findings of severity error.")]
Color = Annotated[Literal["auto", "always", "never"], typer.Option("--color", help="When to use colours.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks.", callback=debug_on, is_eager=True)]


def arguments(kwargs: str | None) -> dict[str, Any]:
    """Read the value of --kwargs.

    Raises:
        UsageError: it is neither JSON nor a file that holds a mapping.
    """
    if kwargs is None:
        return {}
    from initdiag.subjects.import_path import read_kwargs  # with all that loads a module

    return read_kwargs(kwargs)
