"""What the report says of a run without weights. No torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WeightlessNotes:
    """parameters, entries: how many have no entries, and how many these would have been. asymptotic: those of them
    whose entries are not Gaussian. made_real: those that an operation needed the entries of, and why; they count as
    having none.
    """

    parameters: int
    entries: int
    asymptotic: tuple[str, ...] = ()
    made_real: tuple[tuple[str, str], ...] = ()
