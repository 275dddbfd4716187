"""What only a process of its own can show: what is imported, closed pipes, signals, terminals.

Most of them are forked from one that has imported torch; the others show what happens before and while it is.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from initdiag.cli.main import COMMANDS, app
from tests.cli.conftest import Imported
from tests.cli.forks import PROGRAM, Forks, forks

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "configs" / "tiny.yaml")
SMALLER = ("--set", "model.n_layers=1", "--set", "tokens.length=16")
CHECK = ("check", CONFIG, "-q", *SMALLER)


IMPORTS = (
    "initdiag.cli.main",
    "torch",
    "initdiag.engines.dense",
    "initdiag.engines.weightless",
    "initdiag.measure.observe",
    "initdiag.report",
    "initdiag.rules",
    "initdiag.theory.forward",
)


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Processes of the program that torch is imported in."""
    with forks(tmp_path_factory.mktemp("ours"), *IMPORTS) as found:
        yield found


@pytest.fixture
def pipe(ours: Forks) -> Iterator[Path]:
    """A path in the folder of `ours` that is a pipe."""
    path = ours.folder / "pipe"
    os.mkfifo(path)
    yield path
    path.unlink()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["check", "--help"],
        ["compare", "--help"],
        ["plan", "--help"],
        ["scheme", "--help"],
        ["rule"],
        ["rule", "LOSS001"],
        ["scheme"],
        ["scheme", "scaled"],
        ["schema"],
        ["new", "--list"],
        ["check", "no-such-config"],
        ["check", CONFIG, "--set", "model.d_model=-1"],
        ["check", CONFIG, "--set", "gate.select=[X]"],
        ["check", CONFIG, "--text", "no-such-file"],
        ["check", CONFIG, "--output-format", "x"],
        ["compare", CONFIG, "--schemes", "x"],
        ["check", CONFIG, "--vocab-size", "5"],
        ["check", "model.py:GPT", "--kwargs", "no-such-file"],
        ["scheme", "--for", "model.py:GPT"],
        ["scheme", "x", "--for", "model.py:GPT"],
        ["scheme", "scaled", "--for", "no-such-config"],
    ],
    ids=" ".join,
)
def test_nothing_that_needs_no_model_imports_torch(arguments: list[str], imported: Imported) -> None:
    packages = imported(arguments)
    assert "initdiag" in packages
    assert "torch" not in packages and "numpy" not in packages


def test_that_test_can_fail(imported: Imported) -> None:
    assert "torch" in imported([*CHECK])


# what takes long and these commands never need; of all, that they don't import the other commands
BAD_VALUE = (CONFIG, "--set", "model.d_model=-1")
OURS = ("initdiag.config", "initdiag.schemes", "initdiag.subjects")
RUNS = ("numpy", "initdiag.measure", "initdiag.rules", "initdiag.theory", "initdiag.report.report")
MODULES = ("initdiag.subjects.huggingface", "initdiag.subjects.import_path", "initdiag.tokens.files")
UNUSED = {
    "--help": (("--help",), (*RUNS, *OURS, "pydantic", "rich")),
    "typo": (("chekc",), (*RUNS, *OURS)),  # typer parses with pydantic
    "predict --help": (("predict", "--help"), (*RUNS, *OURS, "initdiag.cli.check")),
    "check a bad value": (("check", *BAD_VALUE), (*RUNS, *MODULES, "initdiag.cli.predict")),
    "predict a bad value": (("predict", *BAD_VALUE), (*RUNS, *MODULES, "initdiag.cli.check")),
    "scheme": (("scheme",), (*RUNS, *MODULES, "initdiag.config.schema", "initdiag.model", "initdiag.cli.check")),
    "rule": (
        ("rule",),
        ("numpy", *MODULES, "initdiag.config.schema", "initdiag.model.architecture", "initdiag.cli.check"),
    ),
    "predict": (("predict", CONFIG, "-q"), ("torch", *MODULES, "initdiag.report.planned", "initdiag.cli.check")),
}


@pytest.mark.parametrize(("arguments", "unused"), UNUSED.values(), ids=UNUSED)
def test_a_command_imports_nothing_that_it_never_needs(arguments: tuple[str, ...], unused: tuple[str, ...]) -> None:
    """Of all that it starts with: in an interpreter that has imported nothing before."""
    at_exit = "import sys, atexit; atexit.register(lambda: sys.stderr.write('\\nIMPORTED ' + ' '.join(sys.modules)))\n"
    ran = subprocess.run([sys.executable, "-c", at_exit + PROGRAM.format(arguments)], capture_output=True, check=False)
    imported = set(ran.stderr.decode().rpartition("IMPORTED ")[2].split())
    assert "initdiag.cli.main" in imported
    assert not imported.intersection(unused)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_alone_is_the_one_among_all(name: str) -> None:
    """The program builds only the command that it is called for."""
    alone, of_all = (CliRunner().invoke(made, [name, "--help"]) for made in (app([name]), app()))
    assert alone.exit_code == 0 and f" {name} [OPTIONS]" in alone.output
    assert alone.output == of_all.output


def test_what_names_no_command_is_told_of_all() -> None:
    def told(*arguments: str, **environment: str) -> str:
        command = [sys.executable, "-m", "initdiag", *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)
        return ran.stdout + ran.stderr

    assert re.findall(r"^  ([a-z]+)  +[A-Z]", told("--help").partition("Commands:")[2], re.MULTILINE) == [*COMMANDS]
    assert "No such command 'chekc'. Did you mean 'check'?" in told("chekc", "tiny")
    completion = {"_INITDIAG_COMPLETE": "complete_bash", "COMP_WORDS": "initdiag sche", "COMP_CWORD": "1"}
    assert told(**completion).split() == ["scheme", "schema"]


def test_importing_the_library_imports_no_torch() -> None:
    code = "import sys, initdiag, initdiag.theory, initdiag.rules, initdiag.report; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"False"


def test_module_and_script_are_the_same_program() -> None:
    script = Path(sys.executable).with_name("initdiag")
    ran = subprocess.run([str(script), "scheme", "gpt2"], capture_output=True, check=True)
    module = subprocess.run([sys.executable, "-m", "initdiag", "scheme", "gpt2"], capture_output=True, check=True)
    assert ran.stdout == module.stdout


@pytest.mark.parametrize(
    "arguments",
    [[*CHECK], [*CHECK, "--output-format", "json"], ["rule"], ["plan", CONFIG, "-q"], ["schema"]],
    ids=["check", "json", "rule", "plan", "schema"],
)
def test_a_reader_who_reads_nothing_is_no_failure(arguments: list[str], ours: Forks, pipe: Path) -> None:
    ours.start(*arguments, stdout=pipe.name)
    os.close(os.open(pipe, os.O_RDONLY))
    ran = ours.end()
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("closed", "code"),
    [({"stdout": None}, 0), ({"stderr": None}, 0), ({"stdout": "/dev/full"}, 2)],
    ids=[">&-", "2>&-", ">/dev/full"],
)
def test_a_stream_that_is_closed_or_full(closed: dict[str, str | None], code: int, ours: Forks) -> None:
    ran = ours.run(*CHECK, **closed)
    assert ran.returncode == code
    assert b"internal error" not in ran.stderr and b"Traceback" not in ran.stderr
    if code:
        assert ran.stderr.strip() == b"initdiag: can't write to stdout: No space left on device"


def test_both_streams_are_closed() -> None:
    """By a shell, and from the start of the interpreter."""
    command = shlex.join([sys.executable, "-m", "initdiag", *CHECK])
    ran = subprocess.run(["bash", "-c", f"{command} >&- 2>&-"], check=False)
    assert ran.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [("tiny --set model.d_model=0", b"--set model.d_model=0: "), ("tiny --text x", b"the current directory")],
)
def test_a_current_directory_that_is_gone(tmp_path: Path, arguments: str, says: bytes) -> None:
    """torch itself can't be loaded there (oneMKL looks for its libraries), but what is wrong before it can be said."""
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"cd {gone} && rmdir {gone} && {sys.executable} -P -m initdiag check {arguments}"
    ran = subprocess.run(["bash", "-c", code], capture_output=True, check=False)
    assert ran.returncode == 2 and says in ran.stderr and b"internal error" not in ran.stderr


def test_too_little_memory_is_said_so(ours: Forks) -> None:
    sizes = "--set tokens.batch=5000 --set model.d_model=1024 --set model.n_layers=1"  # a stream of 2.6 GB
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
    ran = ours.run(code=limit + PROGRAM.format(["check", CONFIG, "-q", *sizes.split()]))
    assert ran.returncode == 2
    assert b"ran out of memory" in ran.stderr and b"Use a smaller batch or length" in ran.stderr


def test_the_narrowest_terminal_cuts_no_number(ours: Forks) -> None:
    def shown(width: int) -> str:
        out: bytes = ours.run(*CHECK, environment={"COLUMNS": str(width)}).stdout
        return out.decode()

    numbers = set(re.findall(r"\d\.\d{3,}", "\n".join(shown(200).splitlines()[5:20])))
    assert numbers
    for width in (1, 20, 28):
        assert numbers <= set(re.findall(r"\d\.\d{3,}", shown(width))), width


def test_a_reader_that_leaves_is_no_failure(ours: Forks, pipe: Path) -> None:
    ours.start("check", CONFIG, CONFIG, "-q", *SMALLER, stdout=pipe.name)
    with pipe.open("rb") as reader:
        first = reader.readline()
    ran = ours.end()
    assert ran.returncode == 0
    assert first.startswith(b"tiny") or first.startswith(CONFIG.encode())
    assert b"Traceback" not in ran.stderr and b"BrokenPipe" not in ran.stderr


def test_a_reader_that_leaves_hides_no_verdict(ours: Forks, pipe: Path) -> None:
    ours.start("check", str(ROOT / "configs" / "bad.yaml"), "-q", *SMALLER, stdout=pipe.name)
    with pipe.open("rb", buffering=0) as reader:
        assert reader.read(1)
    assert ours.end().returncode == 1


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
TEXTS = [[*CHECK], ["rule", "LOSS001"], ["scheme", "scaled"], ["plan", CONFIG, "-q"]]


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, C_LOCALE], ids=["ascii", "C"])
def test_an_ascii_terminal(environment: dict[str, str]) -> None:
    """One process for all texts: its streams have their encoding from its start."""
    code = (
        "import sys\nfrom initdiag.cli.main import run\n"
        f"for arguments in {TEXTS!r}:\n"
        "    sys.argv = ['initdiag', *arguments]\n"
        "    print(f'\\n--- {run()}\\n')"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env={**os.environ, **environment}, check=False
    )
    assert ran.returncode == 0
    outputs = ran.stdout.split(b"\n--- 0\n\n")
    assert len(outputs) == len(TEXTS) + 1 and all(len(out) > 200 for out in outputs[:-1])
    assert ran.stdout.isascii() and b"?" not in ran.stdout
    assert b"Traceback" not in ran.stderr


def test_no_exception_is_raised_into_the_import_of_torch() -> None:
    """Where it has to pass C++, the process would end by SIGABRT."""
    code = (
        "import os, signal, sys, types\n"
        "from initdiag.cli.failure import guarded\n"
        "sys.modules['torch'] = torch = types.ModuleType('torch')\n"
        "torch.__spec__ = types.SimpleNamespace(_initializing=True)\n"
        "guarded(lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "print('went on')"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"initdiag: interrupted\n")


INTERRUPTED = ("compare", CONFIG, "--seeds", "10000")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("seconds", [0.0, 0.5])
def test_ctrl_c_while_torch_is_imported(seconds: float) -> None:
    """Right after the first of its libraries is loaded, and later."""
    process = subprocess.Popen(
        [sys.executable, "-m", "initdiag", *INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None
        time.sleep(0.02)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == b"" and b"Traceback" not in err and b"interrupted" in err


@pytest.mark.parametrize("seconds", [0.4, 0.8, 1.2])
def test_ctrl_c_in_a_forward(seconds: float, ours: Forks) -> None:
    """Where C++ or a weak reference may swallow it. (What starts it takes some 0.1 s.)"""
    process = ours.start(*INTERRUPTED)
    time.sleep(seconds)
    os.kill(process, signal.SIGINT)
    ran = ours.end()
    assert ran.returncode == 130, ran.stderr
    assert ran.stdout == b"" and b"Traceback" not in ran.stderr and b"interrupted" in ran.stderr


def test_progress_is_on_stderr_and_can_be_silenced(ours: Forks) -> None:
    """Importing torch takes longer than a second or not; either way stdout holds the report alone."""
    loud = subprocess.run([sys.executable, "-m", "initdiag", *CHECK[:2], *SMALLER], capture_output=True, check=False)
    quiet = ours.run(*CHECK)
    assert loud.stdout == quiet.stdout
    assert quiet.stderr == b""


def test_colour_follows_the_environment(ours: Forks) -> None:
    def coloured(*arguments: str, **environment: str) -> bool:
        out: bytes = ours.run(*CHECK, *arguments, environment=environment).stdout
        return b"\x1b[" in out

    assert not coloured()
    assert coloured("--color", "always")
    assert coloured(FORCE_COLOR="1")
    assert not coloured(FORCE_COLOR="1", NO_COLOR="1")
    assert not coloured("--color", "never", FORCE_COLOR="1")


@pytest.mark.parametrize(("own", "frozen"), [(False, False), (True, True)])
def test_only_a_process_of_our_own_hides_what_it_imports_from_the_collector(
    own: bool, frozen: bool, ours: Forks
) -> None:
    code = (
        "import gc, initdiag\n"
        f"given = {{'settings': initdiag.Settings(own_process={own}), 'overrides': {SMALLER[1::2]!r}}}\n"
        "counts = [initdiag.check('tiny', **given) and gc.get_freeze_count() for _ in range(2)]\n"
        f"assert (counts[0] > 0) is {frozen} and counts[1] <= counts[0], counts"
    )
    ran = ours.run(code=code)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("arguments", "on"),
    [
        (CHECK, True),
        (("plan", CONFIG, "-q"), True),
        (("scheme", "gpt2", "--for", "torch.nn:Identity"), True),
        (("rule",), False),
    ],
    ids=["check", "plan", "scheme --for", "rule"],
)
def test_the_collector_is_on_where_models_are_built(arguments: tuple[str, ...], on: bool, ours: Forks) -> None:
    """A model's reference cycles hold its tensors. What is imported is never looked through, nor at the exit."""
    at_exit = "import atexit, gc; atexit.register(lambda: print(gc.isenabled(), gc.get_freeze_count() > 0))\n"
    ran = ours.run(code=at_exit + PROGRAM.format(arguments))
    assert ran.stdout.decode().endswith(f"{on} True\n"), ran.stderr
