"""The parts of an architecture that have several fields of their own: sections inside `model:`. No torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class RotaryScaling(_Part):
    """How rotary positions are slowed down for a longer context; `initdiag.model.positions` has the formulas."""

    kind: Literal["llama3", "linear", "yarn"] = Field(
        default="llama3",
        description="linear: all pairs of features turn factor times slower; llama3 and yarn: only the slow ones, with "
        "a gradual change in the number of turns (llama3) or in the number of the pair (yarn)",
    )
    factor: float = Field(ge=1, le=1e6, description="how many times slower the slow pairs of features turn")
    low: float = Field(
        default=1.0, gt=0, le=1e6, description="a pair that turns fewer times than this within context is slow"
    )
    high: float = Field(
        gt=0,
        le=1e6,
        default_factory=lambda given: 32.0 if given["kind"] == "yarn" else 4.0,
        description="a pair that turns more often than this within context is left alone; default: 4, of yarn 32",
    )
    context: int | None = Field(
        default=None, ge=1, le=2**28, description="the context before the scaling, in tokens; linear needs none"
    )
    rounded: bool = Field(
        default=True, description="yarn: the change begins and ends at whole pairs (DeepSeek), not between (gpt-oss)"
    )


class Biases(_Part):
    """Which layers have biases. `true` for the whole section: qkv, out, mlp and norm; `false`: none."""

    qkv: bool = Field(default=False, description="queries, keys and values")
    out: bool = Field(default=False, description="the output projection of attention")
    mlp: bool = Field(default=False, description="all layers of the MLPs, experts included")
    norm: bool = Field(default=False, description="LayerNorms, if they have scales")
    head: bool = Field(default=False, description="an untied head")
    router: bool = Field(default=False, description="the routers of experts")


def _for_all(value: object) -> object:
    return dict.fromkeys(("qkv", "out", "mlp", "norm"), value) if isinstance(value, bool) else value


BiasGroups = Annotated[Biases, BeforeValidator(_for_all, json_schema_input_type=bool | Biases)]


class Experts(_Part):
    """A mixture of experts in place of the MLPs: a router chooses some for each token."""

    experts: int = Field(ge=2, le=2**16, description="how many there are to choose from")
    top_k: int = Field(ge=1, le=2**16, description="how many a token gets")
    d_ff: int | None = Field(default=None, ge=1, le=2**24, description="hidden width of one; default: the model's d_ff")
    shared: int = Field(
        default=0, ge=0, le=2**10, description="experts that every token gets: one MLP of so many times d_ff"
    )
    first_dense: int = Field(default=0, ge=0, le=10_000, description="so many first layers keep a single MLP")
    score: Literal["softmax", "sigmoid"] = Field(default="softmax", description="of router logits, over the experts")
    normalized: bool = Field(
        default=True,
        description="the scores of the chosen are divided by their sum (a softmax over the chosen)",
    )
    route_scale: float = Field(default=1.0, gt=0, le=1e6, description="multiplies the scores after that")
    choice_bias: bool = Field(
        default=False,
        description="a number for each expert is added to its score, for the choice only (DeepSeek-V3); no gradient "
        "trains it",
    )
    groups: int = Field(default=1, ge=1, le=2**10, description="the experts stand in so many groups (DeepSeek-V3)")
    top_groups: int = Field(
        default=1, ge=1, le=2**10, description="groups to choose from, by the sum of their two best scores"
    )


class LatentAttention(_Part):
    """Multi-head latent attention: keys and values come from one narrow latent vector (arXiv 2405.04434, 2.1)."""

    query_rank: int | None = Field(
        default=None, ge=1, le=2**20, description="width of the latent of the queries; none: they come from the stream"
    )
    kv_rank: int = Field(ge=1, le=2**20, description="width of the latent of keys and values")
    nope_dim: int = Field(ge=1, le=2**20, description="features of a query or key head that don't turn with positions")
    rope_dim: int = Field(ge=2, le=2**20, description="features that do; their keys are shared by all heads; even")
    value_dim: int = Field(ge=1, le=2**20, description="features of a value head")
