"""The tracer keeps nothing alive and leaves nothing behind, also after an error."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from initdiag.trace import Addition, Tracer
from tests.small_models import WIRINGS, drawn, subject, tokens


def nothing(found: Any) -> None:
    pass


def ids_of(wiring: str) -> Tensor:
    return torch.tensor(tokens(subject(**WIRINGS[wiring])).inputs)


def anatomy(module: nn.Module) -> list[tuple[str, list[str], list[int]]]:
    """Names of all attributes of all submodules, and how many of each kind of hook hang on them."""
    return [
        (name, sorted(vars(part)), [len(value) for key, value in sorted(vars(part).items()) if "hooks" in key])
        for name, part in module.named_modules()
    ]


@pytest.mark.parametrize("wiring", WIRINGS)
@torch.no_grad()
def test_the_module_is_as_it_was_and_computes_what_it_did(wiring: str) -> None:
    module, ids = drawn(subject(**WIRINGS[wiring])), ids_of(wiring)
    before, state = anatomy(module), {name: value.clone() for name, value in module.state_dict().items()}
    attributes = [sorted(vars(parameter)) for parameter in module.parameters()]
    plain = module(ids)
    with Tracer(module, ids, nothing, nothing):
        watched = module(ids)
    assert torch.equal(watched, plain)
    assert type(watched) is Tensor
    assert anatomy(module) == before
    assert [sorted(vars(parameter)) for parameter in module.parameters()] == attributes
    for name, value in module.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert _get_current_dispatch_mode_stack() == []


@torch.no_grad()
def test_an_error_in_the_forward_or_the_observer_ends_the_tracing() -> None:
    module, ids = drawn(subject()), ids_of("gpt2")
    before = anatomy(module)

    def broken(found: Any) -> None:
        raise KeyError("observer")

    with pytest.raises(KeyError, match="observer"), Tracer(module, ids, broken, nothing):
        module(ids)
    with pytest.raises(IndexError), Tracer(module, ids, nothing, nothing):
        module(ids + 1000)
    assert _get_current_dispatch_mode_stack() == []
    assert anatomy(module) == before


@torch.no_grad()
def test_no_activation_outlives_its_own_use() -> None:
    """Branches die as in a forward that nobody watches: without the garbage collector, before the next one comes."""
    module, ids = drawn(subject(n_layers=4)), ids_of("gpt2")
    alive: list[int] = []
    branches: list[weakref.ref[Tensor]] = []

    def on_addition(found: Addition) -> None:
        alive.append(sum(branch() is not None for branch in branches))
        branches.append(weakref.ref(found.branch))

    gc.disable()
    try:
        tracer = Tracer(module, ids, on_addition, nothing)
        with tracer:
            states = module.states(ids)
        left = sum(branch() is not None for branch in branches)
    finally:
        gc.enable()
    assert states.shape == (2, 24, 32)
    assert len(branches) == 8
    # when a branch is added, the one before may still be held by the frame that made it, no older one
    assert max(alive) <= 1, alive
    assert left == 0


@torch.no_grad()
def test_a_tracer_that_lives_on_holds_no_tensors() -> None:
    module, ids = drawn(subject()), ids_of("gpt2")
    tracer = Tracer(module, ids, nothing, nothing)
    with tracer:
        module(ids)
    held = len(list(tracer._lineages.keys()))
    assert held == len(list(module.parameters())) + 1  # those, and the ids, are alive outside
    reference = weakref.ref(module)
    del module
    gc.collect()
    assert reference() is None, "the tracer keeps the module alive"


def test_gradients_flow_through_a_traced_forward() -> None:
    module, ids = drawn(subject()), ids_of("gpt2")
    module(ids).square().mean().backward()
    plain = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}
    module.zero_grad()
    with Tracer(module, ids, nothing, nothing):
        loss = module(ids).square().mean()
    loss.backward()
    for name, parameter in module.named_parameters():
        assert torch.equal(parameter.grad, plain[name]), name
