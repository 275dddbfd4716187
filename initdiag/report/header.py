"""What was run, in a few lines: model, init, wiring, tokens, engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from initdiag.report.facts import size
from initdiag.report.numbers import abridged, counted, layers, settings
from initdiag.report.report import Run
from initdiag.report.scheme_words import plan_in_short
from initdiag.rules import Severity
from initdiag.subjects import InitHistory
from initdiag.subjects.subject import without_layers

PLACEMENTS = {
    "pre": "pre-norm",
    "post": "post-norm",
    "sandwich": "sandwich norm",
    "reordered": "norms on the branches' outputs",
    "none": "no norms on the branches",
}

EXACT = "exact in distribution: its numbers are drawn as a dense run's are, but aren't the same for one seed"
ASYMPTOTIC = "since entries are uniform or truncated, and products Gaussian only up to about 1/width"
SMALL = "weightless: no parameter is large enough to do without entries; all are real"


def header_lines(run: Run) -> tuple[str, ...]:
    """Return the lines, not wrapped."""
    return (
        f"{run.subject.target}: {drawn_by(run)}, seed {run.seed}",
        *demanded(run),
        *unused(run),
        size(run),
        *(line for line in (wiring(run), init_code_seen(run)) if line),
        f"tokens: {run.batch.describe()}",
        *engine_and_versions(run),
        *engine_lines(run),
    )


def engine_and_versions(run: Run) -> tuple[str, ...]:
    """Return what ran, on what; nothing of a prediction, which has its own lines."""
    if run.predicted:
        return ()
    return (
        f"engine: {run.engine}, {run.dtype}, {run.versions['device']}; torch {run.versions['torch']}, "
        f"initdiag {run.versions['initdiag']}",
    )


def engine_lines(run: Run) -> tuple[str, ...]:
    """Return why this engine was taken, where it was chosen, what a weightless run did without, and of a prediction
    what it is made of."""
    if run.predicted:
        return theory_lines(run)
    lines = [f"chosen: {run.engine}, since {run.why}"] if run.why else []
    if (notes := run.notes) is not None:
        if not notes.parameters:
            return (*lines, SMALL)
        without = f"{notes.parameters} of {counted(len(run.measured.parameters), 'parameter')}"
        lines.append(f"weightless: {without} have no entries ({abridged(notes.entries)}); {EXACT}")
        if notes.asymptotic:
            names = ", ".join(without_layers(notes.asymptotic))
            lines.append(f"asymptotic, {ASYMPTOTIC}: {names}")
        reasons: dict[str, list[str]] = {}
        for name, why in notes.made_real:
            reasons.setdefault(why, []).append(name)
        lines += [f"made real, since {why}: {_of_layers(names)}" for why, names in reasons.items()]
    return tuple(lines)


def theory_lines(run: Run) -> tuple[str, ...]:
    """Return what a prediction is made of: the laws of the weights, and the tokens."""
    read = run.expected.prediction.sequences if run.expected.prediction else run.batch.batch
    part = f" of the first {counted(read, 'sequence') if read > 1 else 'sequence'}" if read < run.batch.batch else ""
    return (
        f"weights: {'; '.join(plan_in_short(run.subject.plan))}; none is drawn",
        f"engine: theory, the kernel recursion of the wide limit{part}; initdiag {run.versions['initdiag']}",
    )


def _of_layers(names: Sequence[str]) -> str:
    """Names of several layers as one pattern and how many there are of it; one of a layer as it is."""
    alike: dict[str, list[str]] = {}
    for name in names:
        (pattern,) = without_layers([name])
        alike.setdefault(pattern, []).append(name)
    return ", ".join(f"{pattern} ({len(of)})" if len(of) > 1 else of[0] for pattern, of in alike.items())


def engines_compared(groups: Mapping[str, Sequence[Run]]) -> tuple[str, ...]:
    """Return the same of a comparison: what is said of all schemes once, all else with the scheme's name."""
    said = {scheme: engine_lines(runs[0]) for scheme, runs in groups.items()}
    common = [line for line in next(iter(said.values()), ()) if all(line in lines for lines in said.values())]
    own = [f"{scheme}: {line}" for scheme, lines in said.items() for line in lines if line not in common]
    return (*common, *own)


def demands_compared(groups: Mapping[str, Sequence[Run]]) -> tuple[str, ...]:
    """Return what each scheme of a comparison changed in the forward pass."""
    return tuple(f"{scheme}: {line}" for scheme, runs in groups.items() for line in demanded(runs[0]))


def drawn_by(run: Run) -> str:
    """Return the scheme with its parameters, or 'as built'."""
    said = settings(run.subject.plan.settings)
    return scheme_in_words(run) + (f" ({said})" if said else "")


def demanded(run: Run) -> tuple[str, ...]:
    """Return what the scheme changed in the forward pass; of a module, what its code would have to do."""
    demands = run.subject.demands
    if not demands:
        return ()
    if run.subject.architecture is not None:
        return (f"the scheme changed the model: {', '.join(demands)}",)
    return (f"the scheme also wants of the module's own forward, which is not checked: {'; '.join(demands)}",)


def unused(run: Run) -> tuple[str, ...]:
    """Say which roles of the config are those of no parameter."""
    names = " and ".join(run.subject.unused)
    return (f"init.roles draws {names}, of which this model has none",) if names else ()


def scheme_in_words(run: Run) -> str:
    return f"scheme {run.scheme}" if run.subject.drawn_by_us else run.scheme


def wiring(run: Run) -> str:
    """Return how the model is put together, or why no stream was found; '' where nobody looked."""
    wiring, branches = run.measured.wiring, run.measured.residual.branches
    if wiring.tried:
        return f"wiring: no residual stream was found: {wiring.tried}"
    if not branches or wiring.placement not in PLACEMENTS:
        return ""
    said = f"wiring: {PLACEMENTS[wiring.placement]}, {layers(wiring.n_layers)}, {counted(len(branches), 'branch')}"
    if wiring.head:
        said += f"; head {wiring.head}, {'tied' if wiring.tied else 'not tied'}"
    return said + (f"; {wiring.broken}" if wiring.broken else "")


def init_code_seen(run: Run) -> str:
    """Return what the module's own init code was seen to do; '' where the building was not watched."""
    history: InitHistory = run.measured.history
    if not history.watched or run.subject.drawn_by_us:
        return ""
    drawn = sum(one.name in history.drawn for one in run.measured.parameters)
    said = [f"init code: seen to fill {drawn} of {len(run.measured.parameters)} parameters"]
    said += [f"{len(history.unwritten)} never written"] if history.unwritten else []
    said += [f"{len(history.untouched)} left to PyTorch's defaults"] if history.untouched else []
    said += [f"{len(history.rescaled)} changed again by a second call"] if history.rescaled else []
    return ", ".join(said)


def found(run: Run) -> str:
    """Return how many errors and warnings there are: '1 error, 0 warnings'."""
    return ", ".join(counted(run.count(severity), severity) for severity in (Severity.ERROR, Severity.WARNING))
