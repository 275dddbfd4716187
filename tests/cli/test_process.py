"""What only a process of its own can show: what is imported, closed pipes, signals, terminals."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = str(ROOT / "configs" / "tiny.yaml")


def initdiag(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "initdiag", *arguments],
        capture_output=True,
        env={**os.environ, **environment},
        check=False,
    )


def imported(arguments: list[str]) -> set[str]:
    """Run the program and return the top-level packages that it has imported at its end."""
    code = (
        "import sys, atexit\n"
        f"sys.argv = ['initdiag', *{arguments!r}]\n"
        "from initdiag.cli.entry import main\n"
        "atexit.register(lambda: sys.stderr.write('\\nIMPORTED ' + ' '.join(sorted(sys.modules))))\n"
        "main()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return {name.split(".")[0] for name in result.stderr.rpartition("IMPORTED ")[2].split()}


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
def test_nothing_that_needs_no_model_imports_torch(arguments: list[str]) -> None:
    packages = imported(arguments)
    assert "initdiag" in packages
    assert "torch" not in packages and "numpy" not in packages


def test_that_test_can_fail() -> None:
    assert "torch" in imported(["check", CONFIG, "-q"])


def test_importing_the_library_imports_no_torch() -> None:
    code = "import sys, initdiag, initdiag.theory, initdiag.rules, initdiag.report; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"False"


def test_module_and_script_are_the_same_program() -> None:
    script = Path(sys.executable).with_name("initdiag")
    ran = subprocess.run([str(script), "scheme", "gpt2"], capture_output=True, check=True)
    assert ran.stdout == initdiag("scheme", "gpt2").stdout


@pytest.mark.parametrize(
    "arguments", ["check {} -q", "check {} -q --output-format json", "rule", "plan {} -q", "schema"]
)
def test_a_reader_who_reads_nothing_is_no_failure(arguments: str) -> None:
    code = f"{sys.executable} -m initdiag {arguments.format(CONFIG)} | true; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", code], capture_output=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, b"")


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), (">/dev/full", 2)])
def test_a_stream_that_is_closed_or_full(closed: str, code: int) -> None:
    ran = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m initdiag check {CONFIG} -q {closed}"], capture_output=True, check=False
    )
    assert ran.returncode == code
    assert b"internal error" not in ran.stderr and b"Traceback" not in ran.stderr
    if code:
        assert ran.stderr.strip() == b"initdiag: can't write to stdout: No space left on device"


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


def test_too_little_memory_is_said_so() -> None:
    sizes = "--set tokens.batch=20000 --set model.d_model=512 --set model.n_layers=1"
    code = f"ulimit -v 4000000; {sys.executable} -m initdiag check {CONFIG} -q {sizes}"
    ran = subprocess.run(["bash", "-c", code], capture_output=True, check=False)
    assert ran.returncode == 2
    assert b"ran out of memory" in ran.stderr and b"Use a smaller batch or length" in ran.stderr


@pytest.mark.parametrize("width", ["1", "20", "28"])
def test_the_narrowest_terminal_cuts_no_number(width: str) -> None:
    out = initdiag("check", CONFIG, "-q", COLUMNS=width).stdout.decode()
    whole = initdiag("check", CONFIG, "-q", COLUMNS="200").stdout.decode()
    numbers = set(re.findall(r"\d\.\d{3,}", "\n".join(whole.splitlines()[5:20])))
    assert numbers and numbers <= set(re.findall(r"\d\.\d{3,}", out))


def test_a_reader_that_leaves_is_no_failure() -> None:
    code = f"{sys.executable} -m initdiag check {CONFIG} {CONFIG} -q | head -1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", code], capture_output=True, check=False)
    assert ran.returncode == 0
    assert ran.stdout.startswith(b"tiny") or ran.stdout.startswith(CONFIG.encode())
    assert b"Traceback" not in ran.stderr and b"BrokenPipe" not in ran.stderr


def test_a_reader_that_leaves_hides_no_verdict() -> None:
    bad = str(ROOT / "configs" / "bad.yaml")
    code = f"{sys.executable} -m initdiag check {bad} -q | head -c 1; exit ${{PIPESTATUS[0]}}"
    ran = subprocess.run(["bash", "-c", code], capture_output=True, check=False)
    assert ran.returncode == 1


C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
TEXTS = [["check", CONFIG, "-q"], ["rule", "LOSS001"], ["scheme", "scaled"], ["plan", CONFIG, "-q"]]


@pytest.mark.parametrize("environment", [{"PYTHONIOENCODING": "ascii"}, C_LOCALE], ids=["ascii", "C"])
@pytest.mark.parametrize("arguments", TEXTS, ids=" ".join)
def test_an_ascii_terminal(environment: dict[str, str], arguments: list[str]) -> None:
    ran = initdiag(*arguments, **environment)
    assert ran.returncode == 0
    assert ran.stdout.isascii() and b"?" not in ran.stdout
    assert b"Traceback" not in ran.stderr


@pytest.mark.parametrize("seconds", [0.5, 2.0, 3.5, 5.0])
def test_ctrl_c(seconds: float) -> None:
    """At any moment: while torch is imported, and inside a forward, where C++ or a weak reference may swallow it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "initdiag", "compare", CONFIG, "--seeds", "10000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == b"" and b"Traceback" not in err and b"interrupted" in err


def test_progress_is_on_stderr_and_can_be_silenced() -> None:
    """Importing torch takes longer than a second or not; either way stdout holds the report alone."""
    loud, quiet = initdiag("check", CONFIG), initdiag("check", CONFIG, "-q")
    assert loud.stdout == quiet.stdout
    assert quiet.stderr == b""


def test_colour_follows_the_environment() -> None:
    plain = initdiag("check", CONFIG, "-q")
    assert b"\x1b[" not in plain.stdout
    assert b"\x1b[" in initdiag("check", CONFIG, "-q", "--color", "always").stdout
    assert b"\x1b[" in initdiag("check", CONFIG, "-q", FORCE_COLOR="1").stdout
    assert b"\x1b[" not in initdiag("check", CONFIG, "-q", FORCE_COLOR="1", NO_COLOR="1").stdout
    assert b"\x1b[" not in initdiag("check", CONFIG, "-q", "--color", "never", FORCE_COLOR="1").stdout


@pytest.mark.parametrize(("own", "frozen"), [(False, False), (True, True)])
def test_only_a_process_of_our_own_hides_what_it_imports_from_the_collector(own: bool, frozen: bool) -> None:
    code = (
        "import gc, initdiag\n"
        f"settings = initdiag.Settings(own_process={own})\n"
        "counts = [initdiag.check('tiny', settings=settings) and gc.get_freeze_count() for _ in range(2)]\n"
        f"assert (counts[0] > 0) is {frozen} and counts[1] <= counts[0], counts"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
