"""Configs written to files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from initdiag.errors import ConfigError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def problems(here: Path) -> Callable[..., list[str]]:
    """A function from the text of a.yaml, and overrides, to the lines of the error that they make."""
    from initdiag.config import load

    def lines(text: str | bytes, *overrides: str) -> list[str]:
        Path("a.yaml").write_bytes(text.encode() if isinstance(text, str) else text)
        with pytest.raises(ConfigError) as caught:
            load("a.yaml", overrides)
        return str(caught.value).splitlines()

    return lines
