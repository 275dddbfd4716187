"""(config, scheme) pairs over all wirings of the reference Transformer, for theory.py: every placement, norm, position,
activation, kind of attention and of experts, multiplier and bias at least once, and every kind of scheme."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

BASE: dict[str, Any] = {"vocab_size": 4000, "context": 64, "d_model": 1024, "n_layers": 4, "n_heads": 16}

GATED: dict[str, Any] = {"gated": True, "activation": "silu", "biases": False, "norm": "rmsnorm", "position": "rotary"}
LLAMA: dict[str, Any] = {**GATED, "tied": False, "n_kv_heads": 4, "d_ff": 2816}
GEMMA: dict[str, Any] = {**GATED, "activation": "gelu_tanh", "norm_scale": "one_plus"}
GEMMA_2: dict[str, Any] = {
    **GEMMA, "placement": "sandwich", "windows": [16, None], "attention_softcap": 50.0, "logit_softcap": 30.0,
    "n_kv_heads": 8, "n_layers": 3,
}  # fmt: skip
NEOX: dict[str, Any] = {"placement": "parallel", "position": "rotary", "rotary_dims": 16, "tied": False}
GPT_J: dict[str, Any] = {
    "placement": "parallel_shared", "position": "rotary", "rotary_dims": 32, "activation": "gelu_tanh", "tied": False,
    "biases": {"mlp": True, "norm": True, "head": True},
}  # fmt: skip
BLOOM: dict[str, Any] = {"position": "alibi", "embedding_norm": True, "activation": "gelu_tanh"}
OLMO: dict[str, Any] = {
    "norm_scale": "none",
    "position": "rotary",
    "gated": True,
    "biases": False,
    "activation": "silu",
}
OLMO_2: dict[str, Any] = {**LLAMA, "placement": "reordered", "qk_norm": "full"}
NANOCHAT: dict[str, Any] = {
    "norm": "rmsnorm", "norm_scale": "none", "qk_norm": "per_head", "position": "rotary", "embedding_norm": True,
    "activation": "relu2", "logit_softcap": 15.0, "biases": False, "tied": False,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    **GATED, "tied": False, "n_layers": 3, "d_ff": 2816,
    "mla": {"query_rank": 512, "kv_rank": 512, "nope_dim": 64, "rope_dim": 32, "value_dim": 64},
    "moe": {"experts": 16, "top_k": 4, "shared": 1, "d_ff": 512, "first_dense": 1, "score": "sigmoid",
            "route_scale": 2.5, "choice_bias": True, "groups": 4, "top_groups": 2},
}  # fmt: skip
GPT_OSS: dict[str, Any] = {
    "norm": "rmsnorm", "position": "rotary", "windows": [16, None], "attention_sinks": True,
    "activation": "quick_gelu", "gated": True, "gate_limit": 7.0, "tied": False, "n_kv_heads": 4, "n_layers": 3,
    "biases": {"qkv": True, "out": True, "mlp": True, "router": True},
    "moe": {"experts": 8, "top_k": 4, "d_ff": 1024},
}  # fmt: skip
MIXTRAL: dict[str, Any] = {**LLAMA, "n_layers": 3, "moe": {"experts": 8, "top_k": 2, "d_ff": 1024}}


@dataclass(frozen=True)
class Pair:
    """A config, and a scheme with its parameters."""

    model: dict[str, Any]
    scheme: str
    init: dict[str, Any] = field(default_factory=dict)


PAIRS: dict[str, Pair] = {
    "gpt2": Pair({}, "gpt2"),
    "gpt2 scaled": Pair({}, "scaled"),
    "gpt2 default": Pair({}, "default"),  # U(1/√fan_in), N(1) embeddings, tied
    "gpt2 std 0.1": Pair({}, "gpt2", {"std": 0.1}),
    "untied xavier": Pair({"tied": False, "activation": "gelu_tanh"}, "xavier-normal"),
    "gpt2 zero-residual": Pair({}, "zero-residual"),
    "gpt2 mup": Pair({"tied": False}, "mup"),
    "gpt2 completep": Pair({}, "completep"),
    "gpt2 spectral": Pair({"tied": False, "biases": False}, "spectral"),
    "gpt2 orthogonal": Pair({"n_layers": 3}, "orthogonal"),
    "gpt2 tight windows": Pair({"windows": [4, None]}, "transformerlens"),
    "post bert": Pair({"placement": "post"}, "bert"),
    "post sinusoidal relu": Pair({"placement": "post", "position": "sinusoidal", "activation": "relu"}, "t2t"),
    "post torch": Pair({"placement": "post", "activation": "relu", "tied": False}, "torch-transformer"),
    "post final rmsnorm": Pair({"placement": "post", "final_norm": True, "norm": "rmsnorm"}, "small-init"),
    "deepnorm": Pair({"placement": "post", "tied": False}, "deepnorm"),
    "no norm at the end": Pair({"final_norm": False, "position": "none"}, "kaiming-normal"),
    "llama scaled": Pair(LLAMA, "scaled"),
    "llama default": Pair(LLAMA, "default"),
    "llama torchtitan": Pair({**LLAMA, "n_kv_heads": 1}, "torchtitan"),
    "llama lingua": Pair(LLAMA, "lingua"),
    "llama orthogonal": Pair({**LLAMA, "n_layers": 3}, "orthogonal"),
    "llama u-mup": Pair(LLAMA, "u-mup"),
    "gemma": Pair({**GEMMA, "n_heads": 8, "head_dim": 256, "n_kv_heads": 1}, "gemma"),
    "gemma 2": Pair(GEMMA_2, "gemma"),
    "gemma 2 hard caps": Pair({**GEMMA_2, "attention_softcap": 1.0, "logit_softcap": 2.0}, "small-init"),
    "gemma 3": Pair({**GEMMA, "placement": "sandwich", "qk_norm": "per_head", "windows": [8, None]}, "gemma"),
    "neox": Pair(NEOX, "wang"),
    "gpt-j": Pair(GPT_J, "gptj"),
    "palm": Pair({**GPT_J, "biases": False, "gated": True, "n_kv_heads": 1, "tied": True}, "palm"),
    "opt": Pair({"position_offset": 2, "activation": "relu"}, "opt"),
    "bloom": Pair(BLOOM, "bloom"),
    "mpt default": Pair({"position": "alibi", "biases": False}, "default"),
    "olmo": Pair(OLMO, "olmo-mitchell"),
    "olmo 2": Pair(OLMO_2, "olmo-normal"),
    "olmo 2 default": Pair(OLMO_2, "default"),
    "nanochat": Pair(NANOCHAT, "nanochat"),
    "nanochat default": Pair(NANOCHAT, "default"),
    "minicpm": Pair({**GATED}, "minicpm"),
    "sub-ln": Pair({"tied": False}, "sub-ln"),
    "rezero": Pair({}, "rezero"),
    "skipinit 0.5": Pair({"activation": "relu"}, "skipinit", {"gain": 0.5}),
    "layerscale": Pair({}, "layerscale"),
    "mixtral": Pair(MIXTRAL, "gpt2"),
    "mixtral default": Pair(MIXTRAL, "default"),
    "deepseek": Pair(DEEPSEEK, "deepseek"),
    "deepseek default": Pair(DEEPSEEK, "default"),
    "gpt-oss": Pair(GPT_OSS, "default"),
    "gpt-oss hard limit": Pair({**GPT_OSS, "gate_limit": 0.5, "n_kv_heads": 16}, "megatron"),
}

# What --widths takes: inits whose parts keep their proportions at every width, heads of 64, sizes that grow with it
WIDE: dict[str, Pair] = {
    "gpt2 default": PAIRS["gpt2 default"],
    "llama default": Pair({key: LLAMA[key] for key in LLAMA if key not in ("d_ff", "n_kv_heads")}, "default"),
    "post torch": PAIRS["post torch"],
    "nanochat default": PAIRS["nanochat default"],
}
