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
