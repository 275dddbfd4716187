"""How a model is run. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from types import NoneType

from initdiag.errors import UsageError, require_one_of, require_type

DEVICES = ("auto", "cpu", "cuda", "mps")
ENGINES = ("auto", "dense", "weightless")
DTYPES = ("float32", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class Settings:
    """Where and in which precision; statistics are always taken in float32 or wider.

    engine: "dense" draws all weights, "weightless" answers products without them, "auto" is dense where the weights
    fit and cost no more; None is auto, and says why only where it isn't dense.
    own_process: this process runs nothing else of torch's, and may do without DTensor, which takes a second to import.

    Raises:
        UsageError: an unknown device, dtype or engine, or the weightless one elsewhere than on the CPU.
    """

    device: str = "auto"
    dtype: str = "float32"
    threads: int | None = None
    engine: str | None = None
    own_process: bool = False

    def __post_init__(self) -> None:
        require_type("device", self.device, (str,), "a name")
        require_type("dtype", self.dtype, (str,), "a name such as 'bfloat16'")
        require_one_of("--device", self.device, DEVICES)
        require_one_of("--dtype", self.dtype, DTYPES)
        require_type("engine", self.engine, (str, NoneType), "a name such as 'weightless'")
        if self.engine is not None:
            require_one_of("--engine", self.engine, ENGINES)
        if self.engine == "weightless" and self.device not in ("auto", "cpu"):
            raise UsageError(f"--device {self.device}: the weightless engine runs on cpu; use --engine dense there")
        require_type("threads", self.threads, (int, NoneType), "a whole number")
        if self.threads is not None and self.threads < 1:
            raise UsageError(f"--threads {self.threads}: expected at least 1")
