"""Small models of six wirings, tied and untied, that both engines run, and the numbers of a run that are compared.

`every_matrix_asked` makes the weightless engine answer for every matrix of them, and make none real. The dense engine
draws a class of transformers as the class does, from torch's global generator; the weightless one by its recorded laws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from initdiag import subjects
from initdiag.config import from_mapping
from initdiag.engines import Settings, dense, sizes, weightless
from initdiag.measure import Measurements, observe
from initdiag.subjects import UNPLANNED, Subject
from initdiag.subjects.lean import build_lean
from initdiag.subjects.loading import load_module, seeded
from initdiag.tokens import TokenBatch
from initdiag.tokens.batch import from_windows
from initdiag.weightless.budget import Budget

STD = (
    0.2  # of every matrix, d_model^-½ is 0.144: logits of std 1.4, whose softmax gives a gradient that depends on them
)
VOCAB, WIDTH = 128, 48
SETTINGS = Settings(device="cpu", threads=1)
# Both sequences begin alike, so that equal vectors are asked. In the first, 17 and 90 take turns: their rows of a tied
# table get gradients from the head and from the embedding. 8 follows itself.
BATCH = from_windows(
    [(17, 90, 17, 90, 17, 90, 17), (17, 64, 90, 55, 8, 8, 100)],
    source="random",
    total=None,
    vocab_size=VOCAB,
    path=None,
)

_LLAMA = {"norm": "rmsnorm", "position": "rotary", "gated": True, "biases": False, "activation": "silu"}
_LLAMA |= {"n_kv_heads": 2, "d_ff": 96}
REFERENCE: dict[str, dict[str, Any]] = {
    "gpt2, tied": {},
    "gpt2, untied": {"tied": False},
    "llama, tied": _LLAMA,
    "llama, untied": {**_LLAMA, "tied": False},
    "post-norm, tied": {"placement": "post"},
    "post-norm, untied": {"placement": "post", "tied": False},
}
_NAMES = {"vocab_size": VOCAB, "max_position_embeddings": 16, "hidden_size": WIDTH, "num_attention_heads": 4}
_NAMES |= {"num_hidden_layers": 2, "intermediate_size": 96, "initializer_range": STD}
_NAMES |= {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None}
_GROUPED = {**_NAMES, "num_key_value_heads": 2}
_EXPERTS = {**_GROUPED, "intermediate_size": 64, "num_local_experts": 4, "num_experts_per_tok": 2}
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "parallel, tied": ("Cohere", {**_GROUPED, "tie_word_embeddings": True, "logit_scale": 1.0}),
    "parallel, untied": ("GPTNeoX", {**_NAMES, "tie_word_embeddings": False}),
    "sandwich, tied": ("Gemma2", {**_GROUPED, "head_dim": 12, "tie_word_embeddings": True}),
    "sandwich, untied": ("Olmo2", {**_GROUPED, "tie_word_embeddings": False}),
    "experts one by one, tied": (
        "Mixtral",
        {**_EXPERTS, "tie_word_embeddings": True, "experts_implementation": "eager"},
    ),
    "experts in groups, untied": ("Mixtral", {**_EXPERTS, "experts_implementation": "grouped_mm"}),
}
MODELS = (*REFERENCE, *CLASSES)


@dataclass(frozen=True)
class Model:
    """One model for both engines; `build` draws a class of transformers, None for the reference Transformer."""

    name: str
    planned: Subject
    build: Callable[[], nn.Module] | None = None

    @cached_property
    def lean(self) -> Subject:
        """The subject without entries."""
        if self.build is None:
            return self.planned
        built = build_lean(self.build, 1)
        assert not built.unrecorded, built.unrecorded
        return replace(self.planned, module=built.module, laws=built.laws)

    def drawn(self, seed: int) -> Subject:
        """The subject whose weights are those of a seed."""
        if self.build is None:
            return self.planned
        with seeded(seed):
            return replace(self.planned, module=self.build())


def model(name: str, layers: int = 2) -> Model:
    """Return a model by its name in MODELS."""
    if name in REFERENCE:
        shape = {"vocab_size": VOCAB, "context": 8, "d_model": WIDTH, "n_layers": layers, "n_heads": 4}
        file = from_mapping({"model": {**shape, **REFERENCE[name]}, "init": {"scheme": "gpt2", "std": STD}}, name)
        return Model(name, subjects.load(file))
    import transformers

    kind, fields = CLASSES[name]
    experts = {key: fields[key] for key in ("experts_implementation",) if key in fields}
    fields = {**fields, "num_hidden_layers": layers}

    def build() -> nn.Module:
        config = getattr(transformers, f"{kind}Config")(**{k: v for k, v in fields.items() if k not in experts})
        built: nn.Module = getattr(transformers, f"{kind}ForCausalLM")._from_config(config, **experts)
        return built

    return Model(name, load_module(build, kwargs={}), build)


@contextmanager
def every_matrix_asked() -> Iterator[None]:
    """Within it every matrix is answered without entries: an operation that needs them raises a RunError.

    What `observe` does besides the numbers below is left out, for time: weights, copies, a second forward.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "LARGE", 0)
        patch.setattr(sizes, "WIDE", 0)
        patch.setattr(weightless, "budget", lambda: Budget(0))
        for name in ("find_copies", "measure_parameters", "measure_buffers"):
            patch.setattr(observe, name, lambda *_: ())
        patch.setattr(observe, "_probe", lambda *_: None)
        patch.setattr(observe, "as_built", lambda *_: UNPLANNED)
        patch.setattr(observe, "scaling_ratio", lambda *_: math.nan)
        yield


def run(of: Model, engine: str, seed: int) -> dict[str, float]:
    """Run one engine (within `every_matrix_asked`) with one seed, forward and backward."""
    if engine == "dense":
        measured, _ = dense.run(of.drawn(seed), BATCH, seed, SETTINGS, _observed)
        return numbers(measured)
    measured, made = weightless.run(of.lean, BATCH, seed, SETTINGS, _observed)
    matrices = [name for name, parameter in made.weights.module.named_parameters() if parameter.dim() > 1]
    assert list(made.sources) == matrices
    assert not made.notes.made_real
    return numbers(measured)


def sample(of: Model, engine: str, seeds: Sequence[int]) -> tuple[tuple[str, ...], Tensor]:
    """Return the names of the numbers and their values, (seeds, numbers) of float64."""
    runs = [run(of, engine, seed) for seed in seeds]
    names = tuple(runs[0])
    assert all(tuple(one) == names for one in runs)
    return names, torch.tensor([list(one.values()) for one in runs], dtype=torch.float64)


def numbers(measured: Measurements) -> dict[str, float]:
    """Return what is compared: losses and logits, branches, attention, and the norm of every gradient.

    A bias of keys shifts all logits of a query alike, which softmax doesn't see: its gradient is rounding, left out.
    """
    assert measured.gradients is not None
    loss, logits, residual, gradients = (
        measured.loss,
        measured.logits,
        measured.residual,
        dict(measured.gradients.norms),
    )
    found = {
        "loss": loss.value,
        "loss on uniform targets": loss.uniform_targets - loss.uniform,
        "logit std": logits.std,
        "largest logit": logits.max_abs,
        "self-logit": logits.self_logit,
        "embedding variance": residual.embedding_variance,
    }
    for at, branch in enumerate(residual.branches):
        assert branch.gradient_norm and branch.projection
        found[f"branch {at} variance"] = branch.branch_variance
        found[f"stream {at} variance"] = branch.stream_variance
        found[f"branch {at} gradient"] = branch.gradient_norm
        # of the activations that its projection met, as the backward remembers them
        found[f"branch {at} input"] = gradients[branch.projection] / branch.gradient_norm
    for at, attention in enumerate(measured.attention):
        found[f"attention {at} logit std"] = attention.logit_std
        found[f"attention {at} entropy deficit"] = 1 - attention.entropy_ratio
    found |= {f"gradient of {name}": norm for name, norm in gradients.items() if not name.endswith("key.bias")}
    assert all(map(math.isfinite, found.values()))
    return found


def _observed(of: Subject, module: nn.Module, batch: TokenBatch) -> Measurements:
    return observe.observe(of, module, batch, backward=True)
