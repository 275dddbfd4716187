"""Rules on the backward, on reference Transformers damaged for real, each beside its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from initdiag import theory
from initdiag.config.schema import Gate
from initdiag.measure import GradientMeasure, Measurements, ParameterMeasure, RouterMeasure
from initdiag.measure.observe import observe
from initdiag.rules import Severity
from initdiag.rules.dead_parameters import DEAD
from initdiag.rules.gradients import IMBALANCE, NOT_FINITE
from initdiag.rules.rule import Evidence, Rule, Trouble, as_python
from tests.small_models import drawn, subject, tokens

Damage = Callable[[nn.Module], None]


def healthy(module: nn.Module) -> None:
    pass


def seen(damage: Damage, scheme: str = "scaled", seed: int = 0, **fields: Any) -> Evidence:
    of = subject(scheme, **fields)
    module, batch = drawn(of, seed), tokens(of)
    with torch.no_grad():
        damage(module)
        measured = observe(of, module, batch, backward=True)
    return Evidence(of, measured, theory.expect(of, batch, measured), Gate())


def asked(rule: Rule, evidence: Evidence) -> list[Trouble]:
    return list(rule.check(evidence))


def cut(layer: int) -> Damage:
    """Detach the stream in one block: the forward stays what it is."""

    def forward(self: Any, x: Tensor, turn: Any, mask: Any) -> Tensor:
        if self.placement == "post":
            x = self.attention_norm(x + self.attention(x, turn, mask))
            return self.mlp_norm(x.detach() + self.mlp(x))
        x = x + self.attention(self.attention_norm(x), turn, mask)
        return x.detach() + self.mlp(self.mlp_norm(x))

    def damage(module: nn.Module) -> None:
        block = module.blocks[layer]
        block.forward = MethodType(forward, block)

    return damage


def cut_all(module: nn.Module) -> None:
    for layer in range(len(module.blocks)):
        cut(layer)(module)


def times_ten(layer: int) -> Damage:
    def damage(module: nn.Module) -> None:
        for name, parameter in module.blocks[layer].named_parameters():
            if "norm" not in name:
                parameter.mul_(10)

    return damage


def fill(value: float, *names: str) -> Damage:
    def damage(module: nn.Module) -> None:
        for name in names:
            module.get_parameter(name).fill_(value)

    return damage


@pytest.mark.parametrize("placement", ["pre", "post"])
@pytest.mark.parametrize("scheme", ["default", "gpt2", "scaled"])
@pytest.mark.parametrize("layers", [3, 8])
def test_healthy_is_balanced(placement: str, scheme: str, layers: int) -> None:
    for seed in range(2):
        evidence = seen(healthy, scheme, seed, placement=placement, n_layers=layers, d_model=64, tied=False)
        assert all(branch.gradient_norm for branch in evidence.measured.residual.branches)
        assert [*asked(IMBALANCE, evidence), *asked(NOT_FINITE, evidence), *asked(DEAD, evidence)] == []


@pytest.mark.parametrize("scheme", ["default", "gpt2", "scaled"])
def test_a_cut_skip(scheme: str) -> None:
    (trouble,) = asked(IMBALANCE, seen(cut(2), scheme, n_layers=6, d_model=64, tied=False))
    assert trouble.severity == Severity.ERROR
    assert trouble.subject == "blocks.2.mlp.out"
    assert "loses the gradient: " in trouble.message


def test_all_skips_cut_in_post_norm() -> None:
    evidence = seen(cut_all, "default", placement="post", n_layers=6, d_model=64)
    (trouble,) = asked(IMBALANCE, evidence)
    assert trouble.severity == Severity.ERROR
    assert "shrinks by" in trouble.message
    assert "the forward does not explain it" in trouble.help


@pytest.mark.parametrize("layer", [1, 4, 5])
@pytest.mark.parametrize("placement", ["pre", "post"])
def test_a_block_ten_times_too_wide(placement: str, layer: int) -> None:
    evidence = seen(times_ten(layer), "default", placement=placement, n_layers=6, d_model=64, tied=False)
    (trouble,) = asked(IMBALANCE, evidence)
    assert trouble.severity == Severity.ERROR
    assert "in one block" in trouble.message
    assert f"layer {layer}" in trouble.message


def scaled_norms(evidence: Evidence, per_block: float) -> Evidence:
    """Multiply the measured gradients by a factor per block on their way down."""
    branches = tuple(
        replace(branch, gradient_norm=branch.gradient_norm * per_block**-branch.layer, carried="scaled")
        for branch in evidence.measured.residual.branches
    )
    residual = replace(evidence.measured.residual, branches=branches)
    return replace(evidence, measured=replace(evidence.measured, residual=residual))


def test_thresholds_per_block() -> None:
    evidence = seen(healthy, "default", n_layers=6, d_model=64, tied=False)  # 1.01 to 1.02 per block
    expected = {
        **dict.fromkeys((0.45, 2.1), Severity.ERROR),
        **dict.fromkeys((0.6, 1.6), Severity.WARNING),
        **dict.fromkeys((0.75, 1.3), None),
    }
    for per_block, severity in expected.items():
        found = [trouble.severity for trouble in asked(IMBALANCE, scaled_norms(evidence, per_block))]
        assert found == ([severity] if severity else []), per_block


def test_without_a_backward_nothing_is_said() -> None:
    of = subject()
    batch = tokens(of)
    measured = observe(of, drawn(of).requires_grad_(False), batch)
    evidence = Evidence(of, measured, theory.expect(of, batch, measured), Gate())
    assert [*asked(IMBALANCE, evidence), *asked(NOT_FINITE, evidence), *asked(DEAD, evidence)] == []


def test_a_gradient_that_is_not_finite() -> None:
    class Nan(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * float("nan")

    def damage(module: nn.Module) -> None:
        inner = module.blocks[1].mlp.input
        inner.forward = lambda x: Nan.apply(type(inner).forward(inner, x))

    (trouble,) = asked(NOT_FINITE, seen(damage))
    assert trouble.severity == Severity.ERROR
    assert trouble.subject == "blocks.1.attention.out"  # the last addition whose gradient is nan
    assert "the forward is finite" in trouble.help


VALUE, OUT = "blocks.1.attention.value.weight", "blocks.1.attention.out.weight"
UNTIED = {"tied": False, "biases": False, "norm": "rmsnorm"}


def test_dead_parameters_and_the_line_that_cures_them() -> None:
    (trouble,) = asked(DEAD, seen(fill(0, VALUE, OUT), **UNTIED))
    assert (trouble.severity, trouble.subject) == (Severity.ERROR, VALUE)
    assert "5 of " in trouble.message
    assert f"`nn.init.normal_({as_python(VALUE)}, std=0.02)`" in trouble.help
    assert "in all" not in trouble.help
    both = [name.replace("blocks.1", f"blocks.{layer}") for layer in range(2) for name in (VALUE, OUT)]
    (trouble,) = asked(DEAD, seen(fill(0, *both), **UNTIED))
    assert f"zeros multiply each other, {both[0]}, {both[1]}; " in trouble.help and "in all 2 layers" in trouble.help
    (trouble,) = asked(DEAD, seen(fill(0, "final_norm.weight", "head.weight"), **UNTIED))
    assert trouble.severity == Severity.ERROR
    assert "`nn.init.ones_(model.final_norm.weight)`" in trouble.help


def test_dead_parameters_of_several_layers_are_no_factors_of_one_another() -> None:
    """Their factors are rows of packed matrices, which aren't zero altogether."""
    dead = ("h.0.attn.c_proj.weight", "h.1.attn.c_proj.weight")
    gradients = GradientMeasure(((dead[0], 0.0), (dead[1], 0.0), ("head.weight", 1.0)), (), dead, dead, 3)
    parameters = tuple(ParameterMeasure(name, 0.0, 0.0, 0, (8, 8)) for name in dead)
    (trouble,) = asked(DEAD, with_gradients(gradients, parameters=parameters))
    assert "multiply each other" not in trouble.help
    assert f"each of {dead[0]}, {dead[1]} multiplies other zeros of its layer" in trouble.help


@pytest.mark.parametrize("names", [("head.weight",), (OUT,), ("head.weight", OUT)])
def test_sleeping_parameters_are_only_told(names: tuple[str, ...]) -> None:
    (trouble,) = asked(DEAD, seen(fill(0, *names), **UNTIED))
    assert trouble.severity == Severity.INFO
    assert f"all of them have one after {len(names)} SGD step" in trouble.message


def with_gradients(gradients: GradientMeasure, **more: Any) -> Evidence:
    evidence = seen(healthy)
    measured: Measurements = replace(evidence.measured, gradients=gradients, **more)
    return replace(evidence, measured=measured)


def test_unused_parameters_and_idle_experts() -> None:
    expert, unused = "layers.0.mlp.experts.3.up.weight", "vision.weight"
    gradients = GradientMeasure((("head.weight", 1.0), (expert, 0.0)), (), (expert, unused), (expert, unused), 3)
    idle, busy = (RouterMeasure("layers.0.mlp.router", 8, 64, 0.5, share) for share in (0.0, 0.05))
    found = asked(DEAD, with_gradients(gradients, routers=(idle,)))
    assert [(one.subject, one.severity) for one in found] == [(unused, Severity.WARNING), (expert, Severity.INFO)]
    found = asked(DEAD, with_gradients(gradients, routers=(busy,)))
    assert [(one.subject, one.severity) for one in found] == [(expert, Severity.ERROR), (unused, Severity.WARNING)]
    found = asked(DEAD, with_gradients(replace(gradients, zero=("blocks.0.x",), dead=(), steps=0)))
    assert [one.severity for one in found] == [Severity.WARNING]


def test_a_small_embedding_under_norms_behind_branches_is_cured_by_a_larger_one() -> None:
    """No std of the residual projections counts there, so that none may be advised."""
    reordered = {"placement": "reordered", "tied": False, "gated": True, "norm": "rmsnorm", "n_layers": 4}
    (trouble,) = asked(IMBALANCE, seen(healthy, scheme="gpt2", **reordered))
    assert trouble.severity == Severity.WARNING
    assert "draw the embedding with a std near 1" in trouble.help and "residual projections" not in trouble.help
    larger = seen(lambda module: module.token_embedding.weight.mul_(50), scheme="gpt2", **reordered)
    assert asked(IMBALANCE, larger) == []
