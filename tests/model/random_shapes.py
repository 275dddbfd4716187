"""Random architectures: every field of the reference Transformer, in combinations that fit together."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from initdiag.model.architecture import Architecture

Fields = dict[str, Any]

GROUPS = ("qkv", "out", "mlp", "norm", "head", "router")


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """None, for a field that isn't given, or a value."""
    return st.none() | values


@st.composite
def fields(draw: st.DrawFn) -> Fields:
    """Return fields of an architecture; those that are None aren't given."""
    n_heads, n_layers = draw(st.sampled_from((1, 2, 3, 4, 6))), draw(st.integers(1, 3))
    position = draw(st.sampled_from(("learned", "sinusoidal", "rotary", "rotary", "alibi", "none")))
    latent = draw(maybe(latents())) if position == "rotary" else None
    moe = draw(maybe(experts(n_layers)))
    gated, tied = draw(st.booleans()), draw(st.booleans())
    given: Fields = {
        "vocab_size": draw(st.integers(2, 20)),
        "context": draw(st.integers(2, 9)),
        "d_model": 12,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "d_ff": draw(maybe(st.integers(1, 20))),
        "activation": draw(st.sampled_from(("gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu"))),
        "gated": gated,
        "gate_limit": draw(maybe(st.sampled_from((0.2, 7.0)))) if gated else None,
        "norm": draw(st.sampled_from(("layernorm", "rmsnorm"))),
        "norm_scale": draw(st.sampled_from(("learned", "one_plus", "none"))),
        "eps": draw(st.sampled_from((1e-6, 1e-2))),
        "placement": draw(
            st.sampled_from(("pre", "post", "sandwich", "reordered", "parallel", "parallel_shared", "none"))
        ),
        "inner_norm": draw(st.booleans()) if moe is None else None,
        "final_norm": draw(maybe(st.booleans())),
        "embedding_norm": draw(st.booleans()),
        "position": position,
        "position_offset": draw(st.integers(0, 3)) if position == "learned" else None,
        "windows": draw(maybe(st.lists(maybe(st.integers(1, 5)), min_size=1, max_size=3).map(tuple))),
        "attention_scale": draw(maybe(st.sampled_from((0.7, "2 / sqrt(head_dim)")))),
        "attention_softcap": draw(maybe(st.sampled_from((0.3, 5.0)))),
        "attention_sinks": draw(st.booleans()),
        "tied": tied,
        "biases": draw(st.booleans() | biases(experts=moe is not None, untied=not tied)),
        "embedding_multiplier": draw(maybe(st.sampled_from((0.5, "sqrt(d_model)")))),
        "residual_multiplier": draw(maybe(multipliers(n_layers))),
        "stream_multiplier": draw(maybe(multipliers(n_layers))),
        "branch_gain": draw(st.sampled_from(("none", "scalar", "vector"))),
        "logit_multiplier": draw(maybe(st.sampled_from((3.0, "1 / sqrt(d_model)")))),
        "logit_softcap": draw(maybe(st.sampled_from((0.3, 30.0)))),
        "moe": moe,
        "mla": latent,
    }
    if latent is None:
        given["n_kv_heads"] = draw(maybe(st.sampled_from([k for k in range(1, n_heads + 1) if n_heads % k == 0])))
        given["qk_norm"] = draw(st.sampled_from(("none", "per_head", "full")))
    if position == "rotary":
        given |= draw(rotary(latent))
    elif latent is None:
        given["head_dim"] = draw(maybe(st.integers(1, 6)))
    windowed = any(window is not None for window in given["windows"] or ())
    if position == "rotary" and windowed:
        given["local_rotary_base"] = draw(maybe(st.sampled_from((7.0, 1e4))))
    return {name: value for name, value in given.items() if value is not None}


@st.composite
def rotary(draw: st.DrawFn, latent: Fields | None) -> Fields:
    given: Fields = {
        "rotary_base": draw(maybe(st.sampled_from((20.0, 500_000.0)))),
        "rotary_scaling": draw(maybe(scalings())),
    }
    if latent is None:
        given["head_dim"] = draw(st.integers(2, 9))
        whole = given["head_dim"] % 2 == 0
        turning = st.sampled_from(range(2, given["head_dim"] + 1, 2))
        given["rotary_dims"] = draw(maybe(turning) if whole else turning)
    return given


@st.composite
def scalings(draw: st.DrawFn) -> Fields:
    kind, factor = draw(st.sampled_from(("llama3", "linear", "yarn"))), draw(st.sampled_from((1.0, 2.5, 8.0)))
    if kind == "linear":
        return {"kind": kind, "factor": factor}
    # borders in the middle of the few pairs of a small head: one turns a radian a token, the next some times fewer
    given = {"kind": kind, "factor": factor, "low": 0.5, "high": draw(st.sampled_from((2.0, 8.0))), "context": 60}
    return given | ({"rounded": draw(st.booleans())} if kind == "yarn" else {})


@st.composite
def latents(draw: st.DrawFn) -> Fields:
    given: Fields = {
        "kv_rank": draw(st.integers(1, 6)),
        "nope_dim": draw(st.integers(1, 4)),
        "rope_dim": draw(st.sampled_from((2, 4, 6))),
        "value_dim": draw(st.integers(1, 5)),
    }
    rank = draw(maybe(st.integers(1, 6)))
    return given if rank is None else given | {"query_rank": rank}


@st.composite
def experts(draw: st.DrawFn, n_layers: int) -> Fields:
    groups, size = draw(st.sampled_from(((1, 2), (1, 5), (2, 2), (3, 2), (2, 3))))
    top_groups = draw(st.integers(1, groups))
    return {
        "experts": groups * size,
        "top_k": draw(st.integers(1, size * top_groups)),
        "groups": groups,
        "top_groups": top_groups,
        "shared": draw(st.integers(0, 2)),
        "first_dense": draw(st.integers(0, n_layers - 1)),
        "score": draw(st.sampled_from(("softmax", "sigmoid"))),
        "normalized": draw(st.booleans()),
        "route_scale": draw(st.sampled_from((1.0, 2.5))),
    } | draw(st.sampled_from(({}, {"d_ff": 3})))


@st.composite
def biases(draw: st.DrawFn, experts: bool, untied: bool) -> Fields:
    allowed = [group for group in GROUPS if (group != "router" or experts) and (group != "head" or untied)]
    return {group: draw(st.booleans()) for group in allowed}


@st.composite
def multipliers(draw: st.DrawFn, n_layers: int) -> Any:
    """One number, a formula, or a number for each branch."""
    each = st.lists(st.sampled_from((0.4, 0.9, 1.5)), min_size=2 * n_layers, max_size=2 * n_layers).map(tuple)
    return draw(st.sampled_from((0.8, "1.4 / sqrt(n_layers)", "1 / sqrt(branch + layer)")) | each)


shapes = fields().map(lambda given: Architecture(**given))
