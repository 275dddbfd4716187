"""Keeps torch's products to one thread.

On matrices this small, threads wait for each other: on a busy machine twenty times longer than the work takes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_TURN = threading.Lock()  # the number is one for all Python threads, which would put it back in the wrong order


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread inside, and put the number back."""
    with _TURN:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(threads)
