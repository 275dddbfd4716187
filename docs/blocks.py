"""What cog writes into README.md and docs/*.md: everything that the code says better than a page could.

    python docs/blocks.py

writes the tables of docs/faults.md anew: these check a hundred models, which takes two minutes, so cog doesn't.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import initdiag
from initdiag.cli.failure import Exit
from initdiag.config import preset_names
from initdiag.config.schema import Config, Gate, Init, TokenSettings
from initdiag.measure import (
    AttentionMeasure,
    Branch,
    Copy,
    GradientMeasure,
    HeadroomMeasure,
    InitHistory,
    LabelMeasure,
    LogitMeasure,
    LossMeasure,
    ParameterMeasure,
    ProbeMeasure,
    Read,
    ResidualMeasure,
    RouterMeasure,
    Wiring,
)
from initdiag.model import Architecture, parameters
from initdiag.report import Run
from initdiag.report.document_keys import KEYS
from initdiag.report.facts import FACTS
from initdiag.report.reference import rules_markdown
from initdiag.report.scheme_pages import schemes_markdown
from initdiag.rules import Finding
from initdiag.schemes import Parameter
from initdiag.theory import Expectations

FAULTS = re.compile(r"(?<=<!-- blocks.faults -->\n).*?(?=<!-- end -->\n)", re.DOTALL)


def table(headings: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table."""
    headings = list(headings)
    lines = [headings, [":--"] * len(headings), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def exit_codes() -> str:
    return table(("code", "meaning"), ((str(int(code)), code.meaning) for code in Exit))


def facts() -> str:
    return table(("number", "unit", "what it is"), ((fact.key, fact.unit, fact.meaning) for fact in FACTS))


def rules() -> str:
    return rules_markdown()


def schemes() -> str:
    return schemes_markdown()


def fields(section: str) -> str:
    """Return the keys of a section of a config, with their defaults."""
    model = {"model": Architecture, "init": Init, "tokens": TokenSettings, "gate": Gate}[section]
    rows = []
    for name, field in model.model_fields.items():
        default = "required" if field.is_required() else "" if field.default_factory else f"`{_yaml(field.default)}`"
        rows.append((f"`{name}`", default, field.description or ""))
    return table(("key", "default", "meaning"), rows)


def _yaml(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return "[]" if value == () else f"{value}"


def functions() -> str:
    """Return the signature and docstring of every function of the Python interface."""
    pages = []
    for function in (initdiag.check, initdiag.assert_healthy, initdiag.compare, initdiag.plan):
        arguments = ", ".join(str(one).split(":")[0] for one in inspect.signature(function).parameters.values())
        pages.append(f"### initdiag.{function.__name__}({arguments})\n\n```\n{inspect.getdoc(function)}\n```\n")
    return "\n".join(pages)


def values() -> str:
    """Return the fields of a run and of what it measured and expected, from the docstrings of their classes."""
    classes = {
        "run": Run,
        "run.measured.loss": LossMeasure,
        "run.measured.logits": LogitMeasure,
        "run.measured.wiring": Wiring,
        "run.measured.residual": ResidualMeasure,
        "run.measured.residual.branches[i]": Branch,
        "run.measured.residual.branches[i].reads[j]": Read,
        "run.measured.attention[i]": AttentionMeasure,
        "run.measured.routers[i]": RouterMeasure,
        "run.measured.labels": LabelMeasure,
        "run.measured.probe": ProbeMeasure,
        "run.measured.headroom": HeadroomMeasure,
        "run.measured.gradients": GradientMeasure,
        "run.measured.history": InitHistory,
        "run.measured.copies[i]": Copy,
        "run.measured.parameters[i], .buffers[i]": ParameterMeasure,
        "run.measured.roles[i]": Parameter,
        "run.expected": Expectations,
        "run.findings[i]": Finding,
    }
    rows = []
    for path, of in classes.items():
        names = [field.name for field in dataclasses.fields(of)]
        names += [name for name, value in vars(of).items() if isinstance(value, property)]
        text = " ".join((inspect.getdoc(of) or "").split())
        rows.append((f"`{path}`", ", ".join(f"`{name}`" for name in names), text))
    return table(("value", "fields", "meaning"), rows)


def json_keys() -> str:
    """Return the keys of the JSON document, a row for each object in it."""
    rows = []
    for path, meanings in KEYS.items():
        told = "; ".join(f"`{key}`: {meaning}" for key, meaning in meanings.items())
        rows.append((f"`{path}`" if path else "a run", told))
    return table(("object", "keys"), rows)


def shipped() -> str:
    from initdiag.config import load

    rows = []
    for name in preset_names():
        config: Config = load(name).config
        count = sum(parameter.numel for parameter in parameters(config.model))
        rows.append((f"`{name}`", f"{count:,}", config.init.scheme))
    return table(("config", "parameters", "scheme"), rows)


def faults(only: Iterable[str] = ()) -> str:
    """Check every fault and every legitimate design, or `only` these, and return benchmarks/faults.py's tables.

    The seconds are left out: they differ from run to run.
    """
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from benchmarks.fault_models import TWINS
    from benchmarks.faults import trap_row, twin_row
    from benchmarks.trap_models import TRAPS

    twins, traps = ([name for name in names if not only or name in only] for names in (TWINS, TRAPS))
    return "\n".join(
        (
            table(("fault", "caught by", "also errors", "healthy twin"), map(_without_seconds, map(twin_row, twins))),
            table(("legitimate design", "errors", "warnings"), map(_without_seconds, map(trap_row, traps))),
        )
    )


def _without_seconds(row: tuple[str, bool, tuple[str, ...], float]) -> tuple[str, ...]:
    name, _, cells, _ = row
    return (name, *cells)


def main() -> None:
    page = Path(__file__).parent / "faults.md"
    tables = f"\n{faults()}\n"
    page.write_text(FAULTS.sub(lambda _: tables, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
