"""The dense engine: from a subject to weights to one forward, without a trace on the user's own state."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import initdiag
from initdiag import memory
from initdiag.engines import Settings, dense
from initdiag.errors import PlanError, RunError, UsageError
from initdiag.measure.observe import observe
from initdiag.model.transformer import Transformer
from initdiag.subjects import Subject
from initdiag.tokens import TokenBatch
from tests.small_models import WIRINGS, architecture, tokens
from tests.small_models import subject as small_subject

CPU = Settings(device="cpu")


def parameters_of(weights: dense.Weights) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in weights.module.named_parameters()}


def assert_same_weights(a: dense.Weights, b: dense.Weights) -> None:
    mine, theirs = parameters_of(a), parameters_of(b)
    assert mine.keys() == theirs.keys()
    for name in mine:
        assert torch.equal(mine[name], theirs[name]), f"{name} differs"


# --- drawing


@pytest.fixture
def no_default_init(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make every init function of PyTorch raise."""
    names = [name for name in dir(torch.nn.init) if name.endswith("_") and not name.startswith("_")]
    assert {"normal_", "uniform_", "kaiming_uniform_", "ones_", "zeros_"} <= set(names)

    def boom(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("PyTorch's own init ran")

    for name in names:
        monkeypatch.setattr(torch.nn.init, name, boom)
    with pytest.raises(AssertionError, match="own init"):
        nn.Linear(2, 2)
    yield


@pytest.mark.parametrize("wiring", WIRINGS)
def test_no_default_init_is_run_and_every_entry_is_drawn(wiring: str, no_default_init: None) -> None:
    weights = dense.realize(small_subject("default", **WIRINGS[wiring]), 0, CPU)
    assert isinstance(weights.module, Transformer)
    for name, parameter in weights.module.named_parameters():
        assert parameter.device.type == "cpu"
        assert bool(parameter.isfinite().all()), name


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "float16"])
def test_dtypes(dtype: str) -> None:
    weights = dense.realize(small_subject(), 0, Settings(device="cpu", dtype=dtype))
    wide = parameters_of(dense.realize(small_subject(), 0, CPU))
    for name, parameter in weights.module.named_parameters():
        assert parameter.dtype is getattr(torch, dtype)
        assert torch.equal(parameter, wide[name].to(parameter.dtype)), name


@pytest.mark.parametrize(("before", "after"), [("default", "scaled"), ("scaled", "gpt2"), ("gpt2", "default")])
@pytest.mark.parametrize("other_seed", [False, True])
def test_reused_memory_holds_what_a_fresh_draw_gives(before: str, after: str, other_seed: bool) -> None:
    first = dense.realize(small_subject(before), 3 + other_seed, CPU)
    again = dense.realize(small_subject(after), 3, CPU, reuse=first)
    assert again.module is first.module
    assert_same_weights(again, dense.realize(small_subject(after), 3, CPU))


# --- what can't be run


def never() -> nn.Module:
    raise AssertionError("nothing may be built")


def test_a_model_beyond_memory_is_refused_before_anything_is_allocated() -> None:
    huge = small_subject(d_model=65536, n_layers=50, vocab_size=1000)
    needed = 4 * sum(entry.parameter.numel for entry in huge.plan.entries) / 2**30
    with pytest.raises(RunError) as caught:
        dense.realize(replace(huge, build=never), 0, CPU)
    numbers = re.search(r"small need ([\d.]+) GiB as float32; cpu has ([\d.]+) GiB available", str(caught.value))
    assert numbers, str(caught.value)
    assert float(numbers[1]) == pytest.approx(needed, abs=0.06)
    # 12 d² a layer in 4 bytes: 50 · 12 · 2^32 · 4 / 2^30 = 9600 GiB, and little else
    assert needed == pytest.approx(9600, rel=0.01)
    assert 0 < float(numbers[2]) < 9000
    with pytest.raises(RunError, match=rf"need {needed / 2:.1f} GiB as bfloat16"):
        dense.realize(replace(huge, build=never), 0, Settings(device="cpu", dtype="bfloat16"))


@pytest.mark.parametrize(("room", "helps"), [(0.6, True), (0.4, False)])
def test_half_the_bytes_are_advised_where_they_fit(room: float, helps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    small = small_subject()
    needed = 4 * sum(entry.parameter.numel for entry in small.plan.entries)
    monkeypatch.setattr(memory, "available", lambda _: int(room * needed))
    with pytest.raises(RunError) as caught:
        dense.realize(replace(small, build=never), 0, CPU)
    assert ("--dtype bfloat16" in str(caught.value)) is helps


def built(**fields: Any) -> Callable[[], nn.Module]:
    return lambda: Transformer(architecture(**fields))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ({"tied": False}, "'head.weight': the plan says nothing, the module has (97, 32)"),
        ({"gated": True}, "'blocks.0.mlp.gate.weight': the plan says nothing, the module has (128, 32)"),
        ({"position": "none"}, "'position_embedding.weight': the plan says (24, 32), the module has no such parameter"),
        ({"d_ff": 100}, "'blocks.0.mlp.input.weight': the plan says (128, 32), the module has (100, 32)"),
        ({"n_layers": 2}, "'blocks.2.attention_norm.weight': the plan says (32,), the module has no such parameter"),
    ],
)
def test_a_module_that_is_not_the_planned_one_is_named_by_parameter(module: dict[str, Any], words: str) -> None:
    with pytest.raises(PlanError) as caught:
        dense.realize(replace(small_subject(), build=built(**module)), 0, CPU)
    assert words in str(caught.value)


def test_unknown_devices_and_dtypes() -> None:
    with pytest.raises(UsageError, match=r"--device cudaa: expected one of auto, cpu, .*did you mean 'cuda'\?"):
        Settings(device="cudaa")
    with pytest.raises(UsageError, match=r"--dtype float23: expected one of float32, .*did you mean 'float32'\?"):
        Settings(dtype="float23")
    with pytest.raises(UsageError, match="--threads 0: expected at least 1"):
        Settings(threads=0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without cuda")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(RunError, match=r"--device cuda: not available here; this PyTorch sees .*cpu"):
        dense.realize(small_subject(), 0, Settings(device="cuda"))
    assert dense.device_named("auto") in ("mps", "cpu")


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("not enough memory")]
)
def test_running_out_of_memory_is_a_run_error(error: Exception) -> None:
    def observer(*args: Any) -> None:
        raise error

    weights = dense.realize(small_subject(), 0, CPU)
    with pytest.raises(RunError, match="small ran out of memory"):
        dense.forward(small_subject(), weights, tokens(small_subject()), observer)


def test_other_errors_of_a_forward_are_not_hidden() -> None:
    def observer(*args: Any) -> None:
        raise RuntimeError("something else")

    weights = dense.realize(small_subject(), 0, CPU)
    with pytest.raises(RuntimeError, match="something else"):
        dense.forward(small_subject(), weights, tokens(small_subject()), observer)


# --- the forward


def test_the_observer_gets_the_weights_in_evaluation_mode_without_gradients() -> None:
    def observer(of: Subject, module: nn.Module, batch: TokenBatch) -> tuple[bool, bool, float]:
        logits = module(torch.tensor(batch.inputs))
        return module.training, torch.is_grad_enabled(), float(logits.sum())

    of = small_subject()
    (training, gradients, total), weights = dense.run(of, tokens(of), 5, CPU, observer)
    assert (training, gradients) == (False, False)
    with torch.no_grad():
        assert total == float(weights.module(torch.tensor(tokens(of).inputs)).sum())
    assert_same_weights(weights, dense.realize(of, 5, CPU))
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("scheme", ["default", "scaled"])
def test_a_run_leaves_the_global_state_as_it_was(scheme: str) -> None:
    torch.manual_seed(1234)
    random.seed(1234)
    before = (torch.get_rng_state(), random.getstate(), torch.get_default_dtype(), torch.get_num_threads())
    initdiag.check("tiny", scheme=scheme, settings=CPU)
    after = (torch.get_rng_state(), random.getstate(), torch.get_default_dtype(), torch.get_num_threads())
    assert torch.equal(after[0], before[0])
    assert after[1:] == before[1:]
    assert torch.is_grad_enabled()
    assert torch.empty(1).device.type == "cpu"


def test_a_run_does_not_depend_on_the_global_state() -> None:
    of = small_subject("default")
    measured = []
    for state in (0, 1):
        torch.manual_seed(state)
        random.seed(state)
        measured.append(dense.run(of, tokens(of), 0, CPU, observe)[0])
    assert measured[0] == measured[1]


def test_the_environment_names_what_a_run_depends_on() -> None:
    found = dense.environment(Settings(device="cpu", threads=3), nn.Linear(2, 2))
    assert found == {"torch": torch.__version__, "device": "cpu", "threads": "3"}
