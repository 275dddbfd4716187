"""The parameters of a scheme, as given or by default, and the names that its formulas may use."""

from __future__ import annotations

import re
from collections.abc import Mapping

from initdiag.errors import PlanError, UsageError, did_you_mean
from initdiag.schemes.formula import evaluate
from initdiag.schemes.scheme import Scheme

# what the formulas of a scheme may use of a model; of a module that was only seen to run, not all are known
SIZES = ("d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff", "vocab_size", "context", "tied")


def settings_of(scheme: Scheme, sizes: Mapping[str, float], given: Mapping[str, float | str]) -> dict[str, float | str]:
    """Return all parameters of a scheme: as given, else their defaults.

    Raises:
        UsageError: the scheme has no parameter of a given name, or no such choice for it.
        PlanError: a default can't be computed, or needs a size that isn't known of the model.
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
        formula = default if number is None else str(number)
        try:
            names = formula_names(scheme, sizes, settings)
            if missing := unknown_sizes(formula, names):
                raise PlanError(
                    f"scheme '{scheme.name}' needs {' and '.join(missing)}, which is not known of this model; set its "
                    f"parameter {name} (now {formula}) to a number, e.g. --set init.{name}=64"
                )
            settings[name] = evaluate(formula, names)
        except PlanError as error:
            if number is not None or str(error).startswith(f"scheme '{scheme.name}'"):
                raise
            raise PlanError(f"scheme '{scheme.name}', parameter {name}: {error}") from error
    return settings


def unknown_sizes(formula: str, names: Mapping[str, float]) -> list[str]:
    """Return the sizes that a formula uses and that aren't among the names."""
    return [name for name in dict.fromkeys(words(formula)) if name in SIZES and name not in names]


def words(formula: str) -> list[str]:
    """Return the names in a formula, functions included."""
    return re.findall(r"[A-Za-z_]\w*", formula)


def uses_layer(scheme: Scheme, settings: Mapping[str, float | str]) -> bool:
    """Whether what a scheme says of a parameter can depend on its layer: else layers of the same shapes are alike."""
    drawn = (text for draw in scheme.roles.values() for text in (draw.formula, draw.unscaled, draw.cut))
    formulas = (*drawn, *scheme.terms.values(), *_written(scheme, settings).values())
    # beyond ASCII, words() may miss it: Python reads a full-width 'ｌayer' as layer
    return any("layer" in words(formula) or not formula.isascii() for formula in formulas if formula)


def _written(scheme: Scheme, settings: Mapping[str, float | str]) -> dict[str, str]:
    """Return the formulas that the words of a scheme's choices stand for."""
    return {name: scheme.choices[name][word] for name, word in settings.items() if isinstance(word, str)}


def formula_names(
    scheme: Scheme, sizes: Mapping[str, float], settings: Mapping[str, float | str], layer: int = -1, branch: int = 0
) -> dict[str, float]:
    """Return what the formulas of a scheme may use: sizes, parameters, of a choice the number, and terms.

    What depends on `layer` (from 0) or `branch` (from 1) is left out where there is none.
    """
    places = {**({"layer": float(layer)} if layer >= 0 else {}), **({"branch": float(branch)} if branch >= 1 else {})}
    names, absent = {**sizes, **places}, {"layer", "branch"} - set(places)
    names |= {name: number for name, number in settings.items() if not isinstance(number, str)}
    for name, formula in {**_written(scheme, settings), **scheme.terms}.items():
        if absent & set(words(formula)) or unknown_sizes(formula, names):
            absent.add(name)  # and what uses it
        else:
            names[name] = evaluate(formula, names)
    return names
