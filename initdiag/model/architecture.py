"""The shape of the reference Transformer: what `model:` in a config may say. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
NormKind = Literal["layernorm", "rmsnorm"]
Placement = Literal["pre", "post"]
PositionKind = Literal["learned", "sinusoidal", "rotary", "none"]


class Architecture(BaseModel):
    """A decoder-only Transformer. What is left out follows from the fields before it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    vocab_size: int = Field(ge=2, le=2**28, description="V: rows of the token embedding, and of the logits")
    context: int = Field(ge=1, le=2**28, description="the longest sequence that the model takes, in tokens")
    d_model: int = Field(ge=1, le=2**20, description="width of the residual stream")
    n_layers: int = Field(ge=1, le=10_000, description="N: blocks of attention + MLP")
    n_heads: int = Field(ge=1, le=2**20, description="query heads; must divide d_model unless head_dim is given")
    n_kv_heads: int = Field(
        ge=1,
        le=2**20,
        default_factory=lambda given: given["n_heads"],
        description="key and value heads (grouped-query attention); must divide n_heads; default: n_heads",
    )
    head_dim: int = Field(
        ge=1,
        le=2**20,
        default_factory=lambda given: given["d_model"] // given["n_heads"],
        description="width of one head; default: d_model / n_heads",
    )
    d_ff: int = Field(
        ge=1,
        le=2**24,
        default_factory=lambda given: 4 * given["d_model"],
        description="hidden width of the MLP; default: 4 * d_model",
    )
    activation: Activation = Field(default="gelu", description="non-linearity of the MLP; gelu is the exact (erf) form")
    gated: bool = Field(default=False, description="the MLP is out(act(gate(x)) * in(x)), as in SwiGLU")
    norm: NormKind = Field(default="layernorm", description="kind of every norm")
    eps: float = Field(default=1e-5, gt=0, lt=1, description="added to the variance (mean square) inside every norm")
    placement: Placement = Field(
        default="pre", description="pre: x + f(norm(x)), as in GPT-2; post: norm(x + f(x)), as in the first Transformer"
    )
    position: PositionKind = Field(default="learned", description="how a token learns where it is")
    tied: bool = Field(default=True, description="the head is the transposed token embedding")
    biases: bool = Field(default=True, description="biases in the linear layers of the blocks, and in LayerNorm")
    final_norm: bool = Field(
        default_factory=lambda given: given["placement"] == "pre",
        description="a norm before the head; default: true for pre, false for post",
    )
    embedding_multiplier: float = Field(
        default=1.0,
        gt=0,
        le=1e6,
        description="the forward pass multiplies token embeddings by it (Gemma: sqrt(d_model))",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Architecture:
        given = {name: getattr(self, name) for name in self.model_fields_set}
        for field, message in inconsistencies(given):
            raise ValueError(f"{field}: {message}")
        return self


def inconsistencies(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (field, what is wrong) for what no field can know alone; fields that aren't usable are skipped.

    Works on the raw mapping of a config file, so that these problems are reported together with all others.
    """

    def whole(name: str) -> int | None:
        value = given.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None

    d_model, n_heads, n_kv_heads, head_dim = map(whole, ("d_model", "n_heads", "n_kv_heads", "head_dim"))
    if d_model and n_heads and "head_dim" not in given:
        if d_model % n_heads:
            yield "n_heads", f"{n_heads} does not divide d_model {d_model}; expected a divisor of it, or a head_dim"
        else:
            head_dim = d_model // n_heads
    if n_heads and n_kv_heads and n_heads % n_kv_heads:
        yield "n_kv_heads", f"{n_kv_heads} does not divide n_heads {n_heads}; expected a divisor of it"
    if given.get("position") == "rotary" and head_dim and head_dim % 2:
        yield "position", f"rotary turns pairs of features; expected an even head_dim, found {head_dim}"
    if given.get("position") == "sinusoidal" and d_model and d_model % 2:
        yield "position", f"sinusoidal positions come in pairs of features; expected an even d_model, found {d_model}"
