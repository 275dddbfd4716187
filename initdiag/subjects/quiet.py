"""What transformers would print or fetch, kept from happening. No torch."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from initdiag.subjects.frames import prints_to_stderr

_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
_LOGGERS = ("transformers", "huggingface_hub", "py.warnings")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep transformers, already imported, silent (logging, warnings, stdout, stderr) and off the network.

    All of that is as it was at the end, also after an error.
    """
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with offline(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def import_transformers() -> None:
    """Import transformers without its advice, and without switching the network off for good.

    Raises:
        ImportError: it isn't installed, or fails.
    """
    with offline(), prints_to_stderr(), warnings.catch_warnings():
        # not under quiet(): its log handler keeps the stderr that it meets here
        warnings.simplefilter("ignore")
        import transformers.models.auto.configuration_auto
        import transformers.models.auto.modeling_auto  # noqa: F401


@contextmanager
def offline() -> Iterator[None]:
    """Make every download by huggingface_hub an error; what lies in its cache is found."""
    before = {name: os.environ.get(name) for name in _OFFLINE}
    hub = sys.modules.get("huggingface_hub.constants")
    switch = getattr(hub, "HF_HUB_OFFLINE", None) or False
    os.environ.update(_OFFLINE)
    if hub is not None:
        hub.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]  # it has read the environment already
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
        if hub is None:  # imported meanwhile
            switch = (before["HF_HUB_OFFLINE"] or "").upper() in ("1", "ON", "YES", "TRUE")
            hub = sys.modules.get("huggingface_hub.constants")
        if hub is not None:
            hub.HF_HUB_OFFLINE = switch  # type: ignore[attr-defined]
