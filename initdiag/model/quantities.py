"""Numbers of an architecture that may be written as formulas of its sizes: "1 / sqrt(168)", "sqrt(d_model)"."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, ValidationInfo
from pydantic_core import PydanticCustomError

from initdiag.errors import PlanError
from initdiag.schemes.formula import evaluate

# what a formula may use; an architecture has these fields before all that may be a formula
SIZES = ("vocab_size", "context", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff")
LARGEST = 1e6

Branches = float | tuple[float, ...]


def _quantity(value: object, info: ValidationInfo) -> object:
    """Compute a formula; what is no text is left to the field's own type."""
    return _computed(value, info.data) if isinstance(value, str) else value


def _by_branch(value: object, info: ValidationInfo) -> Branches:
    """Return one number, or one for each of the 2N branches where they differ."""
    if isinstance(value, str):
        return _alike(tuple(_formula_by_branch(value, info.data)))
    if not isinstance(value, list | tuple):
        return _positive(value)
    numbers, n_layers = tuple(_positive(number) for number in value), info.data.get("n_layers")
    if n_layers is not None and len(numbers) != 2 * n_layers:
        raise _refused(
            f"found {len(numbers)} numbers, expected one for each of the {2 * n_layers} branches, or one for all"
        )
    return _alike(numbers)


def _alike(numbers: tuple[float, ...]) -> Branches:
    return numbers[0] if len(set(numbers)) == 1 else numbers


def _formula_by_branch(formula: str, data: Mapping[str, Any]) -> Iterator[float]:
    if data.get("n_layers") is None:
        raise PydanticCustomError("formula_depends", "n_layers is wrong")
    varies = re.search(r"\b(layer|branch)\b", formula)
    for branch in range(1, 2 * data["n_layers"] + 1 if varies else 2):
        place = {"layer": float((branch - 1) // 2), "branch": float(branch)}
        number = _computed(formula, {**data, **place}, ("layer", "branch"))
        if not 0 < number <= LARGEST:
            raise _refused(f"the formula '{formula}' gives {number:g}, expected numbers above 0 and up to {LARGEST:g}")
        yield number


def _computed(formula: str, data: Mapping[str, Any], also: tuple[str, ...] = ()) -> float:
    wanted = (*SIZES, *also)
    names = {name: float(data[name]) for name in wanted if data.get(name) is not None}
    missing = set(re.findall(r"[A-Za-z_]\w*", formula)) & set(wanted) - set(names)
    if missing:
        raise PydanticCustomError("formula_depends", f"{missing.pop()} is wrong")
    try:
        return evaluate(formula, names)
    except PlanError as error:
        raise _refused(str(error)) from None


def _positive(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value <= LARGEST:
        expected = f"a number above 0 and up to {LARGEST:g}, a formula, or a list of numbers"
        raise _refused(f"found {value!r}, expected {expected}")
    return float(value)


def _refused(message: str) -> PydanticCustomError:
    return PydanticCustomError("formula", "{message}", {"message": message})


Quantity = Annotated[float, BeforeValidator(_quantity, json_schema_input_type=float | str)]
ByBranch = Annotated[Branches, BeforeValidator(_by_branch, json_schema_input_type=float | str | list[float])]
