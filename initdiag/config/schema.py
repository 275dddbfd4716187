"""What a config file may say. Field descriptions are the documentation; `initdiag schema` prints them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from initdiag.config.fields import Section
from initdiag.config.init import Init
from initdiag.model.architecture import Architecture

Source = Literal["random", "zipf", "text", "file"]


class TokenSettings(Section):
    """What the model reads."""

    source: Source = Field(
        default="random",
        description="random: uniform ids; zipf: ids that repeat as words do, the k-th most frequent in proportion to "
        "1/k; text: a text file, as bytes or tokenized; file: .bin or .npy ids",
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


class Gate(Section):
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


class About(Section):
    """What the config is of. Nothing is computed from it."""

    summary: str | None = Field(default=None, description="the model in one line")
    source: str | None = Field(default=None, description="where its shape was read: files of public code, a paper")
    parameters: int | None = Field(default=None, ge=1, description="how many parameters were published for it")
    trained_with: str | None = Field(
        default=None, description="the init that it was trained from, or that it is unknown and what init draws instead"
    )


class Config(Section):
    """A whole config file."""

    about: About = Field(default_factory=About, description="what this is; nothing is computed from it")
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


__all__ = ["About", "Config", "Gate", "Init", "TokenSettings"]
