"""What a scheme demands of the forward pass, put into an architecture. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from initdiag.errors import PlanError, did_you_mean
from initdiag.model.architecture import Architecture
from initdiag.model.parameters import sizes
from initdiag.model.quantities import SIZES
from initdiag.schemes import Scheme
from initdiag.schemes.formula import evaluate
from initdiag.schemes.settings import formula_names

WORDS: dict[str, Any] = {"true": True, "false": False}
BY_BRANCH = ("residual_multiplier", "stream_multiplier")


def demanded(shape: Architecture, scheme: Scheme, settings: Mapping[str, float | str]) -> Architecture:
    """Return the architecture as the scheme wants it: its multipliers, and where norms stand, in place of the config's.

    Raises:
        PlanError: a formula can't be computed, or what is demanded doesn't fit this model.
    """
    if not scheme.forward:
        return shape
    changes = {field: _demand(shape, scheme, settings, field, text) for field, text in scheme.forward.items()}
    kept = shape.model_dump(exclude_unset=True)
    try:
        return Architecture.model_validate({**kept, **changes})
    except ValidationError as error:
        wanted = ", ".join(f"{field} {_shown(value)}" for field, value in changes.items())
        why = "; ".join(_why(detail) for detail in error.errors() if detail["type"] != "default_factory_not_called")
        raise PlanError(f"scheme '{scheme.name}' wants {wanted}, which doesn't fit this model: {why}") from error


def _why(detail: ErrorDetails) -> str:
    field = ".".join(str(part) for part in detail["loc"] if part in Architecture.model_fields)
    said = detail["msg"].removeprefix("Value error, ")
    return f"{field}: {said}" if field else said


def changes(shape: Architecture, before: Architecture) -> tuple[str, ...]:
    """Say what a scheme has changed: 'placement post (config: pre)'."""
    said = []
    for field in Architecture.model_fields:
        now, then = getattr(shape, field), getattr(before, field)
        if now != then and field in shape.model_fields_set:
            said.append(f"{field} {_shown(now)} (config: {_shown(then)})")
    return tuple(said)


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:.4g} … {value[-1]:.4g}"
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower()


def _demand(
    shape: Architecture, scheme: Scheme, settings: Mapping[str, float | str], field: str, text: str
) -> str | bool | float | tuple[float, ...]:
    if field not in Architecture.model_fields or field in SIZES:
        fields = [name for name in Architecture.model_fields if name not in SIZES]
        raise PlanError(
            f"scheme '{scheme.name}' wants '{field}' of the forward pass; expected a field of `model:` that is no size"
            + did_you_mean(field, fields)
        )
    try:
        return _value(shape, scheme, settings, field, text)
    except PlanError as error:
        raise PlanError(f"scheme '{scheme.name}' wants {field} '{text}' of the forward pass: {error}") from error


def _value(
    shape: Architecture, scheme: Scheme, settings: Mapping[str, float | str], field: str, text: str
) -> str | bool | float | tuple[float, ...]:
    if text in WORDS:
        return bool(WORDS[text])
    if isinstance(getattr(shape, field), str):
        return text
    if field not in BY_BRANCH:
        number = evaluate(text, formula_names(scheme, sizes(shape), settings))
        return int(number) if isinstance(getattr(shape, field), int) and number == int(number) else number
    branches = range(1, 2 * shape.n_layers + 1)
    numbers = [
        evaluate(text, formula_names(scheme, sizes(shape), settings, (branch - 1) // 2, branch)) for branch in branches
    ]
    return numbers[0] if len(set(numbers)) == 1 else tuple(numbers)
