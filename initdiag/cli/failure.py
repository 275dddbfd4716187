"""How a command ends when something is wrong: one clear sentence on stderr and an exit code, no traceback."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum

from initdiag.errors import ConfigError, InitdiagError


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


class _Interrupt:
    """Whether Ctrl-C was pressed. The exception alone can get lost: raised inside a weak reference's callback it is
    ignored, and inside torch's C++ it comes out as another one."""

    seen = False


def _interrupt(*_: object) -> None:
    if _Interrupt.seen:  # pressed again: don't wait for anything
        os._exit(Exit.INTERRUPTED)
    if _torch_is_imported_now():  # its C++ would end the process at an exception, as a crash; there is nothing to undo
        with suppress(OSError):
            os.write(2, b"initdiag: interrupted\n")
        os._exit(Exit.INTERRUPTED)
    _Interrupt.seen = True
    raise KeyboardInterrupt


def _torch_is_imported_now() -> bool:
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def heed_interrupt() -> None:
    """Raise a Ctrl-C that got lost; called between the stages of a command."""
    if _Interrupt.seen:
        raise KeyboardInterrupt


def guarded(app: Callable[[], None]) -> int:
    """Run the app and return the exit code that it asks for.

    An unforeseen exception is exit 2 too: with Python's own 1, a crash would look like a finding.
    """
    _Debug.on = _Interrupt.seen = False
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, _interrupt)
    try:
        app()
        code = int(Exit.PASS)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else Exit.PASS if stop.code is None else Exit.ERROR
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    except Exception as error:
        code = Exit.INTERRUPTED if _Interrupt.seen else _failed(error)
    if _Interrupt.seen or code == Exit.INTERRUPTED:
        _say("initdiag: interrupted")
        return Exit.INTERRUPTED
    return code


def _failed(error: Exception) -> int:
    """Say what went wrong."""
    if _Debug.on:
        traceback.print_exception(error)
    if isinstance(error, ConfigError):
        _say(str(error))  # begins with file:line:column, which terminals open with a click
    elif isinstance(error, InitdiagError):
        _say(f"initdiag: {error}")
    elif isinstance(error, OSError):
        _say(f"initdiag: the system refused: {error}")
    else:  # the last line of defence
        first = (str(error).strip().splitlines() or [""])[0][:300]
        _say(f"initdiag: internal error: {type(error).__name__}: {first} (--debug shows where; please report it)")
    return Exit.ERROR


def _say(message: str) -> None:
    try:
        print(message, file=sys.stderr)
    except (OSError, ValueError):  # nobody listens
        return
