"""The shape of the reference Transformer: what `model:` in a config may say. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]
NormKind = Literal["layernorm", "rmsnorm"]
Placement = Literal["pre", "post"]
PositionKind = Literal["learned", "sinusoidal", "rotary", "none"]


class RotaryScaling(BaseModel):
    """How Llama 3.1 slows rotary positions down for a longer context; `initdiag.model.positions` has the formula."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    factor: float = Field(ge=1, le=1e6, description="how many times slower the slow pairs of features turn")
    low: float = Field(gt=0, le=1e6, description="a pair that turns fewer times than this within context is slow")
    high: float = Field(gt=0, le=1e6, description="a pair that turns more times than this within context is left alone")
    context: int = Field(ge=1, le=2**28, description="the context before the scaling, in tokens")


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
    rotary_base: float = Field(
        default=10_000.0,
        gt=1,
        le=1e12,
        description="rotary: the i-th pair of features turns by rotary_base^(-2i / head_dim) radians a token",
    )
    rotary_scaling: RotaryScaling | None = Field(
        default=None,
        description="rotary: longer context as in Llama 3.1, {factor: 8, low: 1, high: 4, context: 8192}. Pairs that "
        "turn fewer than low times within context turn factor times slower, those above high as before, between them "
        "the change is gradual; default: none",
    )
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
        for field, message in inconsistencies(self.model_dump(exclude_unset=True)):
            raise ValueError(f"{field}: {message}")
        return self


def inconsistencies(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (field, what is wrong) for what no field can know alone; fields that aren't usable are skipped.

    Works on the raw mapping of a config file, so that these problems are reported together with all others. A field of
    `rotary_scaling` has a dotted name, also where a message mentions it.
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
    yield from _rotary_inconsistencies(given)


def _rotary_inconsistencies(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    def number(section: Mapping[str, Any], name: str) -> float | None:
        value = section.get(name)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1e12
        return value if usable else None

    fields = Architecture.model_fields
    base, scaling = number(given, "rotary_base"), given.get("rotary_scaling")
    position = given.get("position", fields["position"].default)
    if position != "rotary" and position in get_args(PositionKind):
        instead = f"with position {position}, expected position rotary"
        if base is not None and base != fields["rotary_base"].default:  # it would be without effect, and look as if
            yield "rotary_base", f"found {base:.12g} {instead}, or no rotary_base"
        if isinstance(scaling, Mapping):
            yield "rotary_scaling", f"found {instead}, or no rotary_scaling"
    if isinstance(scaling, Mapping):
        low, high = number(scaling, "low"), number(scaling, "high")
        if low is not None and high is not None and low >= high:
            yield "rotary_scaling.low", f"found {low:.12g}, expected less than rotary_scaling.high, {high:.12g}"
