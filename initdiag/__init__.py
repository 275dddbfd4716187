"""See what a Transformer does before its first optimizer step.

    import initdiag
    report = initdiag.check("gpt2")
    print(report)

Importing this module imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from initdiag.check import assert_healthy, check
from initdiag.compare import compare
from initdiag.errors import ConfigError, InitdiagError, PlanError, RunError, TokenError, UsageError
from initdiag.plan import plan
from initdiag.predict import predict
from initdiag.vary import vary

if TYPE_CHECKING:
    from initdiag.engines import Settings
    from initdiag.report import Report
    from initdiag.subjects import Subject

__all__ = [
    "ConfigError",
    "InitdiagError",
    "PlanError",
    "Report",
    "RunError",
    "Settings",
    "Subject",
    "TokenError",
    "UsageError",
    "assert_healthy",
    "check",
    "compare",
    "plan",
    "predict",
    "vary",
]


def __getattr__(name: str) -> Any:
    if name == "Report":
        from initdiag.report import Report

        return Report
    if name == "Settings":
        from initdiag.engines import Settings

        return Settings
    if name == "Subject":
        from initdiag.subjects import Subject

        return Subject
    if name == "__version__":
        from initdiag.versions import own_version

        return own_version()
    raise AttributeError(f"module 'initdiag' has no attribute '{name}'")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
