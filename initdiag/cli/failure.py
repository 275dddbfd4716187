"""How a command ends when something is wrong: one clear sentence on stderr and an exit code, no traceback."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum

from initdiag.errors import InitdiagError


class Exit(IntEnum):
    """The exit codes, the same for every output format. docs/exit-codes.md is generated from these texts."""

    PASS = 0, "no finding of severity error (warnings don't fail)"
    FINDINGS = 1, "at least one finding of severity error; --exit-zero turns this one into 0"
    ERROR = 2, "anything wrong with the config, the usage or the run itself; the message is on stderr"
    INTERRUPTED = 130, "stopped with Ctrl-C"

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member


class _Debug:
    """Whether --debug was given; set by the option's callback before anything can fail."""

    on = False


def debug_on(value: bool) -> bool:
    _Debug.on = _Debug.on or value
    return value


def guarded(app: Callable[[], None]) -> int:
    """Run the app and return the exit code that it asks for.

    An unforeseen exception is exit 2 too: with Python's own 1, a crash would look like a finding.
    """
    _Debug.on = False
    try:
        app()
        sys.stdout.flush()
    except SystemExit as stop:
        return _code(stop)
    except BrokenPipeError:
        return _closed_pipe()
    except KeyboardInterrupt:
        _say("interrupted")
        return Exit.INTERRUPTED
    except InitdiagError as error:
        if _Debug.on:
            traceback.print_exc()
        _say(str(error))
        return Exit.ERROR
    except RecursionError:
        _say("the input is nested too deeply")
        return Exit.ERROR
    except Exception as error:  # the last line of defence
        if _Debug.on:
            traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0][:300]
        _say(f"internal error: {type(error).__name__}: {first} (--debug shows where; please report it)")
        return Exit.ERROR
    return Exit.PASS


def _code(stop: SystemExit) -> int:
    if stop.code == Exit.INTERRUPTED:
        _say("interrupted")
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _closed_pipe()
    return stop.code if isinstance(stop.code, int) else Exit.PASS if stop.code is None else Exit.ERROR


def _closed_pipe() -> int:
    """The reader has gone (`| head`): that's no failure, but Python would complain once more at its own exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return Exit.PASS


def _say(message: str) -> None:
    prefix = "" if message.startswith("initdiag") else "initdiag: "
    lines = message.splitlines() or [""]
    try:
        print("\n".join([f"{prefix}{lines[0]}", *lines[1:]]), file=sys.stderr)
    except (OSError, ValueError):  # nobody listens
        return
