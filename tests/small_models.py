"""Small subjects, their weights and their tokens, in every wiring of the reference Transformer."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from initdiag import subjects
from initdiag.config import from_mapping
from initdiag.engines import Settings, dense
from initdiag.model import Architecture
from initdiag.subjects import Subject
from initdiag.tokens import TokenBatch, random_ids

torch.set_num_threads(1)  # tensors this small only wait for a second thread

SMALL: dict[str, Any] = {"vocab_size": 97, "context": 24, "d_model": 32, "n_layers": 3, "n_heads": 4}

WIRINGS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt2 untied, gelu_tanh": {"tied": False, "activation": "gelu_tanh"},
    "no biases": {"biases": False},
    "post": {"placement": "post"},
    "post, sinusoidal, relu": {"placement": "post", "position": "sinusoidal", "activation": "relu"},
    "post, final norm, rmsnorm": {"placement": "post", "final_norm": True, "norm": "rmsnorm"},
    "no final norm, no positions": {"final_norm": False, "position": "none"},
    "gated with biases": {"gated": True, "activation": "silu"},
    "multi-query": {"n_kv_heads": 1},
    "wide heads, sinusoidal": {"head_dim": 16, "position": "sinusoidal"},
    "llama": {
        "norm": "rmsnorm",
        "position": "rotary",
        "gated": True,
        "biases": False,
        "activation": "silu",
        "tied": False,
        "n_kv_heads": 2,
        "d_ff": 88,
    },
    "gemma": {
        "norm": "rmsnorm",
        "position": "rotary",
        "gated": True,
        "biases": False,
        "activation": "gelu_tanh",
        "head_dim": 12,
        "n_kv_heads": 1,
        "embedding_multiplier": math.sqrt(32),
    },
    "gpt-neox": {
        "placement": "parallel",
        "position": "rotary",
        "rotary_dims": 4,
        "tied": False,
    },
    "gpt-j": {
        "placement": "parallel_shared",
        "position": "rotary",
        "rotary_dims": 6,
        "activation": "gelu_tanh",
        "tied": False,
        "biases": {"mlp": True, "norm": True, "head": True},
    },
    "opt": {"position_offset": 2, "activation": "relu"},
    "bloom": {"n_heads": 6, "head_dim": 5, "position": "alibi", "embedding_norm": True, "activation": "gelu_tanh"},
    "gemma 2": {
        "placement": "sandwich",
        "norm": "rmsnorm",
        "norm_scale": "one_plus",
        "position": "rotary",
        "windows": (5, None),
        "attention_scale": "1 / sqrt(11)",
        "attention_softcap": 5.0,
        "logit_softcap": 3.0,
        "embedding_multiplier": "sqrt(d_model)",
        "gated": True,
        "biases": False,
        "activation": "gelu_tanh",
        "head_dim": 12,
        "n_kv_heads": 2,
    },
    "gemma 3": {
        "placement": "sandwich",
        "norm": "rmsnorm",
        "norm_scale": "one_plus",
        "qk_norm": "per_head",
        "position": "rotary",
        "rotary_base": 1e6,
        "rotary_scaling": {"kind": "linear", "factor": 8},
        "local_rotary_base": 1e4,
        "windows": (4, 4, None),
        "embedding_multiplier": "sqrt(d_model)",
        "gated": True,
        "biases": False,
        "activation": "gelu_tanh",
        "n_kv_heads": 1,
    },
    "olmo": {"norm_scale": "none", "position": "rotary", "gated": True, "biases": False, "activation": "silu"},
    "olmo 2": {
        "placement": "reordered",
        "norm": "rmsnorm",
        "qk_norm": "full",
        "position": "rotary",
        "gated": True,
        "biases": False,
        "activation": "silu",
        "tied": False,
        "n_kv_heads": 2,
    },
    "nanochat": {
        "norm": "rmsnorm",
        "norm_scale": "none",
        "qk_norm": "per_head",
        "position": "rotary",
        "embedding_norm": True,
        "activation": "relu2",
        "logit_softcap": 15.0,
        "biases": False,
        "tied": False,
    },
    "minicpm": {
        "norm": "rmsnorm",
        "position": "rotary",
        "embedding_multiplier": 12.0,
        "residual_multiplier": "1.4 / sqrt(n_layers)",
        "logit_multiplier": "16 / d_model",
        "gated": True,
        "biases": False,
        "activation": "silu",
    },
    "deepnorm": {"placement": "post", "stream_multiplier": "(2 * n_layers) ** 0.25"},
    "sub-ln": {"inner_norm": True, "tied": False},
    "rezero": {"placement": "none", "branch_gain": "scalar"},
    "layerscale": {"branch_gain": "vector"},
    "mixtral": {
        "norm": "rmsnorm",
        "position": "rotary",
        "gated": True,
        "biases": False,
        "activation": "silu",
        "tied": False,
        "n_kv_heads": 2,
        "moe": {"experts": 4, "top_k": 2},
    },
    "deepseek": {
        "norm": "rmsnorm",
        "position": "rotary",
        "rotary_scaling": {"kind": "yarn", "factor": 40, "context": 256},
        "gated": True,
        "biases": False,
        "activation": "silu",
        "tied": False,
        "d_ff": 72,
        "mla": {"query_rank": 12, "kv_rank": 10, "nope_dim": 6, "rope_dim": 8, "value_dim": 5},
        "moe": {
            "experts": 8,
            "top_k": 3,
            "shared": 1,
            "d_ff": 24,
            "first_dense": 1,
            "score": "sigmoid",
            "route_scale": 2.5,
            "choice_bias": True,
            "groups": 4,
            "top_groups": 2,
        },
    },
    "gpt-oss": {
        "norm": "rmsnorm",
        "position": "rotary",
        "rotary_base": 150_000.0,
        "rotary_scaling": {"kind": "yarn", "factor": 32, "context": 512, "rounded": False},
        "windows": (6, None),
        "attention_sinks": True,
        "activation": "quick_gelu",
        "gated": True,
        "gate_limit": 7.0,
        "biases": {"qkv": True, "out": True, "mlp": True, "router": True},
        "tied": False,
        "n_kv_heads": 2,
        "moe": {"experts": 4, "top_k": 2, "d_ff": 32},
    },
}


def architecture(**fields: Any) -> Architecture:
    return Architecture(**{**SMALL, **fields})


def subject(
    scheme: str = "gpt2", std: float | None = None, residual_std: float | None = None, **fields: Any
) -> Subject:
    """Make a small subject; `fields` are those of the architecture."""
    init = {"scheme": scheme, "std": std, "residual_std": residual_std}
    given = {name: value for name, value in init.items() if value is not None}
    return subjects.load(from_mapping({"model": {**SMALL, **fields}, "init": given}, "small"))


def drawn(of: Subject, seed: int = 0, dtype: str = "float32") -> nn.Module:
    """Return the module of a subject with its weights drawn."""
    return dense.realize(of, seed, Settings(device="cpu", dtype=dtype)).module.eval()


def tokens(of: Subject, batch: int = 2, length: int | None = None, seed: int = 0) -> TokenBatch:
    return random_ids.draw(vocab_size=of.vocab_size, batch=batch, length=length or of.architecture.context, seed=seed)


def shaken(module: nn.Module, seed: int = 0) -> nn.Module:
    """Fill every parameter with its own numbers, so that no two of them can be taken for one another."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            spread = 0.3 if parameter.dim() == 1 else 0.5 / math.sqrt(parameter.shape[-1])
            noise = spread * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(noise + (1.0 if "norm" in name and name.endswith("weight") else 0.0))
    return module


def normals(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
