"""The Report value and one renderer per file. The door is `render`.

What needs rules and measurements is imported when it is first used: `initdiag --help` and `initdiag scheme` do without.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from initdiag.errors import require_one_of
from initdiag.report.style import Style

if TYPE_CHECKING:
    from initdiag.report.findings import findings_text
    from initdiag.report.report import THEORY, Advice, Pick, Report, Run

FORMATS = ("table", "json", "markdown", "github")


def require_format(name: str) -> None:
    """Check the name of an output format, before anything runs for it.

    Raises:
        UsageError: an unknown format.
    """
    require_one_of("--output-format", name, FORMATS)


def render(report: Report, format: str, style: Style | None = None) -> str:  # noqa: A002 - the option's name
    """Render a report as text.

    Raises:
        UsageError: an unknown format.
    """
    require_format(format)
    renderer: Callable[[Report, Style], str] = import_module(f"initdiag.report.{format}").render
    return renderer(report, style or Style())


__all__ = ["FORMATS", "THEORY", "Advice", "Pick", "Report", "Run", "Style", "findings_text", "render", "require_format"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    home = "findings" if name == "findings_text" else "report"
    return getattr(import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
