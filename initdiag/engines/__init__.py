"""How a Subject runs. The door is `run`; `dense` needs torch and is imported when something runs."""

from __future__ import annotations

from initdiag.engines.settings import DEVICES, DTYPES, Settings

__all__ = ["DEVICES", "DTYPES", "Settings"]
