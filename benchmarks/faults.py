"""Which faults of initialization `initdiag.check` catches, and how often it cries wolf.

    python benchmarks/faults.py [--markdown] [--seeds 100] [--only K4]

Prints, for every fault, the rules that spoke about the faulty model, whether its own rule is among them, whether the
healthy twin is without errors, and the seconds of both checks; then the errors and warnings of every legitimate design;
and with --seeds the number of errors over that many seeds of healthy models. The targets: every fault caught, every
twin and trap without errors, no error over 100 seeds. The models are those of fault_models.py and trap_models.py.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script: for `benchmarks` itself

import torch

import initdiag
from benchmarks.fault_models import TWINS, Twin
from benchmarks.gpt_parts import VOCAB_SIZE
from benchmarks.model_factories import Factory
from benchmarks.trap_models import TRAPS, Trap
from initdiag.rules import Severity

if TYPE_CHECKING:
    from initdiag.report import Report

RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.ERROR: 2}
# many seeds of these: twins whose healthy models differ from one another, of few layers, so that a hundred take minutes
MIXTURE = (
    "K1 head drawn with std 1",
    "K2 head takes an N(1) table",
    "K3 tie lost by to_empty",
    "K5 equal experts",
    "K5 gate is a copy of up",
    "K7 init never called",
    "K8 uniform off its centre",
    "K9 value and out both zero",
    "K16 labels moved twice",
    "K19 rotary frequencies of zero",
)


def check_model(
    factory: Factory, watched: bool = False, backward: bool = False, overrides: Sequence[str] = (), **arguments: int
) -> Report:
    """Check what a factory of a twin builds; where its building is to be watched, hand in the factory."""
    build = partial(factory, **arguments)
    model = build if watched else build()
    return initdiag.check(model, vocab_size=VOCAB_SIZE, backward=backward, overrides=overrides)


def check_trap(trap: Trap, seed: int = 0, overrides: Sequence[str] = ()) -> Report:
    module = trap.factory(seed=seed)
    if trap.forward is not None or trap.causal is not None:
        subject = initdiag.Subject(module, forward=trap.forward, vocab_size=trap.vocab_size, causal=trap.causal)
        return initdiag.check(subject, backward=trap.backward, overrides=overrides)
    return initdiag.check(module, vocab_size=trap.vocab_size, backward=trap.backward, overrides=overrides)


def is_the_kinds_own(twin: Twin, rule: str, severity: Severity) -> bool:
    """Whether a finding is by the rule of this kind of fault, and as severe as its table says."""
    return rule in twin.rules and RANK[severity] >= RANK[Severity(twin.severity)]


class Row(NamedTuple):
    """One line of either table."""

    name: str
    good: bool
    cells: tuple[str, ...]
    seconds: float


def ids(report: Report, severity: Severity) -> list[str]:
    return list(dict.fromkeys(found.rule for found in report.findings if found.severity is severity))


def twin_row(name: str) -> Row:
    """Check both models of a twin; a check that raises is a miss, and is named."""
    twin, start = TWINS[name], time.perf_counter()
    try:
        faulty, healthy = (check_model(one, twin.watched, twin.backward) for one in (twin.faulty, twin.healthy))
    except Exception as error:
        return Row(name, False, ("", type(error).__name__, ""), time.perf_counter() - start)
    own = [found.rule for found in faulty.findings if is_the_kinds_own(twin, found.rule, found.severity)]
    false = [
        found.rule
        for found in healthy.findings
        if found.severity is Severity.ERROR or is_the_kinds_own(twin, found.rule, found.severity)
    ]
    caught = own[0] if own else "missed"
    others = [rule for rule in ids(faulty, Severity.ERROR) if rule not in twin.rules]
    cells = (caught, " ".join(others), " ".join(dict.fromkeys(false)) or "silent")
    return Row(name, bool(own) and not false, cells, time.perf_counter() - start)


def trap_row(name: str) -> Row:
    start = time.perf_counter()
    try:
        report = check_trap(TRAPS[name])
    except Exception as error:
        return Row(name, False, (type(error).__name__, ""), time.perf_counter() - start)
    errors, warned = ids(report, Severity.ERROR), ids(report, Severity.WARNING)
    return Row(name, not errors, (" ".join(errors) or "none", " ".join(warned)), time.perf_counter() - start)


def false_errors(seeds: int) -> list[str]:
    """Check healthy models under many seeds, in turn, and return what was called an error."""
    found = []
    for seed in range(seeds):
        name = MIXTURE[seed % len(MIXTURE)]
        twin = TWINS[name]
        report = check_model(twin.healthy, twin.watched, twin.backward, seed=seed)
        found += [
            f"seed {seed}, {name}: {each.rule} {each.message}" for each in report.findings if each.severity == "error"
        ]
    return found


def print_table(headings: Sequence[str], widths: Sequence[int], rows: Iterable[Row], markdown: bool) -> bool:
    """Print rows as they come; return whether all are good."""
    if markdown:
        print(f"| {' | '.join(headings)} |\n|{' :-- |' * len(headings)}")
    else:
        print("   " + "".join(f"{heading:{width}}" for heading, width in zip(headings, widths, strict=True)).rstrip())
    good = True
    for row in rows:
        cells = (row.name, *row.cells, f"{row.seconds:.1f}")
        if markdown:
            print(f"| {' | '.join(cells[:-1])} | {cells[-1]} |")
        else:
            line = "".join(f"{cell + ' ':{width}}" for cell, width in zip(cells, widths, strict=True))
            print(f"{'✓' if row.good else '✗'}  {line}".rstrip(), flush=True)
        good &= row.good
    return good


def main() -> None:
    parser = argparse.ArgumentParser(description="Faults that are caught, and false alarms.")
    parser.add_argument("--markdown", action="store_true", help="tables for docs")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="also check N seeds of healthy models")
    parser.add_argument("--only", default="", help="a kind, such as K4, or a whole name")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # models this small only wait for a second thread
    warnings.simplefilter("ignore")
    twins, traps = (
        [name for name in table if not arguments.only or f"{name} ".startswith(f"{arguments.only} ")]
        for table in (TWINS, TRAPS)
    )
    good = True
    if twins:
        headings = ("fault", "caught by", "also", "healthy twin", "s")
        good &= print_table(headings, (33, 9, 17, 14, 4), map(twin_row, twins), arguments.markdown)
        print()
    if traps:
        headings = ("legitimate design", "errors", "warnings", "s")
        good &= print_table(headings, (40, 9, 25, 3), map(trap_row, traps), arguments.markdown)
        print()
    if arguments.seeds:
        found = false_errors(arguments.seeds)
        print(f"{len(found)} errors over {arguments.seeds} seeds of healthy models", *found, sep="\n")
        good &= not found
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
