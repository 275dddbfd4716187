"""Every parameter of the reference Transformer, listed from its architecture alone. No torch.

Names and order are those of `Transformer.named_parameters()`; a test holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterator

from initdiag.model.architecture import Architecture
from initdiag.schemes import Parameter, Role


def parameters(shape: Architecture) -> Iterator[Parameter]:
    """Yield all parameters, in the order in which the modules hold them."""
    d_model = shape.d_model
    yield Parameter("token_embedding.weight", (shape.vocab_size, d_model), Role.TOKEN_EMBEDDING, d_model)
    if shape.position == "learned":
        yield Parameter("position_embedding.weight", (shape.context, d_model), Role.POSITION_EMBEDDING, d_model)
    for layer in range(shape.n_layers):
        yield from _block(shape, layer)
    if shape.final_norm:
        yield from _norm(shape, "final_norm")
    if not shape.tied:
        yield Parameter("head.weight", (shape.vocab_size, d_model), Role.LM_HEAD, d_model)


def sizes(shape: Architecture) -> dict[str, float]:
    """What the formulas of a scheme may use."""
    names = ("vocab_size", "context", "d_model", "n_layers", "n_heads", "n_kv_heads", "head_dim", "d_ff")
    return {name: float(getattr(shape, name)) for name in names}


def _block(shape: Architecture, layer: int) -> Iterator[Parameter]:
    d_model, d_ff = shape.d_model, shape.d_ff
    queries, keys = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    block = f"blocks.{layer}"
    yield from _norm(shape, f"{block}.attention_norm", layer)
    yield from _linear(shape, f"{block}.attention.query", Role.ATTENTION_QUERY, d_model, queries, layer)
    yield from _linear(shape, f"{block}.attention.key", Role.ATTENTION_KEY, d_model, keys, layer)
    yield from _linear(shape, f"{block}.attention.value", Role.ATTENTION_VALUE, d_model, keys, layer)
    yield from _linear(shape, f"{block}.attention.out", Role.ATTENTION_OUT, queries, d_model, layer)
    yield from _norm(shape, f"{block}.mlp_norm", layer)
    if shape.gated:
        yield from _linear(shape, f"{block}.mlp.gate", Role.MLP_GATE, d_model, d_ff, layer)
    yield from _linear(shape, f"{block}.mlp.input", Role.MLP_IN, d_model, d_ff, layer)
    yield from _linear(shape, f"{block}.mlp.out", Role.MLP_OUT, d_ff, d_model, layer)


def _linear(shape: Architecture, name: str, role: Role, inputs: int, outputs: int, layer: int) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (outputs, inputs), role, inputs, layer)
    if shape.biases:
        yield Parameter(f"{name}.bias", (outputs,), Role.BIAS, inputs, layer)


def _norm(shape: Architecture, name: str, layer: int | None = None) -> Iterator[Parameter]:
    yield Parameter(f"{name}.weight", (shape.d_model,), Role.NORM_SCALE, 1, layer)
    if shape.norm == "layernorm" and shape.biases:
        yield Parameter(f"{name}.bias", (shape.d_model,), Role.NORM_BIAS, 1, layer)
