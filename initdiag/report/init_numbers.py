"""Numbers of an init function as code: the scheme's formulas, where those give exactly the planned number."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from initdiag.errors import PlanError
from initdiag.report.formulas import is_number, names_in, simplified, substituted, unparsed
from initdiag.schemes import Constant, Distribution, InitPlan, Orthogonal, Parameter, Role, Scheme, Truncated, Uniform
from initdiag.schemes.formula import evaluate


@dataclass(frozen=True)
class Numbers:
    """Writes numbers as the scheme's formulas. `sizes` are those that the code may name, such as n_layers."""

    scheme: Scheme | None
    settings: Mapping[str, float | str]
    sizes: Mapping[str, float]

    def of(self, distribution: Distribution, parameter: Parameter, role: Role, each: bool = False) -> str:
        """Write the number of a distribution; of a truncated normal, its sigma. `each`: there is a variable `layer`."""
        value, draw = value_of(distribution), self.scheme.roles.get(role) if self.scheme else None
        if draw is None:
            return repr(value)
        kept = 1.0  # of the std that the formula is, where that is the one after cutting
        if isinstance(distribution, Truncated) and self.corrected(role):
            kept = Truncated(1.0, distribution.cut).std
        return self._written(draw.formula, value, parameter, each, kept) or repr(value)

    def corrected(self, role: Role) -> bool:
        """Whether the scheme's number for a role is the std after cutting, not sigma."""
        draw = self.scheme.roles.get(role) if self.scheme else None
        return draw is not None and draw.corrected

    def cut(self, distribution: Truncated, parameter: Parameter, role: Role, each: bool = False) -> str:
        """Write where a truncated normal is cut, in sigmas."""
        draw = self.scheme.roles.get(role) if self.scheme else None
        if draw is None or draw.cut is None:
            return repr(distribution.cut)
        return self._written(draw.cut, distribution.cut, parameter, each) or repr(distribution.cut)

    def setting(self, name: str) -> str:
        """Write the line that sets a parameter of the scheme: as its default's formula where it has that value."""
        value = self.settings[name]
        assert not isinstance(value, str), "words are written as the number that they stand for"
        formula = self.scheme.parameters.get(name, "") if self.scheme else ""
        before = list(self.settings)[: list(self.settings).index(name)]
        known = {**self.sizes, **{other: self.settings[other] for other in before}}
        written = _expression(self._without_words(formula), value, _numbers(known), {}) or repr(value)
        return f"    {name} = {written}" + ("" if is_number(written) else f"  # {value:.4g}")

    def _written(self, formula: str, value: float, parameter: Parameter, each: bool, kept: float = 1.0) -> str:
        layer = -1 if parameter.layer is None else parameter.layer
        known = {**self.sizes, **_numbers(self.settings), **({"layer": float(layer)} if each else {})}
        inlined = {
            "fan_in": parameter.fan_in,
            "fan_out": parameter.fan_out,
            **({} if each else {"layer": layer}),
        }
        formula = self._without_words(formula)
        if kept != 1:
            formula = f"({formula}) / {kept!r}"
        return _expression(formula, value, known, inlined)

    def _without_words(self, formula: str) -> str:
        """Replace a choice by the formula of the word that was chosen."""
        words = {name: word for name, word in self.settings.items() if isinstance(word, str)}
        if self.scheme is None or not set(words) & set(names_in(formula)):
            return formula
        return simplified(substituted(formula, {name: self.scheme.choices[name][word] for name, word in words.items()}))


def _numbers(settings: Mapping[str, float | str]) -> dict[str, float]:
    return {name: value for name, value in settings.items() if not isinstance(value, str)}


def value_of(distribution: Distribution) -> float:
    """Return the number that a distribution's formula is of."""
    match distribution:
        case Uniform(bound=bound):
            return bound
        case Truncated(sigma=sigma):
            return sigma
        case Orthogonal(gain=gain):
            return gain
        case Constant(value=value):
            return value
        case _:
            return distribution.std


def _expression(formula: str, value: float, known: Mapping[str, float], inlined: Mapping[str, int]) -> str:
    """Return a formula as Python code over the known names, or '' where that would not give the value."""
    try:
        if not math.isclose(evaluate(formula, {**known, **inlined}), value, rel_tol=1e-12):
            return ""
    except PlanError:  # it uses sizes that nobody told us
        return ""
    tree = ast.parse(formula, mode="eval")
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = f"math.{node.id}" if node.id in ("sqrt", "log") else str(inlined.get(node.id, node.id))
    # as ruff writes it: powers of simple operands have no spaces around the operator
    return re.sub(r"(?<=[\w.]) \*\* (?=-?[\w.]+(?![\w.(]))", "**", unparsed(tree))


def sizes_of(plan: InitPlan) -> dict[str, float]:
    """Return the sizes that the shapes of a plan tell; those of an encoder-decoder may be others than its scheme's."""
    sizes = {"n_layers": float(len({entry.parameter.layer for entry in plan.entries} - {None}))}
    sizes["tied"] = float(not plan.with_role(Role.LM_HEAD))  # a shared tensor is the embedding's
    for entry in plan.with_role(Role.TOKEN_EMBEDDING)[:1]:
        if len(entry.parameter.shape) == 2 and not entry.parameter.transposed:
            sizes["vocab_size"], sizes["d_model"] = map(float, entry.parameter.shape)
    for entry in plan.with_role(Role.MLP_OUT)[:1]:
        sizes["d_ff"] = float(entry.parameter.fan_in)
    return sizes


def depends_on_depth(plan: InitPlan, scheme: Scheme | None) -> bool:
    """Whether any number that a plan's scheme gives for it changes with the number of layers."""
    if scheme is None:
        return False
    draws = [scheme.roles[role] for role in {entry.parameter.role for entry in plan.entries} if role in scheme.roles]
    formulas = {text for draw in draws for text in (draw.formula, draw.cut or "")}
    while names := {name for formula in formulas for name in names_in(formula)}:
        words = {name: str(plan.settings.get(name)) for name in names if name in scheme.choices}
        meant = {scheme.parameters[name] for name in names if name in scheme.parameters}
        meant |= {scheme.choices[name].get(word, "") for name, word in words.items()}
        if "n_layers" in names:
            return True
        if meant <= formulas:
            return False
        formulas |= meant
    return False
