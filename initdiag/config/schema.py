"""What a config file may say. Field descriptions are the documentation; `initdiag schema` prints them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from initdiag.model.architecture import Architecture


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Init(_Section):
    """Which scheme draws the weights, and its parameters (`initdiag scheme NAME` lists them)."""

    scheme: str = Field(default="gpt2", description="name of an init scheme")
    std: float | None = Field(
        default=None, gt=0, le=1e6, description="std of matrices and embeddings; default: the scheme's own"
    )
    residual_std: float | None = Field(
        default=None, gt=0, le=1e6, description="std of the residual projections; default: the scheme's own formula"
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="seed of the weights, and of the tokens unless they have one"
    )

    @property
    def parameters(self) -> dict[str, float]:
        """The scheme parameters that were given."""
        return {
            name: value for name, value in (("std", self.std), ("residual_std", self.residual_std)) if value is not None
        }


class TokenSettings(_Section):
    """What the model reads."""

    source: Literal["random", "text", "file"] = Field(
        default="random",
        description="random: uniform ids; text: a text file, as bytes or tokenized; file: .bin or .npy ids",
    )
    path: str | None = Field(default=None, description="the text or token file, relative to this config")
    tokenizer: str | None = Field(
        default=None, description="a tokenizer.json for text; without it, bytes are the tokens"
    )
    dtype: Literal["uint16", "uint32"] | None = Field(
        default=None,
        description="of a .bin file without a header; default: uint16 up to a vocabulary of 65536, else uint32",
    )
    batch: int = Field(default=2, ge=1, le=2**16, description="B: sequences in the batch")
    length: int | None = Field(
        default=None,
        ge=1,
        le=2**24,
        description="T: tokens in a sequence; default: 256, or the model's context if that is less",
    )
    seed: int | None = Field(
        default=None, ge=0, lt=2**63, description="seed of the ids or windows; default: the seed of init"
    )


class Gate(_Section):
    """When a number becomes a finding. Every default is explained in docs/rules.md."""

    max_excess: float = Field(default=2.0, gt=0, description="error above this loss − ln V, in nats")
    max_logit_std: float = Field(default=2.0, gt=0, description="error above this logit std")
    warn_logit_std: float = Field(default=1.2, gt=0, description="warning above this logit std")
    max_self_logit: float = Field(default=3.0, gt=0, description="error when the self-logit is above ln V + this")
    depth_exponent: float = Field(
        default=0.5, gt=0, le=1, description="finding when the scaling ratio is beyond (2N)^±this"
    )
    std_tolerance: float = Field(
        default=0.03, gt=0, lt=1, description="relative error of a measured std that always passes"
    )
    min_attention_entropy: float = Field(default=0.3, ge=0, le=1, description="error below this fraction of ln T")
    warn_attention_entropy: float = Field(default=0.6, ge=0, le=1, description="warning below this fraction of ln T")
    warn_attention_logit_std: float = Field(default=3.0, gt=0, description="warning above this attention-logit std")
    headroom_dtype: Literal["float32", "bfloat16", "float16"] = Field(
        default="bfloat16", description="what training will run in: error when an activation comes near its largest"
    )
    select: tuple[str, ...] = Field(
        default=(), description="only these rules (ids, names or prefixes of ids); empty: all"
    )
    ignore: tuple[str, ...] = Field(default=(), description="not these rules")


class Config(_Section):
    """A whole config file."""

    model: Architecture = Field(description="the Transformer")
    init: Init = Field(default_factory=Init, description="how its weights are drawn")
    tokens: TokenSettings = Field(default_factory=TokenSettings, description="what it reads")
    gate: Gate = Field(default_factory=Gate, description="what fails")

    @property
    def length(self) -> int:
        """T: tokens in a sequence."""
        return self.tokens.length if self.tokens.length is not None else min(256, self.model.context)

    @property
    def token_seed(self) -> int:
        return self.init.seed if self.tokens.seed is None else self.tokens.seed
