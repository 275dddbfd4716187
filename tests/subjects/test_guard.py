"""Whatever runs under `unchanged`, the module and the global state come back as they were."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn

from initdiag.errors import RunError
from initdiag.subjects import guard
from initdiag.subjects.guard import unchanged


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte, self.drop, self.linear = nn.Embedding(20, 8), nn.Dropout(0.5), nn.Linear(8, 20)
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("mask", torch.tensor([1.0, float("nan"), -0.0]))
        self.register_buffer("cache", torch.zeros(4), persistent=False)
        self.steps, self.seen, self.options = 0, [1], {"a": 1}

    def forward(self, ids: Tensor) -> Tensor:
        return self.linear(self.norm(self.drop(self.wte(ids)).transpose(1, 2)).transpose(1, 2))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    made = Model()
    made.linear.eval()  # a mixed state: some parts train, some don't
    made.wte.weight.requires_grad_(False)
    made.linear.bias.grad = torch.full((20,), 3.0)
    made.linear.register_forward_hook(lambda *args: None)
    return made


IDS = torch.arange(10).view(2, 5)


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def everything(module: nn.Module) -> Any:
    """All that can be told of a module, by identity and by bits."""
    told: list[Any] = []
    for path, part in module.named_modules():
        hooks = {key: list(value.items()) for key, value in vars(part).items() if "hooks" in key}
        plain = {key: repr(value) for key, value in vars(part).items() if isinstance(value, int | list)}
        told.append(
            (
                path,
                id(part),
                part.training,
                list(vars(part)),
                hooks,
                plain,
                getattr(part, "options", None) and dict(part.options),
            )
        )
        told.append([(name, id(child)) for name, child in part._modules.items()])
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        grad = tensor.grad
        kept = (id(grad), bits(grad)) if grad is not None else None
        told.append((name, id(tensor), tensor.data_ptr(), bits(tensor), tensor.requires_grad, kept))
    return told


def global_state() -> dict[str, Any]:
    return {
        "torch": bits(torch.get_rng_state()),
        "numpy": [numpy.asarray(part).tobytes() for part in numpy.random.get_state()[1:]],
        "python": random.getstate(),
        "grad": torch.is_grad_enabled(),
        "dtype": torch.get_default_dtype(),
        "matmul": torch.get_float32_matmul_precision(),
        "fastpath": torch.backends.mha.get_fastpath_enabled(),
        "algorithms": torch.are_deterministic_algorithms_enabled(),
        "warn": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fill": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn": (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
        "threads": torch.get_num_threads(),
    }


def adds_attributes(m: Model) -> None:
    m.steps += 1
    m.attention = torch.zeros(3)
    m.seen.append(2)
    m.options["b"] = 2
    m.linear.cached = object()


def changes_buffers(m: Model) -> None:
    m.mask.fill_(0)
    m.cache.data.add_(1)
    m.norm.running_mean.add_(1)


def replaces_buffers(m: Model) -> None:
    m.mask = torch.zeros(3)
    m.register_buffer("late", torch.zeros(2))
    del m.norm.running_var
    m.cache.data = torch.ones(9)


def replaces_parameters_and_modules(m: Model) -> None:
    m.linear.weight = nn.Parameter(torch.zeros(20, 8))
    m.wte.weight.data = torch.zeros(20, 8)
    m.drop = nn.Identity()
    m.late = nn.Linear(2, 2)
    del m.norm


def changes_hooks_and_modes(m: Model) -> None:
    m.linear._forward_hooks.clear()
    m.wte.register_forward_pre_hook(lambda *args: None)
    m.norm.register_full_backward_hook(lambda *args: None)
    m.train()
    m.requires_grad_(True)


def changes_global_state(m: Model) -> None:
    torch.manual_seed(5)
    numpy.random.seed(5)
    random.seed(5)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_float32_matmul_precision("medium")
    torch.backends.mha.set_fastpath_enabled(False)
    torch._C._set_deterministic_algorithms(True, warn_only=True)  # the public one imports the compiler, 6 s
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = True
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.set_num_threads(torch.get_num_threads() + 1)


def runs_forward_and_backward(m: Model) -> None:
    assert m.linear.bias.grad is None
    m(IDS).square().mean().backward()
    assert m.linear.bias.grad is not None


DEEDS: list[Callable[[Model], None]] = [
    adds_attributes,
    changes_buffers,
    replaces_buffers,
    replaces_parameters_and_modules,
    changes_hooks_and_modes,
    changes_global_state,
    runs_forward_and_backward,
]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("deed", DEEDS)
def test_all_is_as_it_was(deed: Callable[[Model], None], fails: bool, model: Model) -> None:
    before, world = everything(model), global_state()
    expected: Any = pytest.raises(KeyError, match="inside") if fails else nullcontext()
    with expected, unchanged(model):
        assert not any(part.training for part in model.modules())
        deed(model)
        assert (everything(model), global_state()) != (before, world), "the deed did nothing: the test shows nothing"
        if fails:
            raise KeyError("inside")
    assert global_state() == world
    assert everything(model) == before


def writes(m: Model) -> None:
    with torch.no_grad():
        m.linear.weight[3, 3] += 1  # none of the sampled numbers


def writes_past_the_version(m: Model) -> None:
    m.linear.weight.data.mul_(2)


def writes_two(m: Model) -> None:
    writes(m)
    with torch.no_grad():
        m.linear.bias.zero_()


@pytest.mark.parametrize("deed", [writes, writes_past_the_version, writes_two])
def test_a_parameter_written_in_place_is_named(deed: Callable[[Model], None], model: Model) -> None:
    named = "'linear.weight' and 1 other tensors" if deed is writes_two else "'linear.weight'"
    with pytest.raises(RunError, match=f"the forward writes into {named}, which can't be undone"), unchanged(model):
        deed(model)
    assert model.training
    with pytest.raises(KeyError), unchanged(model):  # an error of the user's comes first
        deed(model)
        raise KeyError


def test_a_buffer_too_large_to_copy_is_watched(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "COPIED", 0)
    with unchanged(model):
        model(IDS)
    with pytest.raises(RunError, match="the forward writes into 'cache'"), unchanged(model):
        model.cache.add_(1)


def test_switches_that_are_asked_for(model: Model) -> None:
    with unchanged(model, training=True, requires_grad=True, grad=False, fastpath=False, deterministic=True):
        assert all(part.training for part in model.modules())
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert not torch.is_grad_enabled()
        assert not torch.backends.mha.get_fastpath_enabled()
        assert torch.are_deterministic_algorithms_enabled()
    assert not model.wte.weight.requires_grad
    assert torch.is_grad_enabled()
    assert torch.backends.mha.get_fastpath_enabled()
    assert not torch.are_deterministic_algorithms_enabled()


def test_eval_of_the_user_s_own_is_not_called(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some merge adapters into their weights there."""
    monkeypatch.setattr(Model, "train", lambda self, mode=True: pytest.fail("train() was called"))
    with unchanged(model):
        pass


def test_no_optimizer_is_stepped_by_a_hook_on_a_gradient(model: Model) -> None:
    fired: list[Any] = []
    model.linear.weight.register_post_accumulate_grad_hook(fired.append)
    with unchanged(model):
        model(IDS).sum().backward()
    assert fired == []
    model(IDS).sum().backward()
    assert len(fired) == 1


def test_shared_parameters_and_inference_mode(model: Model) -> None:
    model.linear.weight = model.wte.weight
    with torch.inference_mode(), unchanged(model):
        model(IDS)
    with torch.inference_mode():
        born = Model()
    before = everything(born)
    with warnings.catch_warnings(), torch.inference_mode(), unchanged(born):
        born(IDS)
    assert everything(born) == before


def test_it_costs_little() -> None:
    """148 parameters in 164 modules, as in GPT-2 small; measured at 15 ms of one busy core, so 60 is a leak of work."""
    layer = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    module = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    assert len(list(module.parameters())) == 144
    spent = []
    for _ in range(5):
        start = time.process_time()
        with unchanged(module):
            pass
        spent.append(time.process_time() - start)
    assert min(spent) < 0.06
