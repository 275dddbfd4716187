"""One thing that a rule found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from initdiag.errors import Location


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """What was measured against what was expected, in one line; whose it is; where to change what.

    `location` is the line of the config that sets the value at fault, where a config sets it.
    """

    rule: str
    name: str
    severity: Severity
    message: str
    subject: str
    help: str
    location: Location | None
