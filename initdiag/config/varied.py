"""One value of a config, varied: which key is meant, how a value is written, and which sizes go with a width."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from initdiag.config.aliases import key_alias
from initdiag.config.config_file import ConfigFile
from initdiag.config.init import Init, base_scheme
from initdiag.config.schema import TokenSettings
from initdiag.config.yaml import parse_value
from initdiag.errors import ConfigError, UsageError, did_you_mean, printable
from initdiag.model.architecture import Architecture

SECTIONS = ("model", "init", "tokens")
WIDTH = ("model", "d_model")


def split(option: str) -> tuple[str, list[Any]]:
    """Read `n_layers=6,12,24`: a key, and values in YAML.

    Raises:
        UsageError: it isn't KEY=VALUE,VALUE,…
    """
    key, equals, text = option.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"--vary {option}: expected KEY=VALUE,VALUE,…, such as n_layers=6,12,24")
    try:
        values = parse_value(f"[{text}]")
    except ConfigError as error:
        raise UsageError(f"--vary {option}: {error.problems[0].message}") from error
    if not isinstance(values, list) or any(one is None and not _null(text) for one in values):
        raise UsageError(f"--vary {option}: expected values with commas between, such as n_layers=6,12,24")
    return key.strip(), values


def _null(text: str) -> bool:
    return "null" in text.lower() or "~" in text


def path_of(key: str, file: ConfigFile) -> tuple[str, ...]:
    """Return the path of a key: a bare name is looked up in model, then init, then tokens.

    Raises:
        UsageError: there is no such key, or it is no value of the model, its init or its tokens.
    """
    sections: Mapping[str, Sequence[str]] = {
        "model": list(Architecture.model_fields),
        "init": [*Init.model_fields, *base_scheme(file.config.init.scheme).settable],
        "tokens": list(TokenSettings.model_fields),
    }
    parts = tuple(key.split("."))
    if len(parts) == 1:
        for section, names in sections.items():
            if key in names:
                return (section, key)
        known = [name for names in sections.values() for name in names]
        ours = key_alias(key)
        guess = f" (here it is {ours})" if ours else did_you_mean(key[:100], known)
        raise UsageError(f"--vary {key}: unknown key; expected one of model, init or tokens{guess}")
    if parts[0] not in SECTIONS or not all(parts):
        raise UsageError(
            f"--vary {key}: expected a key of {', '.join(SECTIONS)}, such as init.std{did_you_mean(parts[0], SECTIONS)}"
        )
    return parts


def written(value: object) -> str:
    """Write a value as after --set, so that YAML reads it back.

    Raises:
        UsageError: it is nothing that a config can hold.
    """
    try:
        quoted = json.dumps(value)
    except (TypeError, ValueError):
        shown = printable(repr(value)[:60])
        raise UsageError(f"found {shown} (of type {type(value).__name__}), expected a number or a word") from None
    try:
        plain = isinstance(value, str) and parse_value(value) == value
    except ConfigError:
        plain = False
    return value if plain and isinstance(value, str) else quoted


def followers(file: ConfigFile, path: Sequence[str], value: object) -> dict[str, int]:
    """Return the sizes that go with another d_model, as a family of models scales: by their paths.

    head_dim stays; n_heads, n_kv_heads (a single one stays) and d_ff, also of experts, go in proportion. What an option
    has set is left alone. Of any other key nothing follows.

    Raises:
        UsageError: one of them is no whole number then.
    """
    if tuple(path) != WIDTH or not isinstance(value, int) or isinstance(value, bool) or value < 1:
        return {}
    shape = file.config.model
    wanted: dict[str, int] = {}

    def free(name: str) -> bool:
        return not file.set_by_option(("model", *name.split(".")))

    def scale(name: str, size: int) -> None:
        if free(name):
            wanted[name] = _in_proportion(name, size, Fraction(value, shape.d_model), value)

    if free("n_heads"):  # else heads get wider with the model, as n_heads says
        if free("head_dim") and shape.mla is None:
            wanted["head_dim"] = shape.head_dim
        scale("n_heads", shape.n_heads)
        if shape.n_kv_heads > 1:
            scale("n_kv_heads", shape.n_kv_heads)
        elif free("n_kv_heads"):
            wanted["n_kv_heads"] = min(shape.n_kv_heads, wanted["n_heads"])
    scale("d_ff", shape.d_ff)
    if shape.moe is not None and shape.moe.d_ff is not None:
        scale("moe.d_ff", shape.moe.d_ff)
    return {f"model.{name}": size for name, size in wanted.items()}


def _in_proportion(name: str, size: int, ratio: Fraction, d_model: int) -> int:
    scaled = size * ratio
    if scaled.denominator != 1:
        raise UsageError(
            f"--vary d_model={d_model}: {name}, {size} at d_model {d_model / ratio}, would be {float(scaled):g}; "
            f"expected a d_model that keeps it whole (a multiple of {_step(size, ratio, d_model)}), or --set "
            f"model.{name}"
        )
    return int(scaled)


def _step(size: int, ratio: Fraction, d_model: int) -> int:
    """The least d_model of which `size`, in proportion, is whole."""
    return Fraction(d_model / ratio / size).numerator
