"""Random architectures: every field of the reference Transformer, in combinations that fit together."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import Phase, settings
from hypothesis import strategies as st

from initdiag.model.architecture import Architecture

Fields = dict[str, Any]

GROUPS = ("qkv", "out", "mlp", "norm", "head", "router")


def fields(r: Random) -> Fields:
    """Return fields of an architecture, each as likely to be given as not where it has a default."""

    def maybe(*values: Any) -> Any:
        return r.choice(values) if r.random() < 0.5 else None

    n_heads, n_layers, gated, tied = r.choice((1, 2, 3, 4, 6)), r.randint(1, 3), r.random() < 0.5, r.random() < 0.5
    position = r.choice(("learned", "sinusoidal", "rotary", "rotary", "rotary", "alibi", "none"))
    latent = latents(r) if position == "rotary" and r.random() < 0.4 else None
    moe = experts(r, n_layers) if r.random() < 0.5 else None
    windows = maybe(tuple(r.choice((None, 1, 2, 3, 5)) for _ in range(r.randint(1, 3))))
    given: Fields = {
        "vocab_size": r.randint(2, 20),
        "context": r.randint(2, 7),
        "d_model": 12,
        "n_layers": n_layers,
        "n_heads": n_heads,
        "d_ff": maybe(1, 7, 20),
        "activation": r.choice(("gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu")),
        "gated": gated,
        "gate_limit": maybe(0.2, 7.0) if gated else None,
        "norm": r.choice(("layernorm", "rmsnorm")),
        "norm_scale": r.choice(("learned", "one_plus", "none")),
        "eps": maybe(1e-6, 1e-2),
        "placement": r.choice(("pre", "post", "sandwich", "reordered", "parallel", "parallel_shared", "none")),
        "inner_norm": maybe(True, False) if moe is None else None,
        "final_norm": maybe(True, False),
        "embedding_norm": maybe(True, False),
        "position": position,
        "position_offset": maybe(0, 3) if position == "learned" else None,
        "windows": windows,
        "attention_scale": maybe(0.7, "2 / sqrt(head_dim)"),
        "attention_softcap": maybe(0.3, 5.0),
        "attention_sinks": maybe(True, False),
        "tied": tied,
        "biases": r.choice((None, True, False, *(biases(r, moe is not None, not tied) for _ in range(3)))),
        "embedding_multiplier": maybe(0.5, "sqrt(d_model)"),
        "residual_multiplier": maybe(0.8, "1.4 / sqrt(n_layers)", "1 / sqrt(branch + layer)", each(r, n_layers)),
        "stream_multiplier": maybe(0.8, "(2 * n_layers) ** 0.25", "layer + branch / 7", each(r, n_layers)),
        "branch_gain": r.choice(("none", "scalar", "vector")),
        "logit_multiplier": maybe(3.0, "1 / sqrt(d_model)"),
        "logit_softcap": maybe(0.3, 30.0),
        "moe": moe,
        "mla": latent,
    }
    if latent is None:
        given["n_kv_heads"] = maybe(*(k for k in range(1, n_heads + 1) if n_heads % k == 0))
        given["qk_norm"] = r.choice(("none", "per_head", "full"))
        given["head_dim"] = maybe(1, 3, 4, 6) if position != "rotary" else r.randint(2, 9)
    if position == "rotary":
        given |= {"rotary_base": maybe(20.0, 500_000.0), "rotary_scaling": r.choice((None, scaling(r)))}
        if latent is None and (r.random() < 0.5 or given["head_dim"] % 2):
            given["rotary_dims"] = r.randrange(2, given["head_dim"] + 1, 2)
        if any(window is not None for window in windows or ()):
            given["local_rotary_base"] = maybe(7.0, 1e4)
    return {name: value for name, value in given.items() if value is not None}


def scaling(r: Random) -> Fields:
    kind, factor = r.choice(("llama3", "linear", "yarn")), r.choice((1.0, 2.5, 8.0))
    if kind == "linear":
        return {"kind": kind, "factor": factor}
    # borders between the few pairs of a small head: the first turns ten times within 60 tokens, the next seldomer
    given = {"kind": kind, "factor": factor, "low": 0.5, "high": r.choice((2.0, 8.0)), "context": 60}
    return given | ({"rounded": r.random() < 0.5} if kind == "yarn" else {})


def latents(r: Random) -> Fields:
    given = {"kv_rank": r.randint(1, 6), "nope_dim": r.randint(1, 4), "value_dim": r.randint(1, 5)}
    return given | {"rope_dim": r.choice((2, 4, 6))} | r.choice(({}, {"query_rank": r.randint(1, 6)}))


def experts(r: Random, n_layers: int) -> Fields:
    groups, size = r.choice(((1, 2), (1, 5), (2, 2), (3, 2), (2, 3)))
    top_groups = r.randint(1, groups)
    return {
        "experts": groups * size,
        "top_k": r.randint(1, size * top_groups),
        "groups": groups,
        "top_groups": top_groups,
        "shared": r.randint(0, 2),
        "first_dense": r.randint(0, n_layers - 1),
        "score": r.choice(("softmax", "sigmoid")),
        "normalized": r.random() < 0.5,
        "route_scale": r.choice((1.0, 2.5)),
        "choice_bias": r.random() < 0.5,
    } | r.choice(({}, {"d_ff": 3}))


def biases(r: Random, with_experts: bool, untied: bool) -> Fields:
    allowed = [group for group in GROUPS if (group != "router" or with_experts) and (group != "head" or untied)]
    return {group: r.random() < 0.5 for group in allowed}


def each(r: Random, n_layers: int) -> tuple[float, ...]:
    """A multiplier for each branch."""
    return tuple(r.choice((0.4, 0.9, 1.5)) for _ in range(2 * n_layers))


def examples(count: int) -> settings:
    """The same each time. No shrinking: a smaller seed makes no simpler architecture."""
    return settings(max_examples=count, derandomize=True, deadline=None, database=None, phases=(Phase.generate,))


# evenly random, as hypothesis's own choices are not: two in a hundred would be parallel_shared
given_fields = st.randoms(use_true_random=True).map(fields)
shapes = given_fields.map(lambda given: Architecture(**given))
