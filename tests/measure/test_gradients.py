"""Gradient norms, against plain loss.backward(), retained gradients and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from initdiag.measure.gradients import BranchGradients, backward, mean_cross_entropy, norm
from tests.small_models import WIRINGS, drawn, subject, tokens


def plainly(module: nn.Module, loss: Tensor) -> dict[str, float]:
    """Return gradient norms in float64 from loss.backward() alone."""
    for parameter in module.parameters():
        parameter.grad = None
    loss.backward()
    found = {
        n: float(p.grad.double().square().sum().sqrt()) for n, p in module.named_parameters() if p.grad is not None
    }
    for parameter in module.parameters():
        parameter.grad = None
    return found


@pytest.mark.parametrize("wiring", WIRINGS)
def test_parameters_beside_plain_backward(wiring: str) -> None:
    of = subject("default", **WIRINGS[wiring])
    module, batch = drawn(of), tokens(of)
    inputs, targets = torch.tensor(batch.inputs), torch.tensor(batch.targets)
    expected = plainly(module, F.cross_entropy(module(inputs).flatten(0, 1), targets.flatten()))
    found = backward(mean_cross_entropy(module(inputs), targets), module)
    assert dict(found.norms) == pytest.approx(expected, rel=1e-4, abs=1e-7)  # key biases: rounding about 0
    assert not found.not_finite
    assert all(parameter.grad is None for parameter in module.parameters())


def test_the_users_grads_and_hooks_stay() -> None:
    module = nn.Linear(3, 3)
    given = torch.ones_like(module.weight)
    module.weight.grad = given
    steps: list[Tensor] = []
    module.weight.register_post_accumulate_grad_hook(steps.append)
    for through in (lambda x: x, Doubled.apply):
        backward(through(module(torch.ones(2, 3))).square().sum(), module)
        assert module.weight.grad is given
        assert torch.equal(given, torch.ones(3, 3))
    assert not steps
    module(torch.ones(2, 3)).sum().backward()
    assert len(steps) == 1  # and still there


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        return gradient * 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_tied_under_checkpoints_gets_the_sum(reentrant: bool) -> None:
    module = nn.Linear(4, 4)
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)

    def loss(checkpointed: bool) -> Tensor:
        once = checkpoint(module, x, use_reentrant=reentrant) if checkpointed else module(x)
        twice = checkpoint(module, once.tanh(), use_reentrant=reentrant) if checkpointed else module(once.tanh())
        return twice.square().mean()

    assert dict(backward(loss(True), module).norms) == pytest.approx(plainly(module, loss(False)), rel=1e-5)


def test_zero_unused_frozen_and_not_finite() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.shut, self.unused, self.frozen, self.wild = (nn.Parameter(torch.ones(2)) for _ in range(5))
            self.frozen.requires_grad_(False)

        def forward(self) -> Tensor:
            return (self.used * self.frozen + self.shut * 0 + (self.wild - 1).sqrt()).sum()

    module = Odd()
    found = backward(module(), module)
    assert dict(found.norms) == {"used": pytest.approx(math.sqrt(2)), "shut": 0.0, "wild": math.inf}
    assert found.zero == ("shut", "unused")
    assert found.not_finite == ("wild",)
    assert backward(torch.ones(()), module).norms == ()  # a loss without a graph


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_norm_beyond_the_squares_of_float32(dtype: torch.dtype, scale: float) -> None:
    x = (torch.randn(70_000, generator=torch.Generator().manual_seed(0)) * scale).to(dtype)
    assert norm(x) == pytest.approx(
        float(x.double().mul(1 / scale).square().sum().sqrt()) * scale, rel=1e-5
    )  # 4096 float32 additions a lane
    assert norm(x * 0) == 0
    assert norm(torch.full((3,), 1e-200, dtype=torch.float64)) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_cross_entropy_and_its_gradient(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = (3 * torch.randn(2, 40, 60_000, generator=generator)).to(dtype)[:, :, :-3].requires_grad_()  # a view
    targets = torch.randint(59_997, (2, 40), generator=generator)
    loss = mean_cross_entropy(logits, targets)
    expected = F.cross_entropy(logits.double().flatten(0, 1), targets.flatten())
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    (found,) = torch.autograd.grad(2 * loss, [logits])
    (right,) = torch.autograd.grad(2 * expected, [logits])
    # float32's 6e-8 through an exponent of up to 30; bfloat16 gradients keep 8 bits, rounded on both sides
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), right.double(), rtol=2**-7 if dtype == torch.bfloat16 else 1e-5, atol=1e-12
    )


def test_cross_entropy_by_finite_differences() -> None:
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = torch.tensor([[0, 4, 2], [1, 1, 3]])
    assert torch.autograd.gradcheck(lambda x: mean_cross_entropy(x, targets), (logits,))


def test_branches_beside_retained_gradients_also_in_place() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(4, 4, generator=generator, requires_grad=True)
    x = torch.randn(2, 4, generator=generator)

    def run(in_place: bool) -> dict[int, float]:
        branches, kept = BranchGradients(), []
        stream = x @ weight
        for index in (1, 2, 3):
            branch = (stream.clone() @ weight).relu()
            if in_place:
                stream += branch
            else:
                stream = stream + branch
                stream.retain_grad()
                kept.append(stream)
            branches.watch(index, stream)
            branches.attach()
        (stream * x).square().sum().backward()
        if kept:
            assert branches.norms == pytest.approx({i: float(s.grad.norm()) for i, s in enumerate(kept, 1)}, rel=1e-6)
        return branches.norms

    assert run(in_place=True) == pytest.approx(run(in_place=False), rel=1e-6)


def test_branches_without_gradient() -> None:
    branches = BranchGradients()
    branches.watch(1, torch.ones(2))  # frozen
    cut = torch.ones(2, requires_grad=True) * 1
    branches.watch(2, cut)
    branches.attach()
    (cut.detach() * torch.ones(2, requires_grad=True)).sum().backward()
    assert branches.norms == {2: 0.0}
