"""Draws the figures of theory.md: predicted beside measured. Everything in them is run by this script.

    pip install -e '.[docs]'
    python docs/plots.py [NAME ...]

GPT-2 small is run by the weightless engine, one batch of tokens and several seeds of the weights, for three schemes;
the error against width comes from runs of benchmarks/theory_runs.py. Takes a quarter of an hour on one slow core. Each
figure is docs/images/NAME.svg; on one machine the same numbers give the same bytes.
"""

from __future__ import annotations

import io
import math
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent))

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from initdiag.measure import Measurements
    from initdiag.theory.forward import Prediction

IMAGES = Path(__file__).parent / "images"
SCHEMES = {"scaled": "#1f77b4", "gpt2": "#d95f02", "default": "#2ca02c"}  # and their colours
SEEDS = 6
LENGTH, BATCH = 64, 2
WIDE = {
    "gpt2 default": "GPT-2, scheme default",
    "llama default": "Llama, scheme default",
}  # of benchmarks/theory_pairs.py
KINDS = {"stream": ("stream variance", "#1f77b4"), "attention std": ("attention-logit std", "#d95f02")}
LONG = re.compile(r"scale\([^)]*\)|\d+\.\d{2,}")  # coordinates; by what a glyph is scaled is kept
STYLE = {
    "svg.hashsalt": "initdiag",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "lines.linewidth": 1.3,
    "path.simplify": False,
    "figure.constrained_layout.use": True,
}


@dataclass(frozen=True)
class Runs:
    """GPT-2 small with one scheme: what is predicted, and what every seed gave."""

    scheme: str
    predicted: Prediction
    measured: tuple[Measurements, ...]


@cache
def gpt2() -> tuple[Runs, ...]:
    """Run every scheme with every seed of the weights; the tokens stay."""
    from initdiag import theory
    from initdiag.case import prepare
    from initdiag.config import from_mapping
    from initdiag.engines import Settings, weightless
    from initdiag.measure.observe import observe

    settings = Settings("cpu", "float32", 1, "weightless")
    found = []
    for scheme in SCHEMES:
        model = {"vocab_size": 50257, "context": 1024, "d_model": 768, "n_layers": 12, "n_heads": 12}
        tokens = {"batch": BATCH, "length": LENGTH}
        case = prepare(from_mapping({"model": model, "init": {"scheme": scheme}, "tokens": tokens}, "gpt2"))
        watched = partial(observe, backward=True)
        measured = (weightless.run(case.subject, case.batch, seed, settings, watched)[0] for seed in range(SEEDS))
        found.append(Runs(scheme, theory.predict(case.subject, case.batch, backward=True), tuple(measured)))
    return tuple(found)


def stream() -> Figure:
    """Stream variance after every branch."""
    figure, panels = _figure(3, 7.4, 2.7)
    for axes, runs in zip(panels, gpt2(), strict=True):
        spreads = runs.predicted.spreads
        spread = (spreads.embedding_variance, *spreads.streams)
        _beside(axes, runs, _streams(runs.predicted.values), spread, [_streams(one) for one in runs.measured])
        axes.set(title=runs.scheme, xlabel="branch", xticks=range(0, 25, 6))
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("stream variance")
    _legend(figure)
    return figure


def attention() -> Figure:
    """Std of the attention logits, and entropy of the weights, by layer."""
    figure, panels = _figure(2, 7.4, 3.1)
    for runs in gpt2():
        layers, spreads = runs.predicted.values.attention, runs.predicted.spreads
        for axes, name, several in (
            (panels[0], "logit_std", spreads.attention_std),
            (panels[1], "entropy_ratio", spreads.attention_entropy),
        ):
            measured = [[getattr(at, name) for at in one.attention] for one in runs.measured]
            _beside(axes, runs, [getattr(at, name) for at in layers], several, measured)
    for axes, title in zip(panels, ("std of the attention logits", "entropy of the weights, of ln keys"), strict=True):
        axes.set(title=title, xlabel="layer", xticks=range(0, 12, 2))
    panels[0].set_ylim(bottom=0)
    _legend(figure)
    return figure


def gradients() -> Figure:
    """‖∂ loss/∂ stream‖ after every branch."""
    figure, (axes,) = _figure(1, 6.0, 3.2)
    for runs in gpt2():
        expected, *measured = (
            [at.gradient_norm or math.nan for at in values.residual.branches]
            for values in (runs.predicted.values, *runs.measured)
        )
        _beside(axes, runs, expected, (), measured, first=1)
    axes.set(yscale="log", xlabel="branch", ylabel="‖∂ loss / ∂ stream‖ after it", xticks=range(4, 25, 4))
    _legend(figure, band=False)
    return figure


def width() -> Figure:
    """How far single seeds and their mean are from what is predicted, against d_model, in the mean over branches."""
    from benchmarks.theory import WIDTHS
    from benchmarks.theory_pairs import WIDE as PAIRS
    from benchmarks.theory_runs import gaps, off_by

    figure, panels = _figure(2, 7.4, 3.2)
    widths = list(WIDTHS)
    for axes, (name, title) in zip(panels, WIDE.items(), strict=True):
        runs = [gaps(name, PAIRS[name], WIDTHS[at], d_model=at, n_heads=max(2, at // 64)) for at in widths]
        for kind, (label, colour) in KINDS.items():
            kept = [[gap for gap in found if gap.kind == kind] for found in runs]
            single = [statistics.fmean(gap.std / gap.scale for gap in several) for several in kept]
            mean, noise = zip(*map(off_by, kept), strict=True)
            axes.plot(widths, single, "-o", color=colour, markersize=3, label=f"{label}: one seed (std)")
            axes.plot(widths, mean, "D", color=colour, markersize=4, label="mean of all seeds")
            axes.plot(widths, noise, ":", color=colour, label="noise of that mean")
        axes.plot(widths, [1 / at for at in widths], "--", color="#777777", linewidth=1, label="1 / d_model")
        axes.set(xscale="log", yscale="log", xlabel="d_model", title=title)
        axes.set_xticks(widths, [str(at) for at in widths])
        axes.set_xticks([], minor=True)
    panels[0].set_ylabel("measured − predicted, relative")
    figure.legend(handles=panels[0].get_legend_handles_labels()[0], loc="outside lower center", ncols=3)
    return figure


FIGURES: dict[str, Callable[[], Figure]] = {
    "theory-stream": stream,
    "theory-width": width,
    "theory-attention": attention,
    "theory-gradients": gradients,
}


def _streams(values: Measurements) -> list[float]:
    return [values.residual.embedding_variance, *(at.stream_variance for at in values.residual.branches)]


def _figure(panels: int, width: float, height: float) -> tuple[Figure, tuple[Axes, ...]]:
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams.update(STYLE)
    figure = Figure(figsize=(width, height), facecolor="white")
    return figure, tuple(figure.subplots(1, panels, squeeze=False)[0])


def _beside(
    axes: Axes,
    runs: Runs,
    expected: Sequence[float],
    spreads: Sequence[float],
    measured: Sequence[Sequence[float]],
    first: int = 0,
) -> None:
    """Draw a line for what is predicted, a band of two standard deviations, and a dot for every seed, side by side."""
    colour, at = SCHEMES[runs.scheme], range(first, first + len(expected))
    if spreads:
        low, high = ([v + k * s for v, s in zip(expected, spreads, strict=True)] for k in (-2, 2))
        axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
    axes.plot(at, expected, color=colour, linewidth=1.2, label=runs.scheme)
    x: list[float] = []  # a dot is a short line with round ends: all of them are one path, a tenth of the bytes
    y: list[float] = []
    for seed, values in enumerate(measured):
        aside = 0.6 * ((seed + 0.5) / len(measured) - 0.5)
        for place, value in zip(at, values, strict=True):
            x += [place + aside - 0.02, place + aside + 0.02, math.nan]
            y += [value, value, math.nan]
    axes.plot(x, y, color=colour, linewidth=2.2, solid_capstyle="round", alpha=0.75, snap=False)


def _legend(figure: Figure, band: bool = True) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = [
        *(Line2D([], [], color=colour, label=scheme) for scheme, colour in SCHEMES.items()),
        *([Patch(color="#777777", alpha=0.3, linewidth=0, label="±2 std, predicted")] if band else []),
        Line2D([], [], color="#777777", marker="o", markersize=2.5, linewidth=0, label=f"measured, {SEEDS} seeds"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))


def svg(figure: Figure) -> str:
    """Return a figure as SVG without a date, in tenths of a point: half the size."""
    into = io.BytesIO()
    figure.savefig(into, format="svg", metadata={"Date": None, "Creator": None})
    text = LONG.sub(
        lambda match: match[0] if match[0].startswith("scale") else f"{float(match[0]):.1f}", into.getvalue().decode()
    )
    return re.sub(r" +$", "", text, flags=re.MULTILINE)


def main() -> None:
    wanted = sys.argv[1:] or list(FIGURES)
    unknown = [name for name in wanted if name not in FIGURES]
    if unknown:
        sys.exit(f"{unknown[0]}: no such figure; expected some of {', '.join(FIGURES)}")
    IMAGES.mkdir(exist_ok=True)
    for name in wanted:
        (IMAGES / f"{name}.svg").write_text(svg(FIGURES[name]()), encoding="utf-8")


if __name__ == "__main__":
    main()
