"""What no field of an architecture can know alone: values that don't fit together. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Trouble = tuple[str, str]  # a field, dotted inside a section, and what is wrong with it

POSITIONS = ("learned", "sinusoidal", "rotary", "alibi", "none")


def inconsistencies(given: Mapping[str, Any]) -> Iterator[Trouble]:
    """Yield (field, what is wrong); fields that aren't usable are skipped.

    Works on the raw mapping of a config file, so that these problems are reported together with all others. A field of
    a section has a dotted name, also where a message mentions it.
    """
    yield from _heads(given)
    yield from _positions(given)
    yield from _rotary(given)
    yield from _scaling(given)
    yield from _latent(given)
    yield from _experts(given)
    yield from _rest(given)


def _whole(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _number(given: Mapping[str, Any], name: str) -> float | None:
    value = given.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1e12 else None


def _section(given: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    value = given.get(name)
    return value if isinstance(value, Mapping) else None


def _head_dim(given: Mapping[str, Any]) -> int | None:
    d_model, n_heads = _whole(given, "d_model"), _whole(given, "n_heads")
    if "head_dim" in given or _section(given, "mla"):
        return _whole(given, "head_dim")
    return d_model // n_heads if d_model and n_heads and d_model % n_heads == 0 else None


def _heads(given: Mapping[str, Any]) -> Iterator[Trouble]:
    d_model, n_heads, n_kv_heads = (_whole(given, name) for name in ("d_model", "n_heads", "n_kv_heads"))
    if d_model and n_heads and "head_dim" not in given and not _section(given, "mla") and d_model % n_heads:
        yield "n_heads", f"{n_heads} does not divide d_model {d_model}; expected a divisor of it, or a head_dim"
    if n_heads and n_kv_heads and n_heads % n_kv_heads:
        yield "n_kv_heads", f"{n_kv_heads} does not divide n_heads {n_heads}; expected a divisor of it"


def _positions(given: Mapping[str, Any]) -> Iterator[Trouble]:
    position, d_model, head_dim = given.get("position", "learned"), _whole(given, "d_model"), _head_dim(given)
    if position == "rotary" and "rotary_dims" not in given and head_dim and head_dim % 2:
        yield "position", f"rotary turns pairs of features; expected an even head_dim, found {head_dim}"
    if position == "sinusoidal" and d_model and d_model % 2:
        yield "position", f"sinusoidal positions come in pairs of features; expected an even d_model, found {d_model}"
    if position in POSITIONS and position != "learned" and _whole(given, "position_offset"):
        yield "position_offset", f"found with position {position}, expected position learned, or no position_offset"


def _rotary(given: Mapping[str, Any]) -> Iterator[Trouble]:
    position = given.get("position", "learned")
    if position != "rotary" and position in POSITIONS:
        instead = f"with position {position}, expected position rotary"
        base = _number(given, "rotary_base")
        if base is not None and base != 10_000.0:  # it would be without effect, and look as if
            yield "rotary_base", f"found {base:.12g} {instead}, or no rotary_base"
        for name in ("rotary_scaling", "local_rotary_base", "rotary_dims"):
            if given.get(name) is not None and not (name == "rotary_dims" and given[name] == _head_dim(given)):
                yield name, f"found {instead}, or no {name}"
        return
    dims, head_dim = _whole(given, "rotary_dims"), _head_dim(given)
    if dims and dims % 2:
        yield "rotary_dims", f"rotary turns pairs of features; expected an even number, found {dims}"
    if dims and head_dim and dims > head_dim:
        yield "rotary_dims", f"found {dims}, expected at most head_dim, {head_dim}"
    windows = given.get("windows")
    windowed = not isinstance(windows, list | tuple | None) or any(window is not None for window in windows or ())
    if given.get("local_rotary_base") is not None and not windowed:
        yield "local_rotary_base", "found without windows, expected windows, or no local_rotary_base"


def _scaling(given: Mapping[str, Any]) -> Iterator[Trouble]:
    scaling = _section(given, "rotary_scaling")
    if scaling is None:
        return
    kind = scaling.get("kind", "llama3")
    if kind == "linear":
        for name, default in (("low", 1.0), ("high", 4.0), ("context", None)):
            if scaling.get(name) not in (None, default):
                yield f"rotary_scaling.{name}", f"found with kind linear, expected no {name}: all pairs turn slower"
        return
    if kind == "llama3" and scaling.get("rounded") is False:
        yield "rotary_scaling.rounded", "found false with kind llama3, expected kind yarn, or no rounded"
    if kind in ("llama3", "yarn") and scaling.get("context") is None:
        yield "rotary_scaling.context", f"not found, expected a whole number: the context before the scaling ({kind})"
    low, high = _number(scaling, "low") or 1.0, _number(scaling, "high") or (32.0 if kind == "yarn" else 4.0)
    if low >= high:
        yield "rotary_scaling.low", f"found {low:.12g}, expected less than rotary_scaling.high, {high:.12g}"


def _latent(given: Mapping[str, Any]) -> Iterator[Trouble]:
    latent = _section(given, "mla")
    if latent is None:
        return
    nope, rope = _whole(latent, "nope_dim"), _whole(latent, "rope_dim")
    if rope and rope % 2:
        yield "mla.rope_dim", f"rotary turns pairs of features; expected an even number, found {rope}"
    if given.get("position", "learned") in POSITIONS and given.get("position") != "rotary":
        yield "position", "found with mla, whose rope_dim features turn with the position; expected rotary"
    head_dim, n_heads, n_kv_heads = (_whole(given, name) for name in ("head_dim", "n_heads", "n_kv_heads"))
    if nope and rope and head_dim and head_dim != nope + rope:
        yield "head_dim", f"found {head_dim} with mla, expected nope_dim + rope_dim, {nope + rope}, or no head_dim"
    if n_heads and n_kv_heads and n_heads != n_kv_heads:
        yield "n_kv_heads", f"found {n_kv_heads} with mla, expected n_heads, {n_heads}, or no n_kv_heads"
    if rope and _whole(given, "rotary_dims") not in (None, rope):
        yield "rotary_dims", f"found with mla, expected mla.rope_dim, {rope}, or no rotary_dims"
    if given.get("qk_norm", "none") in ("per_head", "full"):
        yield "qk_norm", "found with mla, which norms its latents; expected none"


def _experts(given: Mapping[str, Any]) -> Iterator[Trouble]:
    moe = _section(given, "moe")
    if moe is None:
        return
    moe = {"groups": 1, "top_groups": 1, **moe}
    experts, top_k, groups, top_groups = (_whole(moe, name) for name in ("experts", "top_k", "groups", "top_groups"))
    if experts and top_k and top_k > experts:
        yield "moe.top_k", f"found {top_k}, expected at most moe.experts, {experts}"
    if experts and groups and experts % groups:
        yield "moe.groups", f"{groups} does not divide moe.experts {experts}; expected a divisor of it"
    elif experts and groups and groups > 1 and experts // groups < 2:
        yield "moe.groups", f"found {groups}, expected at least two experts in each group: at most {experts // 2}"
    elif experts and groups and top_k and top_groups and experts // groups * top_groups < top_k <= experts:
        room = experts // groups * top_groups
        yield "moe.top_groups", f"found {top_groups}, which leaves {room} experts; expected room for moe.top_k, {top_k}"
    if groups and top_groups and top_groups > groups:
        yield "moe.top_groups", f"found {top_groups}, expected at most moe.groups, {groups}"
    first, n_layers = _whole(moe, "first_dense"), _whole(given, "n_layers")
    if first and n_layers and first >= n_layers:
        yield "moe.first_dense", f"found {first}, expected less than n_layers, {n_layers}, or no moe"
    if given.get("inner_norm") is True:
        yield "inner_norm", "found with moe, expected false: experts have no inner norms"


def _rest(given: Mapping[str, Any]) -> Iterator[Trouble]:
    if _number(given, "gate_limit") and given.get("gated", False) is False:
        yield "gate_limit", "found with gated false, expected gated true, or no gate_limit"
    biases = _section(given, "biases")
    if biases is not None and biases.get("head") is True and given.get("tied", True) is True:
        yield "biases.head", "found with tied true, expected tied false: the embedding has no bias"
    if biases is not None and biases.get("router") is True and given.get("moe") is None:
        yield "biases.router", "found without moe, expected moe, or no bias of a router"
