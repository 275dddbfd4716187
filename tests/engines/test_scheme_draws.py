"""Drawn tensors are what every scheme declares, role by role: mean, std and support.

False alarms: five standard errors, 6e-7 for each of the two moments of some 1,500 tensors: once in 600 suites.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from initdiag.engines.draw import draw
from initdiag.model import Architecture
from initdiag.model.parameters import parameters
from initdiag.model.planning import planned
from initdiag.schemes import SCHEMES, AsFound, Constant, Distribution, Orthogonal, Truncated, Uniform
from tests.sampling import SIGMAS, relative_error_of_std

# every role but the multiplier, which is a constant everywhere: gated, untied, with experts, sinks and all biases
SHAPE = Architecture(
    vocab_size=997,
    context=128,
    d_model=128,
    n_layers=2,
    n_heads=4,
    n_kv_heads=2,
    head_dim=48,
    d_ff=320,
    gated=True,
    tied=False,
    attention_sinks=True,
    biases={"qkv": True, "out": True, "mlp": True, "norm": True, "head": True, "router": True},  # type: ignore[arg-type]
    moe={"experts": 4, "top_k": 2, "first_dense": 1},  # type: ignore[arg-type]
)

_ROUTED = SHAPE.model_dump(exclude_unset=True)
WITHOUT_EXPERTS = Architecture.model_validate(
    {**_ROUTED, "moe": None, "biases": {**_ROUTED["biases"], "router": False}}
)


@pytest.mark.parametrize("name", SCHEMES)
def test_moments_and_support(name: str) -> None:
    scheme = SCHEMES[name]
    shape, plan = planned(WITHOUT_EXPERTS if scheme.forward.get("inner_norm") == "true" else SHAPE, scheme)
    tensors = {parameter.name: torch.full(parameter.shape, math.nan) for parameter in parameters(shape)}
    draw(tensors, plan, seed=7, threads=1)
    assert {entry.parameter.name for entry in plan.entries} == set(tensors)
    for entry in plan.entries:
        assert not isinstance(entry.distribution, AsFound)
        _holds(tensors[entry.parameter.name], entry.distribution, f"{name}: {entry.parameter.name}")


def _holds(x: Tensor, distribution: Distribution, what: str) -> None:
    assert bool(x.isfinite().all()), what
    if isinstance(distribution, Constant):
        assert bool((x == torch.tensor(distribution.value)).all()), what
        return
    wide, count, std = x.double(), x.numel(), distribution.std
    if isinstance(distribution, Orthogonal):  # Σ of squares is exact: gain² times the number of orthonormal vectors
        assert float(wide.square().mean().sqrt()) == pytest.approx(std, rel=1e-5), what
        return
    assert abs(float(wide.mean())) <= SIGMAS * std / math.sqrt(count), what
    root = float(wide.square().mean().sqrt())
    assert abs(root / std - 1) <= SIGMAS * relative_error_of_std(count, distribution.kurtosis), what
    if isinstance(distribution, Uniform):
        assert float(x.abs().max()) <= distribution.bound * (1 + 1e-6), what
    if isinstance(distribution, Truncated):
        assert float(x.abs().max()) <= distribution.cut * distribution.sigma * (1 + 1e-6), what
