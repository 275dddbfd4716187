"""The folder that `make test` installs requirements-originals.txt into, on the path of the tests that ask for it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix) / "originals"


@pytest.fixture
def originals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind everything else, and for one test: what other libraries find installed stays what it was."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(FOLDER)])
