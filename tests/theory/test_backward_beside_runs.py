"""Gradient norms, predicted and measured: of every branch, and of matrices."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import Any

import pytest

from initdiag.engines import Settings, dense
from initdiag.measure import Measurements
from initdiag.measure.observe import observe
from initdiag.theory import predict
from tests.small_models import WIRINGS, subject, tokens

BASE: dict[str, Any] = {"vocab_size": 2000, "context": 64, "d_model": 256, "n_layers": 3, "n_heads": 4}
LLAMA: dict[str, Any] = {**WIRINGS["llama"], "d_ff": 704}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"std": 0.04}),
    "default, tied to N(1)": ("default", {}),
    "default, untied": ("default", {"tied": False}),
    "llama": ("gpt2", {**LLAMA, "std": 0.04}),
    "post": ("gpt2", {"placement": "post", "std": 0.04}),
    "sandwich, softcaps": (
        "gpt2",
        {
            **LLAMA,
            "placement": "sandwich",
            "std": 0.06,
            "logit_softcap": 1.0,
            "attention_softcap": 1.0,
            "qk_norm": "per_head",
        },
    ),
    "PaLM, which predicts its input": (
        "palm",
        {**LLAMA, "placement": "parallel_shared", "tied": True, "n_kv_heads": 1, "norm": "layernorm"},
    ),
    "parallel, multipliers": ("gpt2", {"placement": "parallel", "std": 0.06, "residual_multiplier": 0.5}),
}
SEEDS = 4
SIGMAS = 3.0  # beside the allowance: alone, 6 % with 3 degrees of freedom
# Of what theory leaves out, at d_model 256: benchmarks/theory.py has branches within 2 % at 1024, and matrices within 8
BRANCHES, MATRICES = 0.04, 0.12
ASKED = ("attention.query", "attention.value", "attention.out", "mlp.input", "mlp.out", "attention_norm", "mlp_norm")


def numbers(of: Measurements) -> dict[str, float]:
    found = {f"branch {at.index}": at.gradient_norm or 0.0 for at in of.residual.branches}
    assert of.gradients is not None
    norms = dict(of.gradients.norms)
    return found | {
        f"blocks.{k}.{part}": norms[f"blocks.{k}.{part}.weight"]
        for k in range(3)
        for part in ASKED
        if f"blocks.{k}.{part}.weight" in norms
    }


@pytest.mark.parametrize("name", MODELS)
def test_gradient_norms(name: str) -> None:
    scheme, fields = MODELS[name]
    of = subject(scheme, **BASE, **fields)
    ratios: dict[str, list[float]] = {}
    for seed in range(SEEDS):
        batch = tokens(of, 2, seed=seed)
        measured = dense.run(of, batch, seed, Settings(device="cpu"), partial(observe, backward=True))[0]
        predicted = numbers(predict(of, batch, backward=True).values)
        for key, value in numbers(measured).items():
            ratios.setdefault(key, []).append(math.log(value / predicted[key]))
    off = []
    for key, several in ratios.items():
        error = statistics.stdev(several) / math.sqrt(SEEDS)
        allowed = BRANCHES if key.startswith("branch") else MATRICES
        if abs(statistics.fmean(several)) > allowed + SIGMAS * error:
            off.append(f"{key}: {statistics.fmean(several):+.3f} ± {error:.3f}")
    assert not off
