"""Strides over alike blocks, against a walk through every block, and where the sum over blocks is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from initdiag.measure import Measurements
from initdiag.schemes import Normal
from initdiag.subjects import Subject
from initdiag.theory import predict, strides
from initdiag.theory.activations import Array
from initdiag.theory.forward import model_of, sequences
from initdiag.theory.grams import embedded
from initdiag.theory.strides import walked
from tests.small_models import subject, tokens

# Heads attend evenly, whichever are drawn: both walks see the same attention, and differ by their strides alone
DEEP: dict[str, Any] = {
    "vocab_size": 512,
    "context": 8,
    "d_model": 256,
    "n_layers": 64,
    "n_heads": 4,
    "attention_scale": 1e-4,
}
LLAMA: dict[str, Any] = {"norm": "rmsnorm", "position": "rotary", "gated": True, "activation": "silu", "biases": False}
ALL = list(range(64))


def looked_at(of: Subject) -> list[int]:
    """The layers that are no part of a line."""
    assert of.architecture is not None
    model, ids = model_of(of), sequences(tokens(of, 1, seed=0), of.architecture)
    return [layer for layer, _ in walked(model, embedded(model, ids), (ids.shape[0], ids.shape[1]), 2)]


def numbers(of: Subject, part: float, monkeypatch: pytest.MonkeyPatch) -> tuple[Array, Measurements]:
    """(branch, [stream variance, branch variance]); with part 0, every block is looked at."""
    with monkeypatch.context() as changed:
        changed.setattr(strides, "PART", part)
        found = predict(of, tokens(of, 1, seed=0)).values
    return np.array([[at.stream_variance, at.branch_variance] for at in found.residual.branches]), found


def off(of: Subject, part: float, monkeypatch: pytest.MonkeyPatch) -> Array:
    """The largest relative error of stream and branch variances."""
    exact, _ = numbers(of, 0.0, monkeypatch)
    error: Array = np.abs(numbers(of, part, monkeypatch)[0] / exact - 1).max(axis=0)
    return error


@pytest.mark.parametrize(
    ("scheme", "fields"),
    [
        ("gpt2", LLAMA | {"tied": False}),
        ("scaled", {}),
        ("scaled", {"placement": "parallel", "tied": False, "activation": "relu"}),
        ("scaled", {"placement": "reordered", "position": "sinusoidal"}),
        ("small-init", {"position": "alibi"}),
        ("default", {}),
    ],
    ids=["llama", "gpt2", "parallel", "reordered", "alibi", "torch"],
)
def test_a_deep_model_in_strides(scheme: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    of = subject(scheme, **DEEP | fields)
    assert len(looked_at(of)) <= 24
    stream, branch = off(of, strides.PART, monkeypatch)
    assert stream < 0.002 and branch < 0.005  # as docs/theory.md has it
    fine_stream, fine_branch = off(of, strides.PART / 8, monkeypatch)  # of second order: 1/64; of first, 1/8
    assert fine_stream <= stream / 12 + 1e-9 and fine_branch <= branch / 12 + 1e-9


def test_loss_and_logits_are_those_of_every_block(monkeypatch: pytest.MonkeyPatch) -> None:
    of = subject("gpt2", **DEEP, tied=False)
    (_, exact), (_, found) = (numbers(of, part, monkeypatch) for part in (0.0, strides.PART))
    assert found.loss.value == pytest.approx(exact.loss.value, abs=1e-6)
    assert found.logits.std == pytest.approx(exact.logits.std, rel=1e-6)
    assert found.residual.scaling_ratio == pytest.approx(exact.residual.scaling_ratio, rel=2e-3)


def test_a_stream_that_grows_on_a_line_is_summed_exactly() -> None:
    """One token alone, without positions: every block reads the same normed vector and adds the same variance."""
    of = subject("gpt2", **DEEP | {"position": "none", "eps": 1e-12})
    alone = replace(tokens(of, 1, seed=0), inputs=((7,),), targets=((3,),))
    found = predict(of, alone).values.residual
    first, second = (at.branch_variance for at in found.branches[:2])
    wanted = [found.embedding_variance + first * ((k + 2) // 2) + second * ((k + 1) // 2) for k in range(128)]
    assert [at.stream_variance for at in found.branches] == pytest.approx(wanted, rel=1e-9)
    assert len(looked_at(of)) < 30


def test_every_layer_has_its_numbers() -> None:
    found = predict(of := subject("gpt2", **DEEP), tokens(of, 1, seed=0))
    assert [at.name for at in found.values.residual.branches] == [
        f"blocks.{layer}.{part}.out" for layer in ALL for part in ("attention", "mlp")
    ]
    assert [at.layer for at in found.values.attention] == ALL
    assert len(found.spreads.streams) == len(found.spreads.branches) == 128


@pytest.mark.parametrize(
    "fields",
    [
        {"placement": "post"},
        {"stream_multiplier": 1.1},
        {"residual_multiplier": "1 / sqrt(branch)"},
        {"windows": (4, None)},
    ],
    ids=["post", "multiplied", "damped", "windows"],
)
def test_layers_that_differ_are_all_looked_at(fields: dict[str, Any]) -> None:
    assert looked_at(subject("gpt2", **DEEP | fields)) == ALL


def test_a_layer_of_its_own_is_looked_at_and_its_neighbours() -> None:
    of = subject("gpt2", **DEEP)
    entries = [
        replace(one, distribution=Normal(0.5)) if one.parameter.name == "blocks.40.mlp.out.weight" else one
        for one in of.plan.entries
    ]
    of = replace(of, plan=replace(of.plan, entries=tuple(entries)))
    found = looked_at(of)
    assert {39, 40, 41, 42} <= set(found)  # the end of a run, the one, and the first two of the next
    assert len(found) < 45
    branches = predict(of, tokens(of, 1, seed=0)).values.residual.branches
    assert branches[81].branch_variance == pytest.approx(branches[79].branch_variance * (0.5 / 0.02) ** 2, rel=0.02)


def test_of_few_layers_every_one_is_looked_at() -> None:
    assert looked_at(subject("gpt2", **DEEP | {"n_layers": 16})) == list(range(16))
    assert len(looked_at(subject("gpt2", **DEEP | {"n_layers": 17}))) < 17


def test_a_small_branch_that_grows_beside_a_large_one_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Squared units grow as tokens become alike, from far below the normed attention beside them."""
    fields = {"norm": "rmsnorm", "gated": True, "activation": "relu2", "biases": False, "embedding_norm": True}
    sizes = {"d_model": 64, "n_kv_heads": 2, "embedding_multiplier": 8.0}
    of = subject("olmo-core-llama", **DEEP | fields | sizes | {"placement": "reordered", "position": "none"})
    assert off(of, strides.PART, monkeypatch)[1] < 0.007


def test_gradients_look_at_every_block() -> None:
    of = subject("gpt2", **DEEP)
    branches = predict(of, tokens(of, 1, seed=0), backward=True).values.residual.branches
    assert all(at.gradient_norm for at in branches)


def test_a_stream_below_eps_grows_by_a_factor_and_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where eps is larger than the stream, a norm divides by a constant: what a block adds follows the stream."""
    of = subject("gpt2", **DEEP | LLAMA | {"eps": 0.9, "embedding_multiplier": 1e-3})
    assert off(of, strides.PART, monkeypatch).max() < 0.005
