"""The base of everything that watches torch's operations as they run."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class DispatchMode(TorchDispatchMode):
    """A TorchDispatchMode that costs no import of torch._dynamo."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping __torch_dispatch__ for torch.compile: that alone imports torch._dynamo, 1.2 s."""
        return False
