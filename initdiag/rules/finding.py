"""One thing that a rule found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from initdiag.errors import Place


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True)
class Finding:
    """What was measured against what was expected, in one line; whose it is; where to change what.

    `location` is who sets the value at fault: a line of the config, or an option of the command line. `cures` are lines
    of a config, any of which is to make it go away.
    """

    rule: str
    name: str
    severity: Severity
    message: str
    subject: str
    help: str
    location: Place | None
    cures: tuple[str, ...] = ()
