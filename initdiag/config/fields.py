"""The kinds of fields that sections of a config are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from initdiag.config.wording import show
from initdiag.schemes import answers

LONGEST = 200  # characters of a formula; those of the schemes have at most 60, and nobody reads more
LARGEST = answers.LARGEST  # numbers and what formulas give have one bound


class Section(BaseModel):
    """Fields that can't be changed, of exactly the types that they say; anything else is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Words:
    """What messages call a type."""

    text: str


def _formula(text: str) -> str:
    """Return a formula on one line. What it means is not looked at here: the names that it may use aren't known yet."""
    stripped = text.strip()
    if len(stripped) > LONGEST:
        raise _refused(f"found a formula of {len(stripped):,} characters, expected at most {LONGEST}")
    if not stripped or not stripped.isprintable():
        raise _refused(f"found {show(text)}, expected a formula, such as '0.02 / sqrt(2 * n_layers)'")
    return stripped


def _refused(message: str) -> PydanticCustomError:
    return PydanticCustomError("formula", "{message}", {"message": message})


def _word(value: object) -> object:
    """Leave what is no word to `init_faults`, which knows the words of the scheme: pydantic's error is only an echo."""
    if not isinstance(value, str):
        raise PydanticCustomError("formula_depends", "expected a word")
    return value


Formula = Annotated[str, AfterValidator(_formula), Words("a formula in quotes")]
Word = Annotated[str, BeforeValidator(_word), Words("a word")]

Positive = Annotated[float, Field(gt=0, le=LARGEST)] | Formula
Cut = Annotated[float, Field(ge=answers.LEAST_CUT, le=LARGEST)] | Formula
NotNegative = Annotated[float, Field(ge=0, le=LARGEST)] | Formula
Size = Annotated[float, Field(gt=0, le=2**24)] | Formula
Value = Annotated[float, Field(ge=-LARGEST, le=LARGEST)] | Formula
