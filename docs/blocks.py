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

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import initdiag
from initdiag.cli.failure import Exit
from initdiag.config.annotations import choices_of, sections
from initdiag.config.init import NO_PARAMETERS, Init
from initdiag.config.presets import ALIASES, described
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
from initdiag.report import Run, growth
from initdiag.report.document_keys import KEYS
from initdiag.report.facts import FACTS
from initdiag.report.reference import plain, rules_markdown
from initdiag.report.scheme_pages import schemes_markdown
from initdiag.rules import Finding
from initdiag.schemes import SCHEMES, Parameter, scheme_named
from initdiag.theory import Expectations

MANY = 8  # schemes: of a parameter that more of them have, the number is told
COUNTED = """\
**{schemes} init schemes** of public code and papers ([docs/schemes.md](docs/schemes.md), `initdiag scheme`), and
**{configs} models** as configs ([docs/models.md](docs/models.md), `initdiag new --list`), by name:
"""
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
    """Return the keys of a section of a config, by its dotted name, with their words, and defaults where it has any.

    Of `init`, scheme parameters are left out: scheme_parameters() has them.
    """
    model = dict(sections(nested=True))[section]
    names = NO_PARAMETERS if model is Init else tuple(model.model_fields)
    rows = [_field(name, model.model_fields[name]) for name in names]
    if {default for _, default, _ in rows} == {"`null`"}:
        return table(("key", "meaning"), ((name, meaning) for name, _, meaning in rows))
    return table(("key", "default", "meaning"), rows)


def _field(name: str, field: FieldInfo) -> tuple[str, str, str]:
    default = "required" if field.is_required() else "" if field.default_factory else f"`{_yaml(field.default)}`"
    meaning, words = field.description or "", choices_of(field.annotation)
    if not all(re.search(rf"\b{word}\b", f"{meaning} {default}") for word in words):
        meaning += f"; one of {', '.join(words)}"
    return f"`{name}`", default, plain(meaning)


def _yaml(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, BaseModel):
        return (
            "{"
            + ", ".join(f"{name}: {_yaml(one)}" for name, one in value.model_dump(exclude_defaults=True).items())
            + "}"
        )
    return "[]" if value == () else f"{value}"


def scheme_parameters() -> str:
    """Return the parameters of all schemes, and which schemes have them."""
    rows = []
    for name in Init.model_fields:
        having = [
            f"[{scheme.name}](schemes.md#{scheme.name})" for scheme in SCHEMES.values() if name in scheme.settable
        ]
        if having:
            told = ", ".join(having) if len(having) <= MANY else f"{len(having)} of {len(SCHEMES)}"
            rows.append((f"`{name}`", plain(Init.model_fields[name].description or ""), told))
    return table(("key", "meaning", "schemes"), rows)


def functions() -> str:
    """Return the signature and docstring of every function of the Python interface."""
    pages = []
    functions = (
        initdiag.check,
        initdiag.assert_healthy,
        initdiag.compare,
        initdiag.predict,
        initdiag.vary,
        initdiag.plan,
    )
    for function in functions:
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
    """Return the shipped configs: name, size, the scheme that draws them, and what they say of themselves."""
    rows = []
    for one in described():
        scheme = f"[{one.scheme}](schemes.md#{scheme_named(one.scheme).name})"
        rows.append((f"`{one.name}`", f"{one.parameters or 0:,}", scheme, plain(one.summary)))
    return table(("config", "parameters", "scheme", "what it is"), rows)


def aliases() -> str:
    return table(("also found as", "config"), ((f"`{name}`", f"`{of}`") for name, of in ALIASES.items()))


def counted() -> str:
    """Return how many schemes and configs there are, as a paragraph of README.md."""
    return COUNTED.format(schemes=len(SCHEMES), configs=sum(1 for _ in described()))


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


def laws() -> str:
    """When a number is said to stay, to grow by a law, or by none."""
    return (
        f"- *stays*: |exponent| below {growth.STAYS:g}, and no point off by more than {100 * growth.HOLDS:g} %;\n"
        f"- *like x*, *√x*, *1/x* …: within {growth.NEAR:g} of that exponent; else only that it grows or falls;\n"
        f"- *logarithmically*, a + b·ln x: where the power misses a point by more than {100 * growth.EXACT:g} %, and a "
        f"logarithm by less than {growth.CLEAR:g} times as much;\n"
        f"- *no power law*: neither is within {100 * growth.HOLDS:g} % of every point; then the exponents between the "
        "first two points and the last two.\n"
    )


SHOWN = ("stream %", "uniform", "logit std %", "entropy %", "gradient %")


def _printed(name: str) -> list[str]:
    return (Path(__file__).parent.parent / "benchmarks" / name).read_text(encoding="utf-8").splitlines()


def theory_widths() -> str:
    """What `benchmarks/theory.py --widths` printed."""
    found = []
    tables, _, _ = "\n".join(_printed("theory_widths.txt")).partition("\n\n\n")  # then, the time that it took
    for part in tables.split("\n\n"):
        rows = [re.split(r" {2,}", line.strip()) for line in part.splitlines()]
        name, columns = rows[0][0], rows[0][1:]
        found.append(table((f"{name}: d_model", *columns), [tuple(row) for row in rows[1:]]))
    return "\n".join(found)


def theory_table() -> str:
    """What `benchmarks/theory.py --backward` printed, by its columns that have a criterion; then counts and spreads."""
    lines = _printed("theory.txt")
    heading, end = lines[0], lines.index("")
    at = {heading[start : start + 16].strip(): start for start in range(20, len(heading), 16)}
    rows = [
        (line[:20].strip(), *(" ".join(line[at[name] : at[name] + 16].split()) for name in SHOWN))
        for line in lines[1:end]
    ]
    rest = [line for line in lines[end + 1 : -1] if "parameter" not in line]
    return table(("pair", *SHOWN), rows) + "\n```\n" + "\n".join(rest).strip() + "\n```\n"


def _without_seconds(row: tuple[str, bool, tuple[str, ...], float]) -> tuple[str, ...]:
    name, _, cells, _ = row
    return (name, *cells)


def main() -> None:
    page = Path(__file__).parent / "faults.md"
    tables = f"\n{faults()}\n"
    page.write_text(FAULTS.sub(lambda _: tables, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
