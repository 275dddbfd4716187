"""The use cases on a module of one's own: what they return, and that it comes back as it was."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

import initdiag
from benchmarks.gpt_parts import VOCAB_SIZE
from benchmarks.init_steps import scaled_twice
from benchmarks.model_factories import build
from initdiag.errors import RunError, UsageError

USES: dict[str, Callable[[nn.Module], Any]] = {
    "check": lambda module: initdiag.check(module, vocab_size=VOCAB_SIZE),
    "backward": lambda module: initdiag.check(module, vocab_size=VOCAB_SIZE, backward=True),
    "scheme": lambda module: initdiag.check(module, vocab_size=VOCAB_SIZE, scheme="default"),
    "compare": lambda module: initdiag.compare(module, vocab_size=VOCAB_SIZE, schemes=["gpt2", "scaled"]),
    "plan": lambda module: initdiag.plan(module, vocab_size=VOCAB_SIZE, scheme="gpt2"),
}


def state(module: nn.Module) -> dict[str, Any]:
    """All that a check could leave behind."""
    return {
        "parameters": [
            (name, p.data_ptr(), p.detach().clone(), p.requires_grad) for name, p in module.named_parameters()
        ],
        "gradients": [None if p.grad is None else (id(p.grad), p.grad.clone()) for p in module.parameters()],
        "buffers": [(name, buffer.clone()) for name, buffer in module.named_buffers()],
        "modes": [part.training for part in module.modules()],
        "hooks": [(len(part._forward_hooks), len(part._forward_pre_hooks)) for part in module.modules()],
        "torch": torch.get_rng_state(),
        "random": random.getstate(),
        "numpy": numpy.random.get_state()[1],
        "switches": (
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
            torch.get_default_dtype(),
            torch.backends.mha.get_fastpath_enabled(),
        ),
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, Tensor):
        return bool(torch.equal(left, right))
    if isinstance(left, numpy.ndarray):
        return bool((left == right).all())
    return bool(left == right)


def lived_in() -> nn.Module:
    """A module in the middle of its life: dropout on, one block frozen and in eval mode, gradients there."""
    module = build(dropout=0.1, n_layers=2)
    module(torch.randint(VOCAB_SIZE, (2, 8))).square().mean().backward()
    module.train()
    next(module.children()).eval()
    next(iter(module.parameters())).requires_grad_(False)
    module.register_forward_hook(lambda *_: None)
    return module


@pytest.mark.parametrize("use", USES)
def test_a_module_comes_back_as_it_was(use: str) -> None:
    module = lived_in()
    before = state(module)
    USES[use](module)
    after = state(module)
    assert [what for what in before if not same(before[what], after[what])] == []


class Fails(nn.Module):
    """Fails behind its first branch, in the middle of a forward."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(VOCAB_SIZE, 16), nn.Linear(16, 16)

    def forward(self, ids: Tensor) -> Tensor:
        torch.rand(3), random.random(), numpy.random.rand()
        raise ValueError("no such thing")


@pytest.mark.parametrize("use", USES)
def test_also_when_its_forward_fails(use: str) -> None:
    module = Fails().train()
    before = state(module)
    with pytest.raises(RunError, match=r"test_modules\.py:\d+.*no such thing|no such thing.*test_modules\.py:\d+"):
        USES[use](module)
    assert same(before, state(module))


def test_assert_healthy_returns_the_report_or_raises_with_the_findings() -> None:
    assert initdiag.assert_healthy(build(), vocab_size=VOCAB_SIZE).verdict == "pass"
    with pytest.raises(AssertionError, match="RES002") as caught:
        initdiag.assert_healthy(build(scaled_twice), vocab_size=VOCAB_SIZE)
    assert "instead" in str(caught.value)


def test_an_unusual_call_is_the_users_to_make() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build(n_layers=2)

        def forward(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
            return {"scores": self.inner(batch["ids"])}

    subject = initdiag.Subject(
        Pair(), forward=lambda m, ids: m({"ids": ids})["scores"], vocab_size=VOCAB_SIZE, name="pair"
    )
    run = initdiag.check(subject).run
    assert run.subject.name == "pair" and len(run.measured.residual.branches) == 4
    assert run.measured.residual.branches[0].name.startswith("inner.blocks.0")


def test_a_function_that_builds_is_watched() -> None:
    run = initdiag.check(lambda: build(n_layers=2), vocab_size=VOCAB_SIZE).run
    history = run.measured.history
    assert history.watched and not history.unwritten
    assert run.subject.plan["blocks.0.mlp.up.weight"].distribution.std == pytest.approx(0.02)


def test_building_has_a_seed_and_leaves_the_global_one() -> None:
    state_before = torch.get_rng_state()

    def first() -> nn.Module:
        return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))

    found = [initdiag.check(first, vocab_size=50, seed=seed).run.measured.loss.value for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    assert torch.equal(state_before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: initdiag.check(build(), kwargs={"a": 1}), "already built"),
        (lambda: initdiag.check("tiny", vocab_size=5), "vocab-size"),
        (lambda: initdiag.check("tiny", causal=False), "bidirectional"),
        (lambda: initdiag.check(build(), vocab_size=-1), "vocab_size -1"),
        (lambda: initdiag.check(build(), vocab_size=VOCAB_SIZE, overrides=["init.std=0.1"]), "--scheme"),
        (lambda: initdiag.check(3), "target"),
        (lambda: initdiag.check(lambda: 3), "nn.Module"),
        (lambda: initdiag.check(initdiag.Subject()), "no module"),
    ],
)
def test_what_makes_no_sense_is_said(call: Callable[[], object], says: str) -> None:
    with pytest.raises((UsageError, RunError), match=says):
        call()


@pytest.mark.parametrize(
    "buffer", [torch.eye(4).to_sparse(), torch.zeros(1, 3).expand(5, 3)], ids=["sparse", "expanded"]
)
def test_unusual_buffers_are_no_trouble(buffer: Tensor) -> None:
    module = build(n_layers=2)
    module.register_buffer("unusual", buffer)
    assert initdiag.check(module, vocab_size=VOCAB_SIZE).verdict == "pass"
