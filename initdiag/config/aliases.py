"""What other code bases call our keys and values."""

from __future__ import annotations

import re
from collections.abc import Iterable

_VALUES = {
    "swiglu": "activation: silu with gated: true",
    "geglu": "activation: gelu with gated: true",
    "gegelu": "activation: gelu with gated: true",
    "reglu": "activation: relu with gated: true",
    "swish": "silu",
    "squared_relu": "relu2",
    "relu_squared": "relu2",
    "sqrelu": "relu2",
    "relu^2": "relu2",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_approximate": "gelu_tanh",
    "gelu_erf": "gelu",
    "quickgelu": "quick_gelu",
    "rope": "rotary",
    "absolute": "learned",
    "nope": "none",
    "layer_norm": "layernorm",
    "rms_norm": "rmsnorm",
    "pre_norm": "pre",
    "prenorm": "pre",
    "post_norm": "post",
    "postnorm": "post",
    "peri_ln": "sandwich",
    "parallel_residual": "parallel",
}

_KEYS = {
    "hidden_size": "model.d_model",
    "n_embd": "model.d_model",
    "dim": "model.d_model",
    "num_layers": "model.n_layers",
    "num_hidden_layers": "model.n_layers",
    "num_heads": "model.n_heads",
    "num_attention_heads": "model.n_heads",
    "num_key_value_heads": "model.n_kv_heads",
    "num_query_groups": "model.n_kv_heads",
    "intermediate_size": "model.d_ff",
    "ffn_hidden_size": "model.d_ff",
    "block_size": "model.context",
    "n_ctx": "model.context",
    "max_position_embeddings": "model.context",
    "hidden_act": "model.activation",
    "rms_norm_eps": "model.eps",
    "layer_norm_eps": "model.eps",
    "layernorm_epsilon": "model.eps",
    "norm_eps": "model.eps",
    "qk_layernorm": "model.qk_norm",
    "rope_scaling": "model.rotary_scaling",
    "rope_theta": "model.rotary_base",
    "rope_base": "model.rotary_base",
    "rotary_pct": "model.rotary_dims, in features",
    "partial_rotary_factor": "model.rotary_dims, in features",
    "alibi": "model.position: alibi",
    "rope": "model.position: rotary",
    "sliding_window": "model.windows",
    "tie_word_embeddings": "model.tied",
    "weight_tying": "model.tied",
    "attention_bias": "model.biases.qkv",
    "final_logit_softcapping": "model.logit_softcap",
    "attn_logit_softcapping": "model.attention_softcap",
    "num_experts": "model.moe.experts",
    "num_local_experts": "model.moe.experts",
    "n_routed_experts": "model.moe.experts",
    "num_experts_per_tok": "model.moe.top_k",
    "n_shared_experts": "model.moe.shared",
    "initializer_range": "init.std",
    "init_method_std": "init.std",
}


def value_alias(value: str, choices: Iterable[str]) -> str | None:
    """Return what a value that another code base has is called here, where it is one of the choices."""
    ours = _VALUES.get(value.lower()[:100])
    return ours if ours and set(re.findall(r"\w+", ours)) & set(choices) else None


def key_alias(key: str) -> str | None:
    """Return where a config says what another code base calls by this key."""
    return _KEYS.get(key.lower()[:100])
