"""A second call of a module's own init, on a copy without memory."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from initdiag.subjects.second_init import second_init

SCALE = 1 / math.sqrt(8)


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.inner = nn.Linear(8, 32)
        self.out = nn.Linear(32, 8)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("steps", torch.zeros(1))


def draw(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=0.02)


def model(name: str, function: Callable[..., object]) -> nn.Module:
    """A module whose class has `function` as its method `name`, and was initialized by draw()."""
    module = type("Model", (Base,), {name: function})()
    draw(module)
    return module


def scaled(weight: torch.Tensor) -> None:
    weight.data.mul_(SCALE)


def drawn_then_scaled(module: Base) -> None:
    draw(module)
    scaled(module.out.weight)


@pytest.mark.parametrize("name", ["init_weights", "initialize_weights", "reset_parameters", "init_parameters"])
def test_what_is_scaled_again_is_found_under_every_name(name: str) -> None:
    found = second_init(model(name, lambda self: scaled(self.out.weight)))
    assert found == (("out.weight", pytest.approx(SCALE)),)
    assert second_init(model(name, drawn_then_scaled)) == ()


def parts(self: Base) -> None:
    self.inner.weight.data[:8] *= 0.5


def parts_drawn(self: Base) -> None:
    for start in range(0, 32, 8):
        nn.init.normal_(self.inner.weight[start : start + 8], std=0.02)
    self.inner.weight.data[:8] *= 0.5


def assigned(self: Base) -> None:
    self.out.weight.data = self.out.weight.data / 4


def copied(self: Base) -> None:
    with torch.no_grad():
        self.out.weight.copy_(2 * self.out.weight)


def twice(self: Base) -> None:
    self.out.weight.data.mul_(0.5).mul_(0.5)


def undone(self: Base) -> None:
    self.out.weight.data.mul_(0.5)
    self.out.weight.data.div_(0.5)


def zeroed(self: Base) -> None:
    self.out.weight.data.mul_(0)


def normalized(self: Base) -> None:
    self.out.weight.data /= self.out.weight.data.norm()


def masked(self: Base) -> None:
    self.out.weight.data.mul_(torch.ones(8, 32, device=self.out.weight.device).tril())


def truncated(self: Base) -> None:
    nn.init.trunc_normal_(self.out.weight, std=0.02)
    scaled(self.out.weight)


def orthogonal(self: Base) -> None:
    nn.init.orthogonal_(self.out.weight)
    scaled(self.out.weight)


def from_another(self: Base) -> None:
    self.out.weight.data.copy_(self.inner.weight.data.T * 0.5)


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (parts, (("inner.weight", 0.5),)),
        (assigned, (("out.weight", 0.25),)),
        (copied, (("out.weight", 2.0),)),
        (twice, (("out.weight", 0.25),)),
        (lambda self: scaled(self.head.weight), (("embed.weight", SCALE),)),  # the tied tensor, by its first name
        # idempotent, each in its way
        (parts_drawn, ()),
        (undone, ()),
        (zeroed, ()),
        (normalized, ()),
        (masked, ()),
        (truncated, ()),
        (orthogonal, ()),
        (from_another, ()),
        (lambda self: self.steps.mul_(0.5), ()),  # a buffer
    ],
)
def test_kinds_of_scaling(function: Callable[[Base], object], found: tuple[tuple[str, float], ...]) -> None:
    assert second_init(model("init_weights", function)) == tuple(
        (name, pytest.approx(factor)) for name, factor in found
    )


def test_a_method_that_takes_a_module_is_applied() -> None:
    def linear(self: nn.Module, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)

    def scales(self: nn.Module, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and module.out_features == 8:
            scaled(module.weight)

    for name in ("_init_weights", "init_weights"):
        assert second_init(model(name, linear)) == ()
        assert second_init(model(name, scales)) == (("out.weight", pytest.approx(SCALE)),)


def fails(self: Base) -> None:
    scaled(self.out.weight)
    raise ZeroDivisionError


@pytest.mark.parametrize(
    "module",
    [
        Base(),
        nn.Linear(2, 2),
        model("init_weights", fails),
        model("init_weights", lambda self, std, gain: scaled(self.out.weight)),
        model("init_weights", lambda self: float(self.out.weight.sum())),  # no values there
    ],
)
def test_where_there_is_no_answer(module: nn.Module) -> None:
    assert second_init(module) == ()


def test_the_module_and_the_random_state_stay_as_they_were() -> None:
    def state() -> list[object]:
        return [torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()]

    def init_weights(self: Base) -> None:
        random.random()
        np.random.rand()
        torch.rand(3)
        draw(self)
        scaled(self.inner.bias)
        self.new_attribute = 1
        self.steps.add_(1)

    module = model("init_weights", init_weights)
    module.embed.weight.grad = torch.ones_like(module.embed.weight)
    before = {name: (tensor.data_ptr(), tensor.clone()) for name, tensor in module.state_dict().items()}
    attributes, randoms = set(vars(module)), state()
    assert second_init(module) == (("inner.bias", pytest.approx(SCALE)),)
    assert state() == randoms
    assert set(vars(module)) == attributes
    for name, tensor in module.state_dict().items():
        place, value = before[name]
        assert tensor.data_ptr() == place and torch.equal(tensor, value)


def test_an_init_that_reaches_for_the_users_tensors_is_stopped() -> None:
    module = model("init_weights", lambda self: scaled(kept[0]))
    kept = [module.out.weight]
    before = module.out.weight.clone()
    assert second_init(module) == ()
    assert torch.equal(module.out.weight, before)


def test_no_memory_is_taken() -> None:
    """A copy of these 400 MB would show; 4 MB are the module's structure."""
    module = model("init_weights", drawn_then_scaled)
    module.big = nn.Linear(10_000, 10_000, bias=False)
    held = module.big.weight.untyped_storage().nbytes()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        assert second_init(module) == ()
    assert sum(max(event.self_cpu_memory_usage, 0) for event in profile.key_averages()) < held / 100


def test_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=2, n_positions=8, vocab_size=50, bos_token_id=0, eos_token_id=0
    )
    assert second_init(transformers.GPT2LMHeadModel(config)) == ()

    class Scaled(transformers.GPT2Model):
        def _init_weights(self, module: nn.Module) -> None:
            if isinstance(module, nn.LayerNorm):
                module.weight.data.mul_(0.5)

    found = second_init(Scaled(config))
    assert len(found) == 5 and set(found) >= {("ln_f.weight", 0.5)}
