"""What the building of a module showed of its init code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from initdiag.schemes import Distribution


@dataclass(frozen=True)
class InitHistory:
    """What the building of the module showed; None fields where it could not be watched (a module that was handed in).

    unwritten: parameters and buffers whose memory init never wrote. untouched: parameters that only the framework's
    constructors wrote although an init function wrote others. rescaled: parameters that a second call of the module's
    own init changes again, with the factor. watched: whether building was watched. drawn: what each parameter was
    last drawn from, where that could be told. tie_declared, tie_found: whether head and embedding are to share storage,
    and whether they do.
    """

    watched: bool = False
    unwritten: tuple[str, ...] = ()
    untouched: tuple[str, ...] = ()
    rescaled: tuple[tuple[str, float], ...] = ()
    drawn: Mapping[str, Distribution] = field(default_factory=dict)
    tie_declared: bool | None = None
    tie_found: bool | None = None


NOT_WATCHED = InitHistory()
