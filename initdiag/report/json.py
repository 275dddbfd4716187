"""A report as JSON."""

from __future__ import annotations

import json

from initdiag.report.document import document
from initdiag.report.report import Report
from initdiag.report.style import Style


def render(report: Report, style: Style) -> str:
    """Return the document as indented JSON with a newline at its end; non-finite numbers are strings."""
    return json.dumps(document(report), indent=2, allow_nan=False, ensure_ascii=style.ascii) + "\n"
