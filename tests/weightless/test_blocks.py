"""A stack that is run block by block gives what it gives when all is kept, in the memory of one block."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, embedding, linear

from initdiag.weightless.blocks import AskedAgainError, in_blocks, sources_of, stacked
from initdiag.weightless.factors import Gradient
from initdiag.weightless.gradients import thin_products
from initdiag.weightless.lazy import Lazy
from initdiag.weightless.span import Bases

from .helpers import close, made

V, W = 60, 40
IDS = torch.tensor([[5, 1, 39, 0], [1, 0, 5, 7]])


class Block(nn.Module):
    """A mixing of tokens and a feed-forward part, each behind a norm."""

    def __init__(self, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(W, dtype=torch.float64)
        self.mix, self.up, self.down = (nn.Linear(*s, bias=False) for s in ((W, W), (W, 2 * W), (2 * W, W)))
        self.inner = inner

    def forward(self, x: Tensor, factor: float = 1.0, *, beside: Tensor | None = None) -> Tensor:
        h = self.mix(self.norm(x))
        x = x + factor * torch.softmax(h @ h.mT, -1) @ h
        x = x + self.down(torch.tanh(self.up(self.norm(x))))
        x = x if beside is None else x + beside
        return x if self.inner is None else x + self.inner(x)


class Model(nn.Module):
    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(V, W)
        self.layers = nn.ModuleList(blocks)

    def forward(self, ids: Tensor) -> Tensor:
        x = embedding(ids, self.embed.weight)
        for layer in self.layers:
            x = layer(x, 0.5, beside=x * 0.1)
        return linear(x, self.embed.weight)


def without_entries(model: nn.Module, copied: bool = False) -> nn.Module:
    """Replace the matrices of a module; tied ones stay tied."""
    bases = Bases(copied)
    for name, parameter in list(model.named_parameters()):
        if parameter.dim() > 1:
            new = made(*parameter.shape, name=name, bases=bases, room=0).parameter
            for part in model.modules():
                for key, value in part._parameters.items():
                    if value is parameter:
                        part._parameters[key] = new
    return model


def model(count: int = 4) -> nn.Module:
    return without_entries(Model([Block() for _ in range(count)]))


def run(of: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """The logits, and the gradient of every parameter, written out."""
    parameters = dict(of.named_parameters())
    logits = of(IDS)
    loss = cross_entropy(logits.flatten(0, 1), IDS.flatten())
    with thin_products(parameters.values()):
        found = torch.autograd.grad(loss, list(parameters.values()))
    written = [g.value.entries() if isinstance(g, Lazy) and isinstance(g.value, Gradient) else g for g in found]
    return logits.detach(), dict(zip(parameters, written, strict=True))


def right_or_refused(model: nn.Module, logits: Tensor, gradients: dict[str, Tensor]) -> None:
    """Run a model block by block: it gives these numbers, or says that it can't."""
    try:
        with in_blocks(model):
            found, found_gradients = run(model)
    except AskedAgainError:
        return
    close(found, logits, 1e-9)
    for name, gradient in gradients.items():
        close(found_gradients[name], gradient, 1e-9, name)


def test_blocks_give_what_the_whole_gives() -> None:
    logits, gradients = run(model())
    lean = model()
    with in_blocks(lean):
        lean_logits, lean_gradients = run(lean)
        again, _ = run(lean)  # a second forward begins anew
    assert torch.equal(lean_logits, logits)
    assert torch.equal(again, logits)
    assert gradients.keys() == lean_gradients.keys()
    for name, gradient in gradients.items():
        assert float(gradient.abs().max()) > 0, name
        close(lean_gradients[name], gradient, 1e-9, name)


def test_without_gradients() -> None:
    whole, lean = model(), model()
    with torch.no_grad():
        logits = whole(IDS)
        with in_blocks(lean):
            assert torch.equal(lean(IDS), logits)
            asked = {name: source.asked for name, source in sources_of(lean).items()}
    assert asked.pop("embed.weight"), "what belongs to no block is kept"
    assert not any(asked.values()), "blocks forget"


class Holding(Block):
    """Notes, whenever it begins, how many of the activations that it and its like have made are alive."""

    made: list[weakref.ref[Tensor]]
    alive: list[int]

    def forward(self, x: Tensor, factor: float = 1.0, *, beside: Tensor | None = None) -> Tensor:
        self.alive.append(sum(one() is not None for one in self.made))
        h = torch.tanh(self.mix(x))
        self.made.append(weakref.ref(h))
        return x + self.down(torch.tanh(self.up(h)))


@pytest.mark.parametrize("lean", [False, True])
def test_what_a_block_keeps_is_dropped(lean: bool) -> None:
    """Activations die with the forward of their block; in the backward, those of one block at a time live again."""
    Holding.made, Holding.alive = [], []
    whole = without_entries(Model([Holding() for _ in range(4)]))
    with in_blocks(whole) if lean else nullcontext():
        loss = cross_entropy(whole(IDS).flatten(0, 1), IDS.flatten())
        if not lean:
            assert Holding.alive == [0, 1, 2, 3], "the test sees what a graph holds"
            return
        assert Holding.alive == [0, 0, 0, 0]
        of = [p for name, p in whole.named_parameters() if "norm" not in name]
        with thin_products(of):
            torch.autograd.grad(loss, of)
    backward = Holding.alive[4:]
    assert len(backward) == 4 and max(backward) <= 1, backward


@pytest.mark.parametrize("how", ["twice", "in the list twice", "its part in another block"])
def test_blocks_that_share(how: str) -> None:
    """Answers that were forgotten must not be given again for other questions: refused, or kept and right."""
    if how == "twice":
        blocks: list[nn.Module] = [Block(), Block()]
    elif how == "in the list twice":
        blocks = [Block()] * 2
    else:
        shared = nn.Linear(W, W, bias=False)
        blocks = [Block(shared), Block(shared), Block(shared)]
    torch.manual_seed(0)
    whole = without_entries(Model(blocks))
    if how == "twice":

        def twice(ids: Tensor) -> Tensor:
            x = embedding(ids, whole.embed.weight)
            for layer in (*whole.layers, *whole.layers):  # type: ignore[misc]
                x = layer(x)
            return linear(x, whole.embed.weight)

        whole.forward = twice
    logits, gradients = run(whole)
    for source in sources_of(whole).values():
        source.forget()
        source.bases.forget()
    try:
        with in_blocks(whole):
            found, found_gradients = run(whole)
    except AskedAgainError:
        assert how != "its part in another block"
        return
    assert how == "its part in another block", "asked again, and not noticed"
    close(found, logits, 1e-9)
    for name, gradient in gradients.items():
        close(found_gradients[name], gradient, 1e-9, name)


def test_a_weight_of_a_block_that_is_used_outside() -> None:
    """Regularisers, and parents that call a part of a block themselves."""

    class Outside(Model):
        def forward(self, ids: Tensor) -> Tensor:
            x = embedding(ids, self.embed.weight)
            x = x + self.layers[0].mix(x)  # type: ignore[operator, union-attr]
            for layer in self.layers:
                x = layer(x)
            return linear(x, self.embed.weight)

    whole = without_entries(Outside([Block(), Block()]))
    logits, gradients = run(whole)
    lean = without_entries(Outside([Block(), Block()]))
    right_or_refused(lean, logits, gradients)


def test_a_block_that_writes_into_its_input() -> None:
    """Run again, it would begin with what it has left behind: refused, or right."""

    class Writes(Block):
        def forward(self, x: Tensor, factor: float = 1.0, *, beside: Tensor | None = None) -> Tensor:
            x += torch.tanh(self.mix(x.cos()))
            return x + torch.tanh(self.mix(x * 2))

    whole = without_entries(Model([Writes(), Writes()]), copied=True)
    whole.forward = lambda ids: linear(  # type: ignore[method-assign, assignment]
        whole.layers[1](whole.layers[0](embedding(ids, whole.embed.weight) * 1)),
        whole.embed.weight,  # type: ignore
    )
    try:
        logits, gradients = run(whole)
    except RuntimeError as error:
        assert "modified by an inplace operation" in str(error)  # torch itself refuses what can't be right
        return
    for source in sources_of(whole).values():
        source.forget()
        source.bases.forget()
    right_or_refused(whole, logits, gradients)


def fails(*_: Any, **__: Any) -> Any:
    raise ValueError("from the module")


@pytest.mark.parametrize("failing", [None, "block", "model", "caller"])
def test_nothing_is_left_behind(failing: str | None) -> None:
    whole = model()
    own: Callable[..., Any] = whole.layers[1].forward  # type: ignore[union-attr, index]
    whole.layers[1].forward = fails if failing == "block" else own  # type: ignore[union-attr, index]
    mine = vars(whole.layers[1])["forward"]  # type: ignore[index]
    if failing == "model":
        whole.layers = nn.ModuleList()
        whole.layers.append(nn.Identity())
    before = [dict(vars(part)) for part in whole.modules()]
    try:
        with in_blocks(whole):
            if failing == "caller":
                fails()
            whole(IDS)
    except (ValueError, TypeError):
        assert failing is not None
    after = [dict(vars(part)) for part in whole.modules()]
    for one, two in zip(before, after, strict=True):
        assert one.keys() == two.keys(), "a method that somebody has put on a module stays"
    if failing != "model":
        assert vars(whole.layers[1])["forward"] is mine  # type: ignore[index]
    assert not any(source.asked for source in sources_of(whole).values())


def test_a_product_of_activations_in_a_block_that_looks_like_a_gradient() -> None:
    """Eight tokens by W is the shape of a weight: a forward that a backward runs again must not keep it thin."""

    class Narrow(Block):
        def __init__(self) -> None:
            super().__init__()
            self.odd = nn.Linear(W, 8, bias=False)  # (8, W)
            self.small = nn.Parameter(torch.ones(2, W, dtype=torch.float64))

        def forward(self, x: Tensor, factor: float = 1.0, *, beside: Tensor | None = None) -> Tensor:
            flat = x.flatten(0, 1)  # (8, W)
            thin = self.odd(flat)[:, :2] @ (self.small * 0.1)  # (8, 2) @ (2, W)
            return x + torch.sin(thin).view_as(x) + torch.tanh(self.mix(x))

    def build() -> nn.Module:
        built = Model([Narrow(), Narrow()])
        small = [(part, part._parameters.pop("small")) for part in built.layers]
        without_entries(built)
        for part, parameter in small:
            part.register_parameter("small", parameter)
        return built

    logits, gradients = run_used(build())
    lean = build()
    with in_blocks(lean):
        found, found_gradients = run_used(lean)
    close(found, logits, 1e-9)
    for name, gradient in gradients.items():
        close(found_gradients[name], gradient, 1e-9, name)


def run_used(of: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
    """As `run`, of parameters that the loss depends on."""
    parameters = {name: p for name, p in of.named_parameters() if not any(s in name for s in ("norm", "up", "down"))}
    logits = of(IDS)
    with thin_products(parameters.values()):
        found = torch.autograd.grad(cross_entropy(logits.flatten(0, 1), IDS.flatten()), list(parameters.values()))
    written = [g.value.entries() if isinstance(g, Lazy) and isinstance(g.value, Gradient) else g for g in found]
    return logits.detach(), dict(zip(parameters, written, strict=True))


def test_which_blocks_are_stacked() -> None:
    whole = model(3)
    assert stacked(whole) == list(whole.layers)  # type: ignore[arg-type]
    assert set(sources_of(whole)) == {name for name, p in whole.named_parameters() if p.dim() > 1}
    assert stacked(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))) == []
