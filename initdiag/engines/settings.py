"""How a model is run. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from initdiag.errors import UsageError, require_one_of

DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class Settings:
    """Where and in which precision; statistics are always taken in float32 or wider.

    Raises:
        UsageError: an unknown device or dtype.
    """

    device: str = "auto"
    dtype: str = "float32"
    threads: int | None = None

    def __post_init__(self) -> None:
        require_one_of("--device", self.device, DEVICES)
        require_one_of("--dtype", self.dtype, DTYPES)
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"--threads {self.threads}: expected at least 1")
