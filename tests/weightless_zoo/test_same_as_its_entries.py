"""What the weightless engine says of a model is what the dense engine says of the entries that it would have drawn.

A run that forgets nothing is compared with an ordinary run of the same module after every matrix's entries were read
out: losses, branches, attention, and the norms of all gradients. Drawn in float64, the two differ by rounding alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from initdiag.engines import Settings, dense, sizes, weightless
from initdiag.measure import Measurements
from initdiag.measure.observe import observe
from initdiag.subjects import Subject
from initdiag.subjects.lean import build_lean
from initdiag.subjects.loading import seeded
from initdiag.subjects.module import from_module
from initdiag.tokens import TokenBatch
from initdiag.tokens.batch import from_windows
from initdiag.weightless.budget import Budget
from initdiag.weightless.lazy import is_lazy
from tests.weightless_zoo.spellings import SPELLINGS
from tests.zoo.causal_lms import ROWS
from tests.zoo.hand_written_zoo import ZOO

torch.set_num_threads(1)

SEED, TOKENS = 0, (17, 90, 4, 33, 121, 90, 55, 8, 100)  # one is repeated, so that a row is looked up twice
LARGE = 400  # entries, from which a parameter has none: all matrices but routers and tables of a few rows
SAME_NUMBER = {"float64": 1e-6, "float32": 1e-3}  # relative: rounding of chains of some tens of products, with room
ZERO = 1e-6  # of the largest gradient: what is zero but for rounding, such as a key's bias

CLASSES = "gpt2 llama mixtral falcon bloom gemma2 cohere deepseek_v3 gpt_oss phi opt neox albert".split()
HAND_WRITTEN = (
    "FromScratchStyle HeadsInAListStyle Checkpointed SharedLayers Experts TorchAttention ConvolutionMlp".split()
)
MODELS: dict[str, Callable[[], nn.Module]] = {
    **{row.name: (lambda row=row: _from_config(row)) for row in ROWS if row.name in CLASSES},  # type: ignore[misc]
    **{kind.__name__: kind for kind in ZOO if kind.__name__ in HAND_WRITTEN},
    **SPELLINGS,
}
FLOAT32 = ("mixtral", "deepseek_v3", "gpt_oss")  # torch.nn.functional.grouped_mm has no float64


def _from_config(row: Any) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    cls = getattr(transformers, row.cls)
    module: nn.Module = cls(cls.config_class(**row.given))
    return module


class _OnlyIfNeeded(Budget):
    """Makes nothing real because it would be cheaper."""

    def allow(self, name: str, size: int, why: str, needed: bool) -> bool:
        return needed and super().allow(name, size, why, needed)


@pytest.fixture(autouse=True)
def every_matrix_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "LARGE", 0)
    monkeypatch.setattr(sizes, "WIDE", 0)
    monkeypatch.setattr(weightless, "budget", lambda: _OnlyIfNeeded(2**30))


def lean(name: str) -> tuple[Subject, Settings]:
    dtype = "float32" if name in FLOAT32 else "float64"
    settings = Settings(device="cpu", dtype=dtype, threads=1)
    with seeded(SEED):
        made = build_lean(MODELS[name], LARGE)
    subject = from_module(made.module, name=name, lean=True)
    subject = replace(subject, laws=made.laws, unrecorded=dict(made.unrecorded), owned=True)
    return dense.placed(subject, settings), settings


def tokens(subject: Subject) -> TokenBatch:
    ids = tuple(one % subject.vocab_size for one in TOKENS)
    return from_windows([ids], source="random", total=None, vocab_size=subject.vocab_size, path=None)


def observed(of: Subject, module: nn.Module, batch: TokenBatch) -> Measurements:
    return observe(of, module, batch, backward=True)


def numbers(measured: Measurements) -> dict[str, float]:
    residual, gradients = measured.residual, measured.gradients
    assert gradients is not None
    found = {"loss": measured.loss.value, "logit std": measured.logits.std, "largest": measured.logits.max_abs}
    for branch in residual.branches:
        assert branch.gradient_norm is not None
        found[f"variance of {branch.name}"] = branch.branch_variance
        found[f"gradient at {branch.name}"] = branch.gradient_norm
    for attention in measured.attention:
        found[f"entropy of {attention.name}"] = attention.entropy_ratio
    return found | {f"gradient of {name}": norm for name, norm in gradients.norms}


def made_dense(made: weightless.Made) -> None:
    """Give every parameter the entries that its source stands for."""
    owners: dict[int, nn.Parameter] = {}
    module = made.weights.module
    for name, parameter in module.named_parameters():
        if is_lazy(parameter):
            source = made.sources[name]
            matrices = [source.entries(range(source.m), at) for at in range(math.prod(source.shape[:-2]))]
            entries: Tensor = torch.stack(matrices).view(parameter.shape).to(parameter.dtype).clone()
            owners[id(parameter)] = nn.Parameter(entries, requires_grad=parameter.requires_grad)
    for part in module.modules():
        for name, owned in list(part._parameters.items()):
            if owned is not None and id(owned) in owners:
                part._parameters[name] = owners[id(owned)]
    assert owners


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_run_is_that_of_its_entries(name: str) -> None:
    subject, settings = lean(name)
    batch = tokens(subject)
    made = weightless.realize(subject, SEED, settings, len(TOKENS) - 1, careful=True)
    asked = numbers(dense.forward(subject, made.weights, batch, observed))
    assert dict(made.notes.made_real) == {}
    made_dense(made)
    _agree(asked, numbers(dense.forward(subject, made.weights, batch, observed)), settings.dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in FLOAT32])
def test_a_run_block_by_block_is_that_of_one_that_forgets_nothing(name: str) -> None:
    """Of the forward; in the backward a rank-deficient gradient's basis may turn with a rounding, and so may a draw."""
    subject, settings = lean(name)
    batch = tokens(subject)
    one_by_one, _ = weightless.run(subject, batch, SEED, settings, observed)
    subject, settings = lean(name)
    made = weightless.realize(subject, SEED, settings, len(TOKENS) - 1, careful=True)
    careful = numbers(dense.forward(subject, made.weights, batch, observed))
    forward = {key: value for key, value in careful.items() if "gradient" not in key}
    _agree({key: value for key, value in numbers(one_by_one).items() if key in forward}, forward, settings.dtype)


def _agree(one: dict[str, float], two: dict[str, float], dtype: str) -> None:
    assert list(one) == list(two)
    largest = max([value for key, value in two.items() if key.startswith("gradient")], default=0.0)
    off = {
        key: (value, two[key])
        for key, value in one.items()
        if not math.isclose(
            value, two[key], rel_tol=SAME_NUMBER[dtype], abs_tol=ZERO * largest if "gradient" in key else 0.0
        )
    }
    assert not off
