"""A process that has imported what takes long, and forks for each run of the program: it is imported once.

    python -m tests.cli.forks MODULE…

imports the modules and reads a JSON object a line: Python `code`, what is set in the `environment`, and the paths that
`stdout` and `stderr` go to, None for a stream that is closed. It writes the child's process id and, at its end, its
exit code. A child is all of a process but its imports: from the streams to the end of the interpreter.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROGRAM = "import sys; sys.argv = ['initdiag', *{!r}]; from initdiag.cli.entry import main; main()"
Read = Callable[[str], None]


@dataclass(frozen=True)
class Forks:
    """The process, seen from the tests, and a folder for what its children write."""

    process: subprocess.Popen[str]
    folder: Path

    def start(
        self,
        *arguments: str,
        code: str | None = None,
        stdout: str | None = "out",
        stderr: str | None = "err",
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Start the program, or `code` in its place, and return its process id; streams are paths in the folder."""
        for name in ("out", "err"):
            (self.folder / name).write_bytes(b"")
        streams = {
            name: path if path is None else str(self.folder / path)
            for name, path in (("stdout", stdout), ("stderr", stderr))
        }
        asked = {"code": code or PROGRAM.format(arguments), "environment": environment or {}, **streams}
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{json.dumps(asked)}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self) -> subprocess.CompletedProcess[bytes]:
        """Wait for what was started; its output is that of streams to "out" and "err"."""
        assert self.process.stdout
        code = int(self.process.stdout.readline())
        out, err = ((self.folder / name).read_bytes() for name in ("out", "err"))
        return subprocess.CompletedProcess((), code, out, err)

    def run(self, *arguments: str, **settings: Any) -> subprocess.CompletedProcess[bytes]:
        """Start it and wait for its end."""
        self.start(*arguments, **settings)
        return self.end()


@contextmanager
def forks(folder: Path, *modules: str) -> Iterator[Forks]:
    """Within it children can be forked that have imported these modules and write into a folder."""
    command = [sys.executable, "-m", "tests.cli.forks", *modules]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield Forks(process, folder)
        assert process.stdin
        process.stdin.close()  # which ends it


def _child(answers: int) -> dict[str, Any]:
    """Fork for every line that is read; return what it asks for, in the child alone."""
    for line in iter(sys.stdin.readline, ""):
        asked: dict[str, Any] = json.loads(line)
        child = os.fork()
        if not child:
            os.close(answers)
            return asked
        os.write(answers, f"{child}\n".encode())
        _, status = os.waitpid(child, 0)
        os.write(answers, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    raise SystemExit


def _lead(number: int, name: str, path: str | None) -> None:
    """Let a stream lead to a path; or close it, and have it as an interpreter that was started with `>&-`."""
    if path is None:
        os.close(number)
        setattr(sys, name, None)
        setattr(sys, f"__{name}__", None)
        return
    opened = os.open(path, os.O_WRONLY)
    os.dup2(opened, number)
    os.close(opened)


def main() -> None:
    gc.disable()
    for module in sys.argv[1:]:
        import_module(module)
    gc.enable()
    gc.freeze()  # else the first collection of each child copies all memory of its parent
    asked = _child(os.dup(1))
    gc.unfreeze()
    os.environ.update(asked["environment"])
    _lead(1, "stdout", asked["stdout"])
    _lead(2, "stderr", asked["stderr"])
    exec(asked["code"], {"__name__": "__main__"})


if __name__ == "__main__":
    main()
