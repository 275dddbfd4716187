"""Every parameter of the reference Transformer, listed from its architecture alone. No torch.

Names and order are those of `Transformer.named_parameters()`; a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from initdiag.model.architecture import Architecture
from initdiag.model.quantities import SIZES
from initdiag.schemes import Parameter, Role


@lru_cache(maxsize=8)  # a config is validated, planned, and planned again with what is advised: the same architecture
def parameters(shape: Architecture) -> tuple[Parameter, ...]:
    """Return all parameters, in the order in which the modules hold them."""
    return tuple(_all(shape))


def _all(shape: Architecture) -> Iterator[Parameter]:
    d_model = shape.d_model
    yield Parameter("token_embedding.weight", (shape.vocab_size, d_model), Role.TOKEN_EMBEDDING, d_model)
    if shape.position == "learned":
        rows = shape.context + shape.position_offset
        yield Parameter("position_embedding.weight", (rows, d_model), Role.POSITION_EMBEDDING, d_model)
    yield from _norm(shape, "embedding_norm", d_model, shape.embedding_norm)
    for layer in range(shape.n_layers):
        yield from _block(shape, layer)
    yield from _norm(shape, "final_norm", d_model, shape.final_norm)
    if not shape.tied:
        yield from _linear("head", Role.LM_HEAD, d_model, shape.vocab_size, shape.biases.head)


def sizes(shape: Architecture) -> dict[str, float]:
    """What the formulas of a scheme may use; `tied` and `qk_norm` are 1 or 0."""
    flags = {"tied": float(shape.tied), "qk_norm": float(shape.qk_norm != "none")}
    return {name: float(getattr(shape, name)) for name in SIZES} | flags


def _block(shape: Architecture, layer: int) -> Iterator[Parameter]:
    d_model, block = shape.d_model, f"blocks.{layer}"
    before, after = shape.normed_before, shape.normed_after
    both = before and shape.placement != "parallel_shared"
    yield from _norm(shape, f"{block}.attention_norm", d_model, before, layer)
    yield from _attention(shape, f"{block}.attention", layer)
    yield from _norm(shape, f"{block}.attention_post_norm", d_model, after, layer)
    yield from _gain(shape, f"{block}.attention_gain", layer)
    yield from _norm(shape, f"{block}.mlp_norm", d_model, both, layer)
    if shape.has_experts(layer):
        yield from _experts(shape, f"{block}.mlp", layer)
    else:
        yield from _mlp(shape, f"{block}.mlp", shape.d_ff, layer)
    yield from _norm(shape, f"{block}.mlp_post_norm", d_model, after, layer)
    yield from _gain(shape, f"{block}.mlp_gain", layer)


def _attention(shape: Architecture, name: str, layer: int) -> Iterator[Parameter]:
    queries, keys, bias = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim, shape.biases.qkv
    if shape.mla:
        yield from _latents(shape, name, layer)
    else:
        yield from _linear(f"{name}.query", Role.ATTENTION_QUERY, shape.d_model, queries, bias, layer)
        yield from _linear(f"{name}.key", Role.ATTENTION_KEY, shape.d_model, keys, bias, layer)
        yield from _linear(f"{name}.value", Role.ATTENTION_VALUE, shape.d_model, keys, bias, layer)
        per_head, normed = shape.qk_norm == "per_head", shape.qk_norm != "none"
        yield from _norm(shape, f"{name}.query_norm", shape.head_dim if per_head else queries, normed, layer)
        yield from _norm(shape, f"{name}.key_norm", shape.head_dim if per_head else keys, normed, layer)
    if shape.attention_sinks:
        yield Parameter(f"{name}.mix.sinks.weight", (shape.n_heads,), Role.ATTENTION_SINK, 1, layer)
    mixed = shape.n_heads * shape.value_dim
    yield from _norm(shape, f"{name}.inner_norm", mixed, shape.inner_norm, layer)
    yield from _linear(f"{name}.out", Role.ATTENTION_OUT, mixed, shape.d_model, shape.biases.out, layer)


def _latents(shape: Architecture, name: str, layer: int) -> Iterator[Parameter]:
    assert shape.mla is not None
    latent, heads, bias, read = shape.mla, shape.n_heads, shape.biases.qkv, shape.d_model
    query, key = Role.ATTENTION_QUERY, Role.ATTENTION_KEY
    if latent.query_rank:
        yield from _linear(f"{name}.query_down", query, shape.d_model, latent.query_rank, bias, layer)
        yield from _norm(shape, f"{name}.query_norm", latent.query_rank, True, layer)
        read, bias = latent.query_rank, False
    yield from _linear(f"{name}.query", query, read, heads * shape.head_dim, bias, layer)
    bias = shape.biases.qkv
    yield from _linear(f"{name}.latent_down", key, shape.d_model, latent.kv_rank, bias, layer)
    yield from _norm(shape, f"{name}.latent_norm", latent.kv_rank, True, layer)
    yield from _linear(f"{name}.rotary_key", key, shape.d_model, latent.rope_dim, bias, layer)
    yield from _linear(f"{name}.key", key, latent.kv_rank, heads * latent.nope_dim, False, layer)
    yield from _linear(f"{name}.value", Role.ATTENTION_VALUE, latent.kv_rank, heads * latent.value_dim, False, layer)


def _mlp(shape: Architecture, name: str, width: int, layer: int) -> Iterator[Parameter]:
    d_model, bias = shape.d_model, shape.biases.mlp
    if shape.gated:
        yield from _linear(f"{name}.gate", Role.MLP_GATE, d_model, width, bias, layer)
    yield from _linear(f"{name}.input", Role.MLP_IN, d_model, width, bias, layer)
    yield from _norm(shape, f"{name}.inner_norm", width, shape.inner_norm, layer)
    yield from _linear(f"{name}.out", Role.MLP_OUT, width, d_model, bias, layer)


def _experts(shape: Architecture, name: str, layer: int) -> Iterator[Parameter]:
    assert shape.moe is not None
    moe, d_model, bias = shape.moe, shape.d_model, shape.biases.mlp
    width, count = moe.d_ff or shape.d_ff, moe.experts
    yield from _linear(f"{name}.router", Role.ROUTER, d_model, count, False, layer)
    if shape.biases.router:
        yield Parameter(f"{name}.router.bias", (count,), Role.ROUTER_BIAS, d_model, layer)
    if moe.choice_bias:
        yield Parameter(f"{name}.choice.bias", (count,), Role.ROUTER_BIAS, 1, layer)
    if shape.gated:
        yield from _linear(f"{name}.gate", Role.MLP_GATE, d_model, width, bias, layer, count)
    yield from _linear(f"{name}.input", Role.MLP_IN, d_model, width, bias, layer, count)
    yield from _linear(f"{name}.out", Role.MLP_OUT, width, d_model, bias, layer, count)
    if moe.shared:
        yield from _mlp(shape, f"{name}.shared", moe.shared * width, layer)


def _linear(
    name: str, role: Role, inputs: int, outputs: int, bias: bool, layer: int | None = None, experts: int | None = None
) -> Iterator[Parameter]:
    stacked = (experts,) if experts else ()
    yield Parameter(f"{name}.weight", (*stacked, outputs, inputs), role, inputs, layer)
    if bias:
        yield Parameter(f"{name}.bias", (*stacked, outputs), Role.BIAS, inputs, layer)


def _norm(shape: Architecture, name: str, width: int, wanted: bool, layer: int | None = None) -> Iterator[Parameter]:
    if wanted and shape.norm_scale != "none":
        yield Parameter(f"{name}.weight", (width,), Role.NORM_SCALE, 1, layer)
        if shape.norm_biases:
            yield Parameter(f"{name}.bias", (width,), Role.NORM_BIAS, 1, layer)


def _gain(shape: Architecture, name: str, layer: int) -> Iterator[Parameter]:
    if shape.branch_gain != "none":
        width = 1 if shape.branch_gain == "scalar" else shape.d_model
        yield Parameter(f"{name}.weight", (width,), Role.MULTIPLIER, 1, layer)
