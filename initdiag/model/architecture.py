"""The shape of the reference Transformer: what `model:` in a config may say. No torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from initdiag.model.consistency import inconsistencies
from initdiag.model.quantities import LARGEST, Branches, ByBranch, Quantity
from initdiag.model.sections import Biases, BiasGroups, Experts, LatentAttention, RotaryScaling

Activation = Literal["gelu", "gelu_tanh", "quick_gelu", "relu", "relu2", "silu"]
Placement = Literal["pre", "post", "sandwich", "reordered", "parallel", "parallel_shared", "none"]
Window = Annotated[int, Field(ge=1, le=2**28)] | None


def _head_dim(given: dict[str, Any]) -> int:
    latent: LatentAttention | None = given["mla"]
    return latent.nope_dim + latent.rope_dim if latent else int(given["d_model"] // given["n_heads"])


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
    mla: LatentAttention | None = Field(
        default=None, description="multi-head latent attention, as in DeepSeek-V3; default: none"
    )
    head_dim: int = Field(
        ge=1,
        le=2**20,
        default_factory=_head_dim,
        description="width of one query and key head; default: d_model / n_heads, with mla nope_dim + rope_dim",
    )
    d_ff: int = Field(
        ge=1,
        le=2**24,
        default_factory=lambda given: 4 * given["d_model"],
        description="hidden width of the MLP; default: 4 * d_model",
    )
    moe: Experts | None = Field(default=None, description="experts in place of the MLPs; default: none")
    activation: Activation = Field(
        default="gelu",
        description="non-linearity of the MLP; gelu is the exact (erf) form, quick_gelu u * sigmoid(1.702 u), relu2 "
        "relu squared",
    )
    gated: bool = Field(default=False, description="the MLP is out(act(gate(x)) * in(x)), as in SwiGLU")
    gate_limit: float | None = Field(
        default=None,
        gt=0,
        le=LARGEST,
        description="the gated MLP of gpt-oss: gate values are cut at this limit, inputs at ± it, and 1 is added to "
        "the inputs; default: none",
    )
    norm: Literal["layernorm", "rmsnorm"] = Field(default="layernorm", description="kind of every norm")
    norm_scale: Literal["learned", "one_plus", "none"] = Field(
        default="learned",
        description="norms multiply by a learned vector, by 1 + it (Gemma), or have no parameters (OLMo)",
    )
    eps: float = Field(default=1e-5, gt=0, lt=1, description="added to the variance (mean square) inside every norm")
    placement: Placement = Field(
        default="pre",
        description="pre: x + f(norm(x)), as in GPT-2; post: norm(x + f(x)), as in the first Transformer; sandwich: "
        "x + norm(f(norm(x))), as in Gemma 2; reordered: x + norm(f(x)), as in OLMo 2; parallel: x + "
        "attention(norm(x)) + mlp(another norm(x)), as in GPT-NeoX; "
        "parallel_shared: with one norm for both, as in GPT-J; none: x + f(x)",
    )
    inner_norm: bool = Field(
        default=False, description="Sub-LN: norms before the output projections of attention and MLP, too"
    )
    final_norm: bool = Field(
        default_factory=lambda given: given["placement"] not in ("post", "none"),
        description="a norm before the head; default: true, but for post and none false",
    )
    embedding_norm: bool = Field(default=False, description="a norm on the embeddings, as in BLOOM")
    qk_norm: Literal["none", "per_head", "full"] = Field(
        default="none",
        description="norms on queries and keys: over each head, with one scale for all heads (Qwen 3), or over the "
        "full width (OLMo 2)",
    )
    position: Literal["learned", "sinusoidal", "rotary", "alibi", "none"] = Field(
        default="learned", description="how a token learns where it is"
    )
    position_offset: int = Field(
        default=0, ge=0, le=2**16, description="learned: the first so many rows are never used (OPT: 2)"
    )
    rotary_base: float = Field(
        default=10_000.0,
        gt=1,
        le=1e12,
        description="rotary: the i-th pair of features turns by rotary_base^(-2i / rotary_dims) radians a token",
    )
    rotary_dims: int = Field(
        ge=2,
        le=2**20,
        default_factory=lambda given: given["mla"].rope_dim if given["mla"] else given["head_dim"],
        description="rotary: the first so many features of a head turn; default: head_dim, with mla rope_dim",
    )
    rotary_scaling: RotaryScaling | None = Field(
        default=None,
        description="rotary: longer context as in Llama 3.1, {factor: 8, low: 1, high: 4, context: 8192}, or by kind "
        "linear or yarn; default: none",
    )
    local_rotary_base: float | None = Field(
        default=None,
        gt=1,
        le=1e12,
        description="rotary: another base, without scaling, for layers with a window (Gemma 3); default: the same",
    )
    windows: tuple[Window, ...] = Field(
        default=(),
        strict=False,
        description="a token attends to so many tokens up to itself: one entry for each layer, null for all, and again "
        "from the first when the list ends; [4096] for all layers, [4096, null] in turns; default: no windows",
    )
    attention_scale: Quantity = Field(
        gt=0,
        le=LARGEST,
        default_factory=lambda given: max(given["head_dim"], 1) ** -0.5,  # 0 where sizes don't fit, as is told
        description="attention logits are query · key times it; default: 1 / sqrt(head_dim)",
    )
    attention_softcap: float | None = Field(
        default=None, gt=0, le=LARGEST, description="attention logits become cap * tanh(logits / cap); default: none"
    )
    attention_sinks: bool = Field(
        default=False, description="a learned logit for each head that takes a part of its attention (gpt-oss)"
    )
    tied: bool = Field(default=True, description="the head is the transposed token embedding")
    biases: BiasGroups = Field(
        default=Biases(qkv=True, out=True, mlp=True, norm=True),
        description="biases of the blocks' linear layers and of LayerNorm: true, false, or {qkv: true, …} for single "
        "ones of qkv, out, mlp, norm, head, router",
    )
    embedding_multiplier: Quantity = Field(
        default=1.0,
        gt=0,
        le=LARGEST,
        description="the forward pass multiplies token embeddings by it (Gemma: sqrt(d_model))",
    )
    residual_multiplier: ByBranch = Field(
        default=1.0,
        description="multiplies every branch before it is added (MiniCPM: 1.4 / sqrt(n_layers)); a formula may use "
        "layer, from 0, and branch, from 1 to 2N; or a list of 2N numbers",
    )
    stream_multiplier: ByBranch = Field(
        default=1.0,
        description="multiplies the stream before a branch is added to it (DeepNorm: (2 * n_layers) ** 0.25); as "
        "above; a parallel block takes that of its first branch",
    )
    branch_gain: Literal["none", "scalar", "vector"] = Field(
        default="none",
        description="a learned multiplier at the end of each branch: one number (ReZero) or d_model (LayerScale)",
    )
    logit_multiplier: Quantity = Field(
        default=1.0, gt=0, le=LARGEST, description="the forward pass multiplies logits by it"
    )
    logit_softcap: float | None = Field(
        default=None, gt=0, le=LARGEST, description="logits become cap * tanh(logits / cap); default: none"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Architecture:
        for field, message in inconsistencies(self.model_dump(exclude_unset=True)):
            raise ValueError(f"{field}: {message}")
        return self

    def window(self, layer: int) -> int | None:
        """The window of a layer, in tokens; None where it sees all."""
        return self.windows[layer % len(self.windows)] if self.windows else None

    def has_experts(self, layer: int) -> bool:
        return self.moe is not None and layer >= self.moe.first_dense

    @property
    def normed_before(self) -> bool:
        """Whether a norm of its own stands before attention and MLP; of parallel_shared, one for both."""
        return self.placement not in ("reordered", "none")

    @property
    def normed_after(self) -> bool:
        """Whether the output of attention and MLP is normed before it is added to the stream."""
        return self.placement in ("sandwich", "reordered")

    @property
    def value_dim(self) -> int:
        """The width of one value head."""
        return self.mla.value_dim if self.mla else self.head_dim

    @property
    def norm_biases(self) -> bool:
        return self.norm == "layernorm" and self.norm_scale != "none" and self.biases.norm


def of_branch(multiplier: Branches, branch: int) -> float:
    """Return the multiplier of a branch, 1 … 2N."""
    return multiplier[branch - 1] if isinstance(multiplier, tuple) else multiplier
