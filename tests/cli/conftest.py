"""Runs the program in this process, as a shell would: arguments in, exit code and both streams out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from initdiag.cli.main import main


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Initdiag = Callable[..., Ran]


@pytest.fixture
def initdiag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Initdiag:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "GITHUB_ACTIONS", "INITDIAG_OUTPUT_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["initdiag", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        streams = capsys.readouterr()
        return Ran(int(stop.value.code or 0), streams.out, streams.err)

    return run
