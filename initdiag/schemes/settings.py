"""The parameters of a scheme, as given or by default, and the names that its formulas may use."""

from __future__ import annotations

import re
from collections.abc import Mapping

from initdiag.errors import UsageError, did_you_mean
from initdiag.schemes.formula import evaluate
from initdiag.schemes.scheme import Scheme


def settings_of(scheme: Scheme, sizes: Mapping[str, float], given: Mapping[str, float | str]) -> dict[str, float | str]:
    """Return all parameters of a scheme: as given, else their defaults.

    Raises:
        UsageError: the scheme has no parameter of a given name, or no such choice for it.
        PlanError: a default can't be computed.
    """
    for name in given:
        if name not in scheme.settable:
            known = ", ".join(scheme.settable) or "none"
            raise UsageError(
                f"scheme '{scheme.name}' has no parameter '{name}'; its parameters: {known}"
                + did_you_mean(name, scheme.settable)
            )
    settings: dict[str, float | str] = {}
    for name, words in scheme.choices.items():
        word = given.get(name, next(iter(words)))
        if word not in words:
            raise UsageError(
                f"scheme '{scheme.name}': {name} is '{word}'; expected one of {', '.join(words)}"
                + did_you_mean(str(word), words)
            )
        settings[name] = str(word)
    for name, default in scheme.parameters.items():  # in order: a default may use the ones before it
        number = given.get(name)
        names = formula_names(scheme, sizes, settings)
        settings[name] = evaluate(default, names) if number is None else evaluate(str(number), names)
    return settings


def formula_names(
    scheme: Scheme, sizes: Mapping[str, float], settings: Mapping[str, float | str], layer: int = -1, branch: int = 0
) -> dict[str, float]:
    """Return what the formulas of a scheme may use: sizes, parameters, of a choice the number, and terms.

    What depends on `layer` (from 0) or `branch` (from 1) is left out where there is none.
    """
    names = {**sizes, "layer": float(layer), **({"branch": float(branch)} if branch else {})}
    absent = ({"layer"} if layer < 0 else set()) | ({"branch"} if branch < 1 else set())
    written = {name: scheme.choices[name][word] for name, word in settings.items() if isinstance(word, str)}
    names |= {name: number for name, number in settings.items() if not isinstance(number, str)}
    for name, formula in {**written, **scheme.terms}.items():
        if absent & set(re.findall(r"\w+", formula)):
            absent.add(name)  # and what uses it
        else:
            names[name] = evaluate(formula, names)
    return names
