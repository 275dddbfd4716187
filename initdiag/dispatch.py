"""The base of everything that watches torch's operations as they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch._C import _len_torch_dispatch_stack
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode


@contextmanager
def no_modes() -> Iterator[None]:
    """Run without any mode, as torch's _disable_current_modes does at the price of importing torch.fx, 1 s."""
    popped = [_pop_mode() for _ in range(_len_torch_dispatch_stack())]
    try:
        yield
    finally:
        for mode in reversed(popped):
            _push_mode(mode)


class DispatchMode(TorchDispatchMode):
    """A TorchDispatchMode that costs no import of torch._dynamo."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping __torch_dispatch__ for torch.compile: that alone imports torch._dynamo, 1.2 s."""
        return False
