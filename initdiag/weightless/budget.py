"""How much of a model without weights may be made real, and what was."""

from __future__ import annotations

from dataclasses import dataclass, field

from initdiag.errors import RunError
from initdiag.memory import available

SHARE = 0.5  # of the memory that is free at the start; activations need the rest
UNKNOWN = 2**32  # bytes, where the system doesn't tell


@dataclass
class Budget:
    """Bytes that may still be made real; `made` says of what and why, in words."""

    left: int
    made: dict[str, str] = field(default_factory=dict)

    def allow(self, name: str, size: int, why: str, needed: bool) -> bool:
        """Say whether `size` bytes of a parameter may be made real, and note them.

        Raises:
            RunError: they are needed, and don't fit.
        """
        if size > self.left:
            if needed:
                raise RunError(
                    f"{why} needs the entries of '{name}', {size / 2**30:.1f} GiB; there is room for "
                    f"{self.left / 2**30:.1f} GiB. Products, rows and sums need no entries; use those, or fewer layers"
                )
            return False
        self.left -= size
        self.made.setdefault(name, why)
        return True


def budget() -> Budget:
    """Return what this machine allows now."""
    there = available("cpu")
    return Budget(int(SHARE * there) if there is not None else UNKNOWN)
