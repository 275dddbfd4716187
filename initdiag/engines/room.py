"""Whether a subject can be run at all, told before anything is allocated. On the CPU it needs no torch."""

from __future__ import annotations

from initdiag.engines.choose import ITEM
from initdiag.engines.settings import Settings
from initdiag.errors import RunError
from initdiag.memory import available, require_room
from initdiag.schemes.distributions import is_orthogonal
from initdiag.subjects import Subject
from initdiag.weightless.budget import SHARE


def require(subject: Subject, engine: str, settings: Settings, device: str = "cpu") -> None:
    """Check that an engine can run a subject whose weights it draws.

    Raises:
        RunError: its weights, or those that need entries, don't fit in memory; or its scheme rescales real weights, and
            the engine has none.
    """
    plan = subject.plan
    if engine == "weightless":
        if plan.calibration:
            raise RunError(
                f"{subject.name}: scheme '{plan.scheme}' rescales drawn weights on the batch, and needs real ones; use "
                "--engine dense, or another --scheme"
            )
        _require_entries(subject, settings)
    elif subject.module is None:
        numel = sum(entry.parameter.numel for entry in plan.entries)
        real = bool(plan.calibration) or any(is_orthogonal(entry.distribution) for entry in plan.entries)
        other = "another --scheme" if real else "--engine weightless"
        instead = f"Use {other}, a smaller n_layers or d_model"
        require_room(subject.name, numel * ITEM[settings.dtype], settings.dtype, device, instead, numel * 2)


def _require_entries(subject: Subject, settings: Settings) -> None:
    """Check that there is room for orthogonal matrices, which no products can stand for."""
    there = available("cpu")
    drawn = [entry.parameter.numel for entry in subject.plan.entries if is_orthogonal(entry.distribution)]
    needed = sum(drawn) * ITEM[settings.dtype]
    if subject.drawn_by_us and there is not None and needed > SHARE * there:
        raise RunError(
            f"{subject.name}: scheme '{subject.plan.scheme}' draws {len(drawn)} orthogonal matrices, which have to be "
            f"real and take {needed / 2**30:.1f} GiB; there is room for {SHARE * there / 2**30:.1f} GiB. Use another "
            "--scheme, a smaller n_layers or d_model"
        )
