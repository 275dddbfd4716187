"""Single fields of Hugging Face configs, their windows, and their rotary positions. No torch.

Read in transformers 5.24.0: activations in activations.py, rotary positions in modeling_rope_utils.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

Config = Mapping[str, Any]
Fields = dict[str, Any]

ACTIVATIONS = {
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_new", "gelu_pytorch_tanh", "gelu_python_tanh", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
    **dict.fromkeys(("silu", "swish"), "silu"),
    **{name: name for name in ("quick_gelu", "relu", "relu2")},
}
# names that rope_parameters may hold; any other (longrope's factors, Ministral's scaling) changes what is computed
ROPE = {
    "rope_type type rope_theta partial_rotary_factor": ("default", "linear", "llama3", "yarn"),
    "factor original_max_position_embeddings": ("default", "linear", "llama3", "yarn"),
    "low_freq_factor high_freq_factor": ("llama3",),
    "beta_fast beta_slow truncate attention_factor": ("yarn",),
    "mscale mscale_all_dim": ("linear", "llama3", "yarn"),
}


class VariantError(Exception):
    """A config says something that is not known here, or leaves out what is needed."""


# --- single values


def whole(config: Config, name: str) -> int:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise VariantError(name)
    return value


def number(config: Config, name: str) -> float:
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise VariantError(name)
    return float(value)


def cap(config: Config, name: str) -> float | None:
    return None if config.get(name) is None else number(config, name)


def flag(config: Config, name: str) -> bool:
    value = config.get(name)
    if not isinstance(value, bool):
        raise VariantError(name)
    return value


def require(config: Config, **values: Any) -> None:
    """Refuse a config in which a field, where there is one, has another value."""
    for name, value in values.items():
        if config.get(name, value) != value:
            raise VariantError(name)


def absent(config: Config, *names: str) -> None:
    """Refuse a config in which one of these fields is set."""
    for name in names:
        if config.get(name):
            raise VariantError(name)


def activation(config: Config, name: str) -> str:
    value = config.get(name)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise VariantError(name)
    return ACTIVATIONS[value]


# --- windows


def same_window(config: Config) -> Fields:
    """One window for all layers, or none."""
    return {} if config.get("sliding_window") is None else {"windows": (whole(config, "sliding_window"),)}


def windows_by_layer(config: Config) -> Fields:
    """What `layer_types` says, in the shortest list that gives it when it is repeated."""
    types = config.get("layer_types")
    count = whole(config, "num_hidden_layers")
    if not isinstance(types, list | tuple) or len(types) != count:
        raise VariantError("layer_types")
    if not set(types) <= {"full_attention", "sliding_attention"}:
        raise VariantError("layer_types")
    if "sliding_attention" not in types:
        return {}
    window = whole(config, "sliding_window")
    period = next(p for p in range(1, count + 1) if all(types[i] == types[i % p] for i in range(count)))
    return {"windows": tuple(window if kind == "sliding_attention" else None for kind in types[:period])}


# --- rotary positions


def rotary(parameters: Any, head_dim: int, partial: bool) -> tuple[Fields, float]:
    """Return the fields of rotary positions, and by what cos and sin are multiplied, so queries and keys both.

    Args:
        parameters: `rope_parameters`. partial: whether the class lets a part of the features turn; one that doesn't
            passes over the share that a config names.
    """
    if not isinstance(parameters, Mapping):
        raise VariantError("rope_parameters")
    kind = parameters.get("rope_type")
    known = {name for names, kinds in ROPE.items() if kind in kinds for name in names.split()}
    if {name for name, value in parameters.items() if value is not None} - known:
        raise VariantError("rope_parameters")
    share = parameters.get("partial_rotary_factor")
    share = 1.0 if share is None else number(parameters, "partial_rotary_factor")
    if share != 1 and not partial:
        raise VariantError("partial_rotary_factor")
    fields: Fields = {"position": "rotary", "rotary_base": number(parameters, "rope_theta")}
    fields["rotary_dims"] = int(head_dim * share)
    if kind == "default":
        return fields, 1.0
    scaling: Fields = {"kind": kind, "factor": number(parameters, "factor")}
    if kind != "linear":
        scaling["context"] = whole(parameters, "original_max_position_embeddings")
    if kind == "llama3":
        scaling |= {"low": number(parameters, "low_freq_factor"), "high": number(parameters, "high_freq_factor")}
    if kind == "yarn":
        scaling |= {"low": number(parameters, "beta_slow") if parameters.get("beta_slow") else 1.0}
        scaling |= {"high": number(parameters, "beta_fast") if parameters.get("beta_fast") else 32.0}
        scaling["rounded"] = flag({"truncate": True, **parameters}, "truncate")
    times = _yarn_factor(parameters) if kind == "yarn" else 1.0
    return {**fields, "rotary_scaling": scaling}, times


def _yarn_factor(parameters: Config) -> float:
    if parameters.get("attention_factor") is not None:
        return number(parameters, "attention_factor")
    above, below = (cap(parameters, name) for name in ("mscale", "mscale_all_dim"))
    if above and below:
        return yarn_scale(parameters, above) / yarn_scale(parameters, below)
    return yarn_scale(parameters, 1.0)


def yarn_scale(parameters: Config, times: float) -> float:
    """0.1·times·ln(factor) + 1: arXiv 2309.00071, equation 22."""
    factor = number(parameters, "factor")
    return 0.1 * times * math.log(factor) + 1 if factor > 1 else 1.0
