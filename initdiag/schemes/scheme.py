"""A scheme: an answer, for every role, to "what is this parameter drawn from?". Data, not code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from initdiag.schemes.roles import BIASES, Role


@dataclass(frozen=True)
class Draw:
    """A distribution whose numbers are still formulas, e.g. Draw("normal", "std / sqrt(2 * n_layers)").

    distribution: normal (the formula is its std), uniform (its bound), truncated (its sigma), orthogonal (its gain) or
        constant (its value).
    unscaled: the same number without the part of it that depends on depth, where there is such a part: the residual
        scaling that a model really has is measured against it.
    cut: of a truncated normal, in sigmas. corrected: its formula is the std that is left after cutting, not sigma.
    """

    distribution: str
    formula: str
    unscaled: str | None = None
    cut: str | None = None
    corrected: bool = False

    def __str__(self) -> str:
        match self.distribution:
            case "normal":
                return f"N({self.formula})"
            case "uniform":
                return f"U({self.formula})"
            case "orthogonal":
                return f"O({self.formula})"
            case "truncated":
                mark = ", std kept" if self.corrected else ""
                return f"TN({self.formula}, cut {self.cut}σ{mark})"
            case _:
                return self.formula


# What nearly all agree on, for whatever is no matrix and no embedding; a scheme that differs says so after it.
PLAIN: Mapping[Role, Draw] = {
    Role.NORM_SCALE: Draw("constant", "1"),
    **dict.fromkeys(BIASES, Draw("constant", "0")),
    Role.ATTENTION_SINK: Draw("constant", "0"),
    Role.MULTIPLIER: Draw("constant", "1"),
}


@dataclass(frozen=True)
class Scheme:
    """One published way to initialize a Transformer.

    family: what it is listed under. summary: one line. source: the public code or paper that its formulas are from.
    roles: an answer per role.
    parameters: what a user may set in YAML: name -> the default, itself a formula.
    choices: those parameters that are a word: name -> word -> the number that it stands for in formulas, itself a
        formula that may use `layer`; the first word is the default.
    terms: short names that formulas use for others, which may use `layer` and `branch` (1 … 2N).
    forward: what it demands of the forward pass: field of the reference Transformer -> formula or word.
    depth: what it does with depth. used_by: who trained with it. notes: what else to know, quirks first.
    aliases: other names that it is found by.
    calibration: an algorithm that rescales the drawn weights on a batch ("lsuv"), or "".
    """

    name: str
    summary: str
    source: str
    roles: Mapping[Role, Draw]
    parameters: Mapping[str, str] = field(default_factory=dict)
    choices: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    terms: Mapping[str, str] = field(default_factory=dict)
    forward: Mapping[str, str] = field(default_factory=dict)
    family: str = "custom"
    depth: str = ""
    used_by: str = ""
    notes: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    calibration: str = ""

    @property
    def settable(self) -> tuple[str, ...]:
        """The names of all parameters that a user may set."""
        return (*self.parameters, *self.choices)
