"""Which parameters wake up within three steps, and which never do (facts/faults.md, K9)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from initdiag.measure import GradientMeasure
from initdiag.measure.gradients import backward, mean_cross_entropy
from initdiag.measure.revival import Revival, dead_parameters
from tests.small_models import drawn, subject, tokens

LLAMA = {"norm": "rmsnorm", "biases": False, "tied": False, "position": "rotary"}


def looked_at(damage: Callable[[nn.Module], None]) -> tuple[nn.Module, GradientMeasure, Revival]:
    of = subject("default", **LLAMA)
    module, batch = drawn(of), tokens(of)
    inputs, targets = torch.tensor(batch.inputs), torch.tensor(batch.targets)
    with torch.no_grad():
        damage(module)

    def step(m: nn.Module) -> Tensor:
        return mean_cross_entropy(m(inputs), targets)

    measured = backward(step(module), module)
    before = {name: parameter.clone() for name, parameter in module.named_parameters()}
    state = torch.random.get_rng_state()
    found = dead_parameters(module, step, measured.zero)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(before[name], parameter) for name, parameter in module.named_parameters())
    assert all(parameter.grad is None for parameter in module.parameters())
    return module, measured, found


def zero(*names: str) -> Callable[[nn.Module], None]:
    def damage(module: nn.Module) -> None:
        for name in names:
            module.get_parameter(name).zero_()

    return damage


OUTS = tuple(f"blocks.{layer}.{part}.out.weight" for layer in range(3) for part in ("attention", "mlp"))


@pytest.mark.parametrize(
    ("names", "steps"),
    [(("head.weight",), 1), (OUTS, 1), ((*OUTS, "head.weight"), 2), (("blocks.1.attention.query.weight",), 1)],
    ids=["zero head", "zero outs", "zero outs and head", "muP: zero query"],
)
def test_healthy_zeros_wake_up(names: tuple[str, ...], steps: int) -> None:
    _, measured, found = looked_at(zero(*names))
    assert measured.zero
    assert found == Revival(dead=(), steps=steps)


def test_zero_value_and_out_are_dead() -> None:
    _, _, found = looked_at(zero("blocks.1.attention.value.weight", "blocks.1.attention.out.weight"))
    parts = ("attention_norm", "attention.query", "attention.key", "attention.value", "attention.out")
    assert found == Revival(dead=tuple(f"blocks.1.{part}.weight" for part in parts), steps=3)


def test_zero_gain_under_a_zero_head_kills_everything() -> None:
    module, _, found = looked_at(zero("final_norm.weight", "head.weight"))
    assert found.dead == tuple(name for name, _ in module.named_parameters())


def test_nothing_is_run_where_nothing_sleeps() -> None:
    _, measured, found = looked_at(lambda module: None)
    assert (measured.zero, found) == ((), Revival())


class Held(nn.Module):
    """One parameter, and whatever else it is given to hold."""

    def __init__(self, held: object = None) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1000))
        self.held = held


def test_what_cannot_be_looked_at_says_why() -> None:
    def step(module: nn.Module) -> Tensor:
        return (module.weight**2).sum()

    locked = dead_parameters(Held(threading.Lock()), step, ("weight",))
    assert (locked.dead, locked.steps) == ((), 0)
    assert locked.skipped.startswith("the module can't be copied (TypeError:")
    assert "free" in dead_parameters(Held(), step, ("weight",), memory=7999).skipped
    assert dead_parameters(Held(), step, ("weight",), memory=8000).dead == ("weight",)
    wild = dead_parameters(Held(), lambda module: module.weight.sqrt().sum(), ("weight",))
    assert "not finite" in wild.skipped


def test_a_copy_that_runs_on_the_original_is_noticed() -> None:
    module = Held()
    module.other = nn.Parameter(torch.ones(2))
    found = dead_parameters(Held(), lambda twin: module.other.sum(), ())
    assert found == Revival()
    found = dead_parameters(module, lambda twin: module.other.sum() + twin.weight.pow(2).sum(), ("weight",))
    assert "copy" in found.skipped
