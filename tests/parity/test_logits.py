"""Our reference Transformer and the real classes of transformers 5.24.0: with the same weights, the same logits."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from initdiag.model import Architecture, parameters
from tests.parity import families_early, families_recent
from tests.parity.family import Family
from tests.parity.tools import T, copied, held, our_logits, pair, shape_of, their_logits

FAMILIES: dict[str, Family] = {family.name: family for family in (*families_early.FAMILIES, *families_recent.FAMILIES)}

# All weights and activations are float64. Differences are measured against the std of the logits, about 1, and not
# against the largest one: a softmax hears differences between logits, and the largest is four times as large.
# 1e-5: what transformers computes in float32 whatever the dtype (RMSNorm, softmax of eager attention, rotary tables)
# is off by 6e-8 of itself; angles go up to 23, and three layers make a dozen such roundings of it, seen at 4 sigma.
FLOAT32 = 1e-5
# Where their code leaves little in float32, the bound is as sharp as that. With LayerNorm, it is either the rotary
# tables (sdpa; theirs are float32, ours as wide as the model; angles up to 23, off by 6e-8 of themselves, are off by
# 1.4e-6 at most) or the softmax (eager attention: 6e-8 of each weight, in three layers).
LITTLE = (
    "gpt-neox",
    "gpt-neox, sequential",
    "falcon-7b",
    "falcon-40b",
    "falcon, sequential",
    "phi",
    "starcoder2",
    "gpt-j",
)
ALIBI = ("bloom, 4 heads", "bloom, 6 heads", "mpt, 4 heads", "mpt, 6 heads")
EAGER = (*ALIBI, "gpt-oss", "gemma-2")  # their code has no sdpa, for ALiBi, attention sinks and softcaps
# With sdpa and without rotary tables all is float64: 2e-16, some thousand times.
NOTHING = ("gpt2", "opt", "opt, post-norm")
SHARP = {**dict.fromkeys((*LITTLE, *ALIBI), 2e-6), **dict.fromkeys(NOTHING, 1e-12)}
FAMILIES_EACH = 3  # in which a value of a field is changed: more say the same again
HEARD = 100  # so many times the bound a change of one field must make

every_family = pytest.mark.parametrize("name", FAMILIES)


def distance(mine: Tensor, theirs: Tensor) -> float:
    """The largest difference, in units of the std of their logits."""
    return float((mine - theirs).abs().max() / theirs.std())


@cache
def sharpest(name: str) -> tuple[Tensor, float]:
    """Return their logits as exact as their code has them, and the bound for those."""
    both = pair(FAMILIES[name])
    attention = "eager" if name in EAGER else "sdpa"
    return their_logits(both.theirs, both.ids, attention), SHARP.get(name, FLOAT32)


@every_family
def test_eager_attention(name: str) -> None:
    both = pair(FAMILIES[name])
    theirs = their_logits(both.theirs, both.ids)
    assert theirs.dtype == torch.float64
    assert 0.3 < float(theirs.std()) < 3, "weights that make logits too small or too large tell nothing"
    assert distance(our_logits(both.ours, both.ids), theirs) < FLOAT32


@every_family
def test_the_attention_that_is_most_exact(name: str) -> None:
    both = pair(FAMILIES[name])
    theirs, bound = sharpest(name)
    assert distance(our_logits(both.ours, both.ids), theirs) < bound


@every_family
def test_number_of_parameters(name: str) -> None:
    both = pair(FAMILIES[name])
    theirs = sum(tensor.numel() for tensor in held(FAMILIES[name], both.theirs))
    assert sum(parameter.numel() for parameter in both.ours.parameters()) == theirs
    assert sum(parameter.numel for parameter in parameters(both.ours.shape)) == theirs


# --- each field of the model section is heard

LEFT_OUT: Any = object()  # in place of a value: the field is not given
Changed = Mapping[str, Any] | None  # the fields that are changed; None: there is nothing to hear
Change = Callable[[Architecture], Changed]


def to(field: str, *values: Any, where: Callable[[Architecture], bool] = lambda _: True) -> Change:
    """Give a field the first of some values that it doesn't have; `where` says for which models it can be heard."""
    return lambda shape: {field: next(v for v in values if v != getattr(shape, field))} if where(shape) else None


def times(field: str, factor: float, where: Callable[[Architecture], bool] = lambda _: True) -> Change:
    return lambda shape: {field: getattr(shape, field) * factor} if where(shape) else None


def part(section: str, name: str, other: Callable[[Any], Any]) -> Change:
    """Change a part of a section, where there is one; None where `other` returns None, or the same again."""

    def changed(shape: Architecture) -> Changed:
        now = getattr(shape, section)
        value = None if now is None else other(getattr(now, name))
        return None if value is None else {section: {**now.model_dump(exclude_unset=True), name: value}}

    return changed


def n_heads(shape: Architecture) -> Changed:
    """Half of them, twice as wide, where that leaves all shapes alone."""
    if shape.mla or shape.n_kv_heads % 2:
        return {"n_heads": 2 * shape.n_heads, **({"n_kv_heads": LEFT_OUT} if shape.mla else {})}
    kept = {"rotary_dims": shape.rotary_dims} if rotary(shape) else {}  # and the scale, which is a field of its own
    scale = {"attention_scale": shape.attention_scale}
    halves = {name: getattr(shape, name) // 2 for name in ("n_heads", "n_kv_heads")}
    return {**halves, "head_dim": 2 * shape.head_dim, **kept, **scale}


def moe(shape: Architecture) -> Changed:
    if shape.moe is None:
        return {"moe": {"experts": 2, "top_k": 1}}
    return {"moe": None, "biases": {**shape.biases.model_dump(), "router": False}}


def position(shape: Architecture) -> Changed:
    if shape.mla:
        return None  # it must be rotary
    gone = ("rotary_base", "rotary_dims", "rotary_scaling", "local_rotary_base", "position_offset")
    return {"position": "none", **dict.fromkeys(gone, LEFT_OUT)}


def placement(shape: Architecture) -> Changed:
    """Where one with the same norms exists, that; else the names of parameters tell."""
    other = {"pre": "post", "post": "pre", "parallel": "pre"}.get(shape.placement, "none")
    return {"placement": other, "final_norm": shape.final_norm}


def position_offset(shape: Architecture) -> Changed:
    """One row more before the first, one less after the last: the table stays the same."""
    if shape.position != "learned":
        return None
    return {"position_offset": shape.position_offset + 1, "context": shape.context - 1}


def windows(shape: Architecture) -> Changed:
    return {"windows": [window and window + 1 for window in shape.windows] if shape.windows else [T - 1]}


def biases(group: str) -> Change:
    def changed(shape: Architecture) -> Changed:
        if (group == "head" and shape.tied) or (group == "router" and shape.moe is None):
            return None  # there is nothing to have it
        if group == "norm" and (shape.norm == "rmsnorm" or shape.norm_scale == "none"):
            return None  # these have none anyway
        now = shape.biases.model_dump()
        return {"biases": {**now, group: not now[group]}}

    return changed


def form_of_gelu(shape: Architecture) -> Changed:
    forms = {"gelu": "gelu_tanh", "gelu_tanh": "gelu"}
    return {"activation": forms[shape.activation]} if shape.activation in forms else None


def rotary(shape: Architecture) -> bool:
    return shape.position == "rotary"


def yarn_or_llama3(shape: Architecture) -> bool:
    return shape.rotary_scaling is not None and shape.rotary_scaling.kind != "linear"


def rounded_or_llama3(shape: Architecture) -> bool:
    return shape.rotary_scaling is not None and shape.rotary_scaling.kind != "linear" and shape.rotary_scaling.rounded


def only(where: Callable[[Architecture], bool], change: Change) -> Change:
    return lambda shape: change(shape) if where(shape) else None


# What changes the names or shapes of parameters fails when weights are copied; all else must be heard in the logits.
CHANGES: Mapping[str, Change] = {
    "vocab_size": lambda shape: {"vocab_size": shape.vocab_size + 1},
    "context": to("context", T, where=lambda shape: shape.position == "learned"),  # for others it is but a limit
    "d_model": times("d_model", 2),
    "n_layers": times("n_layers", 2, where=lambda shape: shape.moe is None),
    "n_heads": n_heads,
    "n_kv_heads": to("n_kv_heads", 1, 2, where=lambda shape: shape.mla is None),
    "head_dim": times("head_dim", 2, where=lambda shape: shape.mla is None),
    "d_ff": lambda shape: {"d_ff": shape.d_ff + 1} if not shape.moe or shape.moe.first_dense else None,
    "moe": moe,
    "mla": lambda shape: {"mla": None, "head_dim": shape.head_dim} if shape.mla else None,
    "activation": to("activation", "silu", "gelu"),
    "activation, form of gelu": form_of_gelu,
    "gated": lambda shape: {"gated": not shape.gated, "gate_limit": None},
    "gate_limit": lambda shape: {"gate_limit": (shape.gate_limit or 2.0) / 2} if shape.gated else None,
    "norm": to("norm", "layernorm", "rmsnorm"),
    "norm_scale": to("norm_scale", "one_plus", "learned"),
    "eps": times("eps", 2),
    "placement": placement,
    "inner_norm": lambda shape: {"inner_norm": not shape.inner_norm} if shape.moe is None else None,
    "final_norm": to("final_norm", True, False),
    "embedding_norm": to("embedding_norm", True, False),
    "qk_norm": to("qk_norm", "per_head", "full", where=lambda shape: shape.mla is None),
    "position": position,
    "position_offset": position_offset,
    "rotary_base": times("rotary_base", 1.5, where=rotary),
    "rotary_dims": lambda shape: {"rotary_dims": shape.rotary_dims - 2} if rotary(shape) and not shape.mla else None,
    "rotary_scaling": lambda shape: (
        ({"rotary_scaling": None} if shape.rotary_scaling else {"rotary_scaling": {"kind": "linear", "factor": 1.5}})
        if rotary(shape)
        else None
    ),
    "rotary_scaling.kind": only(
        rounded_or_llama3,
        part("rotary_scaling", "kind", lambda kind: {"yarn": "llama3", "llama3": "yarn"}[kind]),
    ),
    "rotary_scaling.factor": part("rotary_scaling", "factor", lambda factor: factor * 1.5),
    "rotary_scaling.low": only(yarn_or_llama3, part("rotary_scaling", "low", lambda low: low / 4)),
    "rotary_scaling.high": only(yarn_or_llama3, part("rotary_scaling", "high", lambda high: high / 2)),
    "rotary_scaling.context": only(yarn_or_llama3, part("rotary_scaling", "context", lambda context: context * 2)),
    "rotary_scaling.rounded": lambda shape: (
        part("rotary_scaling", "rounded", lambda rounded: not rounded)(shape)
        if shape.rotary_scaling and shape.rotary_scaling.kind == "yarn"
        else None
    ),
    "local_rotary_base": lambda shape: (
        {"local_rotary_base": (shape.local_rotary_base or shape.rotary_base) * 1.5}
        if rotary(shape) and any(shape.windows)
        else None
    ),
    "windows": windows,
    "attention_scale": times("attention_scale", 1.1),
    "attention_softcap": lambda shape: {"attention_softcap": (shape.attention_softcap or 4.0) / 2},
    "attention_sinks": to("attention_sinks", True, False),
    "tied": lambda shape: {"tied": not shape.tied, "biases": {**shape.biases.model_dump(), "head": False}},
    "biases.qkv": biases("qkv"),
    "biases.out": biases("out"),
    "biases.mlp": biases("mlp"),
    "biases.norm": biases("norm"),
    "biases.head": biases("head"),
    "biases.router": biases("router"),
    "embedding_multiplier": times("embedding_multiplier", 1.1),
    "residual_multiplier": times("residual_multiplier", 1.1),
    "stream_multiplier": times("stream_multiplier", 1.1),
    "branch_gain": to("branch_gain", "scalar", "vector"),
    "logit_multiplier": times("logit_multiplier", 1.1),
    "logit_softcap": lambda shape: {"logit_softcap": (shape.logit_softcap or 10.0) / 2},
    "moe.experts": part("moe", "experts", lambda experts: 2 * experts),
    "moe.top_k": part("moe", "top_k", lambda k: k - 1 or 2),
    "moe.d_ff": lambda shape: (
        {"moe": {**shape.moe.model_dump(), "d_ff": (shape.moe.d_ff or shape.d_ff) + 1}} if shape.moe else None
    ),
    "moe.shared": part("moe", "shared", lambda shared: shared + 1),
    "moe.first_dense": part("moe", "first_dense", lambda first: first + 1),
    "moe.score": part("moe", "score", lambda score: {"softmax": "sigmoid", "sigmoid": "softmax"}[score]),
    "moe.normalized": part("moe", "normalized", lambda normalized: not normalized),
    "moe.route_scale": part("moe", "route_scale", lambda scale: scale * 1.1),
    "moe.choice_bias": part("moe", "choice_bias", lambda there: not there),
    "moe.top_groups": only(
        lambda shape: shape.moe is not None and shape.moe.groups > 1,
        part("moe", "top_groups", lambda top: top + 1),
    ),
    "mla.query_rank": part("mla", "query_rank", lambda rank: rank + 1 if rank else 8),
    "mla.kv_rank": part("mla", "kv_rank", lambda rank: rank + 1),
    "mla.value_dim": part("mla", "value_dim", lambda width: width + 1),
}
# Of sections: what only has a meaning together with others (moe.groups with top_groups), and where any change is one
# of head_dim, which must be their sum (mla.nope_dim and mla.rope_dim).
TOGETHER = {"moe.groups", "mla.nope_dim", "mla.rope_dim"}


def hearings() -> Iterator[tuple[str, str]]:
    """Yield (family, field): each value of a field in the first few families that have it.

    Of "llama, yarn" only the fields that another of "llama, …" before it hasn't got so.
    """
    heard: dict[str, list[Architecture]] = {}
    times: Counter[tuple[str, str]] = Counter()
    for name, family in FAMILIES.items():
        shape = shape_of(family.model)
        before = heard.setdefault(name.split(",")[0], [])
        for field, change in CHANGES.items():
            # the two forms of gelu are less than 5e-4 apart: not 100 times as much as what float32 norms leave unknown
            told = field != "activation, form of gelu" or name in SHARP
            top = re.split("[.,]", field)[0]
            new = not any(getattr(other, top) == getattr(shape, top) for other in before)
            value = (field, str(getattr(shape, top)))
            if told and new and times[value] < FAMILIES_EACH and change(shape) is not None:
                times[value] += 1
                yield name, field
        before.append(shape)


def test_no_field_is_forgotten() -> None:
    schema = Architecture.model_json_schema()
    sections = {"moe": "Experts", "mla": "LatentAttention", "rotary_scaling": "RotaryScaling", "biases": "Biases"}
    parts = {f"{field}.{part}" for field, name in sections.items() for part in schema["$defs"][name]["properties"]}
    assert set(schema["$defs"]) == set(sections.values())
    assert set(CHANGES) - {"activation, form of gelu"} == (set(schema["properties"]) | parts) - {"biases"} - TOGETHER


@pytest.mark.parametrize(("name", "field"), list(hearings()))
def test_each_field_is_heard(name: str, field: str) -> None:
    both, model = pair(FAMILIES[name]), FAMILIES[name].model
    changes = CHANGES[field](both.ours.shape)
    assert changes is not None
    changed = {key: value for key, value in {**model, **changes}.items() if value is not LEFT_OUT}
    shapes = {parameter.name: parameter.shape for parameter in parameters(shape_of(changed))}
    if shapes != {name: tuple(parameter.shape) for name, parameter in both.ours.named_parameters()}:
        return  # so that copied() refuses the weights: names and shapes are compared there
    theirs, bound = sharpest(name)
    mine = our_logits(copied(changed, both.ours.state_dict()), both.ids)
    assert distance(mine, theirs) > HEARD * bound
