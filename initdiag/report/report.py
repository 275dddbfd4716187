"""The result of a check or a comparison, as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from initdiag.engines.notes import WeightlessNotes
from initdiag.errors import UsageError
from initdiag.measure import Measurements
from initdiag.rules import Finding, Severity
from initdiag.subjects import Subject
from initdiag.theory import Expectations
from initdiag.tokens import TokenBatch

THEORY = "theory"  # the engine of a run that was predicted


@dataclass(frozen=True)
class Advice:
    """A change of a config that theory has verified.

    lines: what to write, "init.scheme: scaled". cured: rules whose findings go away; left: rules that still find
    something. run: what is predicted with it.
    """

    lines: tuple[str, ...]
    cured: tuple[str, ...]
    left: tuple[str, ...]
    run: Run


@dataclass(frozen=True)
class Run:
    """One model with one scheme and one seed: what was run, measured, expected and found.

    why: the reason for the engine, where it was chosen for the caller. notes: of a weightless run.
    `measured` are predicted numbers where the engine is "theory". advice: changes of the config, best first.
    """

    subject: Subject
    batch: TokenBatch
    seed: int
    engine: str
    dtype: str
    measured: Measurements
    expected: Expectations
    findings: tuple[Finding, ...]
    versions: Mapping[str, str]
    why: str = ""
    notes: WeightlessNotes | None = None
    advice: tuple[Advice, ...] = ()

    @property
    def scheme(self) -> str:
        return self.subject.plan.scheme

    @property
    def predicted(self) -> bool:
        """Whether nothing ran: the numbers are those of the theory."""
        return self.engine == THEORY

    @property
    def verdict(self) -> str:
        """'fail' if any finding is an error, else 'pass'."""
        return "fail" if self.count(Severity.ERROR) else "pass"

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)


@dataclass(frozen=True)
class Pick:
    """The scheme that a comparison would take, and why."""

    scheme: str
    why: str


@dataclass(frozen=True)
class Report:
    """What `initdiag.check`, `initdiag.compare` and `initdiag.predict` return, and every renderer renders.

    A comparison has a pick; a check of one target has a single run. `command` repeats it.
    """

    runs: tuple[Run, ...]
    command: str = ""
    pick: Pick | None = None

    @property
    def run(self) -> Run:
        """The only run.

        Raises:
            UsageError: there are several.
        """
        if len(self.runs) != 1:
            raise UsageError(f"this report has {len(self.runs)} runs; use .runs")
        return self.runs[0]

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of all runs."""
        return tuple(finding for run in self.runs for finding in run.findings)

    @property
    def verdict(self) -> str:
        """'fail' if any run fails, else 'pass'."""
        return "fail" if any(run.verdict == "fail" for run in self.runs) else "pass"

    def __repr__(self) -> str:
        return f"<Report: {self.verdict}, {len(self.runs)} run{'s' * (len(self.runs) != 1)}; print() shows it>"

    def __str__(self) -> str:
        from initdiag.report import render

        return render(self, "table")
