"""Runs the program in this process, as a shell would: arguments in, exit code and both streams out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from initdiag.cli.main import run as program
from tests.cli.forks import PROGRAM, forks


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


Initdiag = Callable[..., Ran]
Imported = Callable[[list[str]], set[str]]


@pytest.fixture
def initdiag(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Initdiag:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "GITHUB_ACTIONS", "INITDIAG_OUTPUT_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("COLUMNS", "80")

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["initdiag", *arguments])
        capsys.readouterr()
        code = program()
        streams = capsys.readouterr()
        return Ran(code, streams.out, streams.err)

    return run


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Imported]:
    """Runs the program in a process of its own; returns the top-level packages that it has imported at its end."""
    at_exit = (
        "import sys, atexit\n"
        "atexit.register(lambda: sys.stderr.write('\\nIMPORTED ' + ' '.join(sorted(sys.modules))))\n"
    )
    with forks(tmp_path_factory.mktemp("imported"), "initdiag.cli.main") as processes:

        def run(arguments: list[str]) -> set[str]:
            err: bytes = processes.run(code=at_exit + PROGRAM.format(arguments)).stderr
            return {name.split(".")[0] for name in err.decode().rpartition("IMPORTED ")[2].split()}

        yield run
