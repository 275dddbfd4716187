"""Every scheme with the architecture that it was made for, in small, and what a check may say of it, with the reason.

Names of rules stand with the worst severity that is right; "(near)" before a reason: a number so close to its
threshold at this size that the rule may also be silent.
"""

from __future__ import annotations

from typing import Any

BASE = {"vocab_size": 512, "context": 32, "d_model": 64, "n_layers": 4, "n_heads": 4}
UNTIED = {**BASE, "tied": False}
POST = {**BASE, "placement": "post", "activation": "relu"}
ORIGINAL = {**POST, "position": "sinusoidal"}
ALIBI = {**BASE, "position": "alibi", "biases": False}
NEOX = {**UNTIED, "position": "rotary", "placement": "parallel"}
LLAMA_TIED = {
    **BASE,
    **{"n_kv_heads": 2, "d_ff": 176, "activation": "silu", "gated": True},
    **{"norm": "rmsnorm", "position": "rotary", "biases": False},
}
LLAMA = {**LLAMA_TIED, "tied": False}
GEMMA = {**LLAMA_TIED, "n_kv_heads": 1, "activation": "gelu_tanh"}
T5 = {
    **BASE,
    "norm": "rmsnorm",
    "activation": "relu",
    "position": "alibi",
    "biases": False,
}  # alibi: relative, additive
T5_V11 = {**T5, "activation": "gelu_tanh", "gated": True, "tied": False}
PALM = {**GEMMA, "placement": "parallel_shared", "norm": "layernorm", "activation": "silu"}
OLMO = {**LLAMA_TIED, "norm": "layernorm", "norm_scale": "none"}
OLMO2 = {**LLAMA, "placement": "reordered", "qk_norm": "full"}
OPEN_LM = {**LLAMA, "norm": "layernorm", "qk_norm": "full"}
MIXTRAL = {**LLAMA, "moe": {"experts": 4, "top_k": 2}}
DEEPSEEK = {
    **{key: value for key, value in LLAMA.items() if key != "n_kv_heads"},
    "eps": 1e-6,
    "mla": {"query_rank": 32, "kv_rank": 16, "nope_dim": 16, "rope_dim": 8, "value_dim": 16},
    "moe": {"experts": 4, "top_k": 2, "shared": 1, "d_ff": 48, "first_dense": 1, "score": "sigmoid"},
}
NANOCHAT = {
    **UNTIED,
    **{"activation": "relu2", "norm": "rmsnorm", "norm_scale": "none", "eps": 1e-6, "qk_norm": "per_head"},
    **{"position": "rotary", "biases": False, "logit_softcap": 15},
}

GROWS = {"RES001": ("warning", "its branches are not scaled with depth, and together they are more than the embedding")}
HIDDEN = {"RES001": ("info", "its branches are not scaled with depth, but the embedding is larger than all of them")}
HOT = ("warning", "a gain of √2 on every matrix gives logits a std of √2 = 1.41, and the gate warns from 1.2 on")
SHARP = ("warning", "(near) a gain of √2 on queries and keys gives attention logits a std of 2")
SCHEMES: dict[str, tuple[dict[str, Any], dict[str, tuple[str, str]]]] = {
    "default": (UNTIED, HIDDEN),
    "torch-transformer": ({**POST, "tied": False}, {}),
    "xavier-uniform": (POST, {}),
    "xavier-normal": (UNTIED, GROWS),
    "kaiming-uniform": (LLAMA, {**GROWS, "LOGIT001": HOT, "ATTN001": SHARP}),
    "kaiming-normal": (LLAMA, {**GROWS, "LOGIT001": HOT, "ATTN001": SHARP}),
    "orthogonal": (LLAMA, GROWS),
    "t2t": (ORIGINAL, {}),
    "t5": (T5, GROWS),
    "t5-hf": (
        T5_V11,
        {
            **GROWS,
            "LOGIT001": ("error", "the class draws an untied head N(1) and doesn't scale its logits: std √d_model = 8"),
            "LOSS003": ("error", "as LOGIT001: logits of std 8 over 512 tokens cost 18 nats"),
        },
    ),
    "bert": (POST, {}),
    "gpt2": (BASE, GROWS),
    "gpt2-release": (BASE, GROWS),
    "scaled": (BASE, {}),
    "llama2c": (LLAMA_TIED, {"RES003": ("warning", "w3 is scaled where w2 was meant, a known quirk of llama2.c")}),
    "transformerlens": (UNTIED, GROWS),
    "zero-residual": (BASE, {}),
    "megatron": (MIXTRAL, {}),
    "megatron-turing": (BASE, {}),
    "bigscience": (BASE, {}),
    "bloom": (ALIBI, {}),
    "opt": ({**BASE, "activation": "relu", "position_offset": 2}, {}),
    "mpt": (ALIBI, {"LOGIT001": HOT, "ATTN001": SHARP}),
    "small-init": ({**ORIGINAL, "placement": "pre"}, GROWS),
    "wang": (NEOX, {"RES001": ("warning", "20/N unscaled branches in all: 5 at four layers, 1 from twenty on")}),
    "tinyllama": (LLAMA, {}),
    "neox-single-residual": (NEOX, {}),
    "neox-orthogonal": (NEOX, {"ATTN001": SHARP}),
    "gptj": ({**NEOX, "placement": "parallel_shared"}, {}),
    "torchtitan": (LLAMA, {}),
    "deepseek": (
        DEEPSEEK,
        {"RES001": ("warning", "not scaled with depth; of 0.006, (near) as large as the embedding")},
    ),
    "gemma": (GEMMA, {}),
    "nanotron": (LLAMA_TIED, {}),
    "lingua": (LLAMA, GROWS),
    "maxtext": (LLAMA, GROWS),
    "palm": (PALM, GROWS),
    "olmo-mitchell": (OLMO, {}),
    "olmo-full-megatron": (OLMO, {}),
    "olmo-normal": (OLMO2, {}),
    "olmo-core-normal": (OLMO2, {}),
    "olmo-core-llama": (LLAMA, {}),
    "olmo-core-normalized": (LLAMA, {}),
    "olmo-core-fan-in": (OLMO2, {}),
    "open-lm": (OPEN_LM, {}),
    "nanochat": (NANOCHAT, {}),
    "nanochat-2025": (NANOCHAT, {}),
    "modded-nanogpt": (NANOCHAT, HIDDEN),
    "mamba": (BASE, {}),
    "ngpt": (LLAMA, {}),
    "mup": (UNTIED, {"RES001": ("warning", "muP is about width: nothing is scaled with depth")}),
    "megatron-mup": (BASE, {}),
    "cerebras": (BASE, {}),
    "cerebras-mup": (BASE, {}),
    "eleuther-mup": (BASE, {}),
    "completep": (BASE, {}),
    "depth-mup": (BASE, {"RES001": ("info", "4 unscaled branches in all at any depth, half of 8 at four layers")}),
    "u-mup": (LLAMA, {}),
    "minicpm": (
        LLAMA_TIED,
        {"RES001": ("info", "3.92 unscaled branches in all at any depth, half of 8 at four layers")},
    ),
    "spectral": (LLAMA, GROWS),
    "deepnorm": ({**UNTIED, "position": "rotary"}, {}),
    "sub-ln": ({**UNTIED, "position": "rotary"}, GROWS),
    "admin": (ORIGINAL, {}),
    "t-fixup": (ORIGINAL, {}),
    "fixup": (UNTIED, {}),
    "rezero": (UNTIED, {}),
    "skipinit": (UNTIED, {}),
    "layerscale": (BASE, {}),
    "lsuv": (BASE, {"RES001": ("warning", "every branch is rescaled to variance 1, so that 2N of them add up to 2N")}),
}
SMALL_EMBEDDING = "an embedding of 0.02 under branches that norms make large: all of the growth is in the first layers"
BACKWARD: dict[str, dict[str, tuple[str, str]]] = {  # what a backward adds; at 16 layers the mean of them is quiet
    "olmo-normal": {"GRAD001": ("warning", SMALL_EMBEDDING)},
    "olmo-core-normal": {"GRAD001": ("warning", SMALL_EMBEDDING)},
}
BASE_WIDTH = 32  # of schemes that have one: these models are twice as wide, as models of muP are


UNSCALED = ("warning", "the Hugging Face class draws all matrices N(std): many released models leave it so")
SHIPPED: dict[str, dict[str, tuple[str, str]]] = {
    "bad": {
        "LOGIT002": ("error", "it ties the head to an N(1) embedding, which is what it is there to show"),
        "LOGIT001": ("error", "as LOGIT002"),
        "LOSS003": ("error", "as LOGIT002"),
        "RES001": ("info", "PyTorch's defaults are not scaled with depth"),
    },
    "tiny": {},
    "tiny-untied": {"RES001": ("info", "gpt2 without depth scaling, over two layers")},
    "transformer-original": {},
    "pythia-70m": {},
    "cerebras-gpt-111m-mup": {},
    "nanogpt": {},
    "gpt2": {},
    "smollm2-135m": {},
    "pythia-160m": {},
    "llama-like": {"RES001": UNSCALED},
    "gemma-3-270m": {},
    "qwen2.5-0.5b": {"RES001": UNSCALED},
    "bloom-560m": {},
    "nanochat-d20": {},
    "gemma-3-1b": {},
}
