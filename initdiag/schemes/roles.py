"""What a parameter is for. A scheme answers per role; nothing else in initdiag looks at parameter names."""

from __future__ import annotations

import re
from enum import StrEnum


class Role(StrEnum):
    TOKEN_EMBEDDING = "token_embedding"
    POSITION_EMBEDDING = "position_embedding"
    ATTENTION_QUERY = "attention_query"
    ATTENTION_KEY = "attention_key"
    ATTENTION_VALUE = "attention_value"
    ATTENTION_OUT = "attention_out"
    ATTENTION_SINK = "attention_sink"  # a learned logit per head that no token has (gpt-oss)
    MLP_IN = "mlp_in"
    MLP_GATE = "mlp_gate"
    MLP_OUT = "mlp_out"
    NORM_SCALE = "norm_scale"
    NORM_BIAS = "norm_bias"
    BIAS = "bias"
    LM_HEAD = "lm_head"
    ROUTER = "router"
    ROUTER_BIAS = "router_bias"
    MULTIPLIER = "multiplier"  # learned scales of branches or streams: LayerScale, ReZero, per-layer scalars
    OTHER = "other"


EMBEDDINGS = (Role.TOKEN_EMBEDDING, Role.POSITION_EMBEDDING)
RESIDUAL_PROJECTIONS = (Role.ATTENTION_OUT, Role.MLP_OUT)  # they write into the residual stream
INPUT_PROJECTIONS = (Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE, Role.MLP_IN, Role.MLP_GATE)
BLOCK_WEIGHTS = (*INPUT_PROJECTIONS, *RESIDUAL_PROJECTIONS, Role.ROUTER)
LINEAR_WEIGHTS = (*BLOCK_WEIGHTS, Role.LM_HEAD)
BIASES = (Role.BIAS, Role.ROUTER_BIAS, Role.NORM_BIAS)


def layer_of(name: str) -> int | None:
    """Return the first number in a dotted path: 'blocks.3.attention.out' is in layer 3."""
    number = re.search(r"(?:^|\.)(\d+)(?:\.|$)", name)
    return int(number.group(1)) if number else None
