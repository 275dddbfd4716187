"""What a rule is: an id for ever, the text that explains it, and a function from evidence to findings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from initdiag.rules.finding import Finding, Severity

if TYPE_CHECKING:
    from initdiag.config.schema import Gate
    from initdiag.measure import Measurements
    from initdiag.subjects import Subject
    from initdiag.theory import Expectations


@dataclass(frozen=True)
class Evidence:
    """All that a rule may look at."""

    subject: Subject
    measured: Measurements
    expected: Expectations
    gate: Gate

    @property
    def predicted(self) -> bool:
        """Whether `measured` are the numbers of the theory: what needs weights is nan or empty, and no fault."""
        prediction = self.expected.prediction
        return prediction is not None and prediction.values is self.measured


@dataclass(frozen=True)
class Trouble:
    """What a rule's check returns: a finding that doesn't yet know its rule.

    `at` is the config path of the value at fault, such as "init.std", or several: the first that anybody sets. `cures`
    are lines of a config, any of which is to make it go away, "init.scheme: scaled": what `help` says, for a model that
    is a config.
    """

    message: str
    subject: str
    help: str
    at: str | tuple[str, ...]
    severity: Severity = Severity.ERROR
    cures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rule:
    """A rule. The texts are its documentation, in `initdiag rule ID` and docs/rules.md alike.

    on_trained: it also judges a model whose weights look trained.
    """

    id: str
    name: str
    severity: str  # in words, as a rule may warn first and fail later
    what: str
    why: str
    example: str
    instead: str
    references: tuple[str, ...]
    check: Callable[[Evidence], Iterable[Trouble]]
    on_trained: bool = False

    def findings(self, evidence: Evidence) -> tuple[Finding, ...]:
        return tuple(
            Finding(
                rule=self.id,
                name=self.name,
                severity=trouble.severity,
                message=trouble.message,
                subject=trouble.subject,
                help=trouble.help,
                location=evidence.subject.locate(*((trouble.at,) if isinstance(trouble.at, str) else trouble.at)),
                cures=trouble.cures if evidence.subject.architecture is not None else (),
            )
            for trouble in self.check(evidence)
        )


def as_python(name: str) -> str:
    """Write a parameter as code: blocks.1.mlp.up.weight is model.blocks[1].mlp.up.weight."""
    return re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", f"model.{name}")
