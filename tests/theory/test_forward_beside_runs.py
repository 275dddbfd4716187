"""The prediction of a whole forward beside runs, in wirings that have every feature between them.

Each number, averaged over SEEDS draws of weights and tokens, has to be where the prediction for these tokens is, up to
- SIGMAS standard errors, from the draws themselves; the heads that the theory samples are other ones for each. With 7
  degrees of freedom |t| > 7.06 is 2e-4: 150 numbers give a false alarm for 3 % of choices of seeds; these are fixed;
- WIDTH/d_model of it: what the limit of infinite width leaves out, from `benchmarks/theory.py --widths`.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from initdiag.engines import Settings, weightless
from initdiag.measure import Measurements
from initdiag.measure.observe import observe
from initdiag.theory import blocks
from initdiag.theory.forward import predict
from tests.small_models import subject, tokens

SEEDS = 8
SIGMAS = 7.06
WIDTH = 4.0
WEIGHTLESS = Settings("cpu", "float32", 1, "weightless")  # exact in distribution, and three times as fast here
BASE: dict[str, Any] = {"vocab_size": 1000, "context": 32, "d_model": 512, "n_layers": 2, "n_heads": 8, "n_kv_heads": 8}
GATED: dict[str, Any] = {
    "gated": True, "activation": "silu", "biases": False, "norm": "rmsnorm", "position": "rotary", "d_ff": 1408,
}  # fmt: skip

WIRED: dict[str, tuple[str, dict[str, Any]]] = {
    "an eps that counts": ("gpt2", {"std": 0.04, "eps": 2e-3}),
    "drawn biases": ("default", {**GATED, "tied": False, "n_kv_heads": 2, "biases": True, "norm": "layernorm"}),
    "post": ("default", {"placement": "post", "position": "sinusoidal", "activation": "relu", "tied": False}),
    "sandwich, windows, caps": (
        "gpt2",
        {
            **GATED, "std": 0.1, "placement": "sandwich", "norm_scale": "one_plus", "windows": [3, None],
            "attention_softcap": 1.0, "logit_softcap": 2.0, "embedding_multiplier": 3.0,
        },
    ),
    "windows and multipliers": (
        "gpt2",
        {
            **GATED, "std": 0.06, "windows": [3, None], "embedding_multiplier": 3.0, "residual_multiplier": 0.3,
            "stream_multiplier": 1.2, "logit_multiplier": 0.5,
        },
    ),
    "alibi, parallel": (
        "gpt2",
        {
            "std": 0.06, "position": "alibi", "placement": "parallel", "embedding_norm": True, "inner_norm": True,
            "tied": False,
        },
    ),
    "norms of queries and keys": (
        "gpt2",
        {**GATED, "std": 0.06, "placement": "reordered", "qk_norm": "per_head", "tied": False},
    ),
    "latents and experts": (
        "gpt2",
        {
            **GATED, "std": 0.06, "tied": False,
            "mla": {"query_rank": 256, "kv_rank": 256, "nope_dim": 32, "rope_dim": 16, "value_dim": 32},
            "moe": {"experts": 4, "top_k": 2, "shared": 1, "d_ff": 256, "first_dense": 1, "score": "sigmoid",
                    "route_scale": 2.5, "choice_bias": True, "groups": 2, "top_groups": 1},
        },
    ),
    "sinks, limits and gains": (
        "gpt2",
        {
            **GATED, "std": 0.06, "activation": "quick_gelu", "attention_sinks": True, "gate_limit": 0.5,
            "branch_gain": "vector", "tied": False,
        },
    ),
}  # fmt: skip


def numbers(of: Measurements) -> dict[str, float]:
    found = {
        "loss under uniform targets": of.loss.uniform_targets,
        "logit std": of.logits.std,
        "self-logit": of.logits.self_logit,
        "entropy of the logits": of.logits.entropy_ratio,
        "embedding variance": of.residual.embedding_variance,
        "scaling ratio": of.residual.scaling_ratio,
    }
    for at in of.residual.branches:
        found |= {
            f"variance of branch {at.index}": at.branch_variance,
            f"stream after branch {at.index}": at.stream_variance,
            f"token share after branch {at.index}": at.token_share,
            f"what branch {at.index} reads": at.reads[0].rms,
        }
    for at_layer, attention in enumerate(of.attention):
        found[f"attention-logit std of layer {at_layer}"] = attention.logit_std
        found[f"attention entropy of layer {at_layer}"] = attention.entropy_ratio
    return found


@pytest.mark.parametrize("name", WIRED)
def test_every_number_of_a_forward(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    scheme, fields = WIRED[name]
    of = subject(scheme, **{**BASE, **fields})
    differences: dict[str, list[float]] = {}
    scales: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        batch = tokens(of, 2, seed=seed)
        measured = numbers(weightless.run(of, batch, seed, WEIGHTLESS, observe)[0])
        monkeypatch.setattr(blocks, "SEED", seed)
        for key, value in numbers(predict(of, batch).values).items():
            differences.setdefault(key, []).append(measured[key] - value)
            scales.setdefault(key, []).append(abs(value))
    off = []
    for key, several in differences.items():
        mean, scale = statistics.fmean(several), statistics.fmean(scales[key])
        error = statistics.stdev(several) / math.sqrt(SEEDS)
        if not abs(mean) <= SIGMAS * error + WIDTH / BASE["d_model"] * scale:
            off.append(f"{key}: {mean:+.3g} of {scale:.3g}, standard error {error:.2g}")
    assert not off
