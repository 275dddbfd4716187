"""One backward: the norm of the gradient of every parameter and of every branch, taken the moment it exists.

No gradient is kept and no `.grad` is touched: a hook takes the norm of a parameter's gradient and hands a zero that
needs no memory on to autograd, so that the gradients of a model never exist all at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction

from initdiag.measure.lens_values import GradientMeasure
from initdiag.measure.statistics import BLOCK, widened
from initdiag.measure.values import total
from initdiag.weightless.factors import Gradient
from initdiag.weightless.gradients import thin_products
from initdiag.weightless.lazy import Lazy

CHUNK = 2**20  # logits whose softmax is held at a time

NORM_FITS = 1e-15  # below this norm the squares of float32 begin to vanish


def norm(x: Tensor) -> float:
    """Return ‖x‖₂, accumulated in float32 blocks whose squares add up in float64; 0 only where every entry is 0."""
    if isinstance(x, Lazy) and isinstance(x.value, Gradient):
        return x.value.norm()
    x = x.coalesce().values() if x.is_sparse else x
    blocks = x.detach().reshape(-1).split(BLOCK)
    found = _norm(blocks, widened)
    if not NORM_FITS <= found < math.inf and x.device.type != "mps":  # which has no float64
        found = _norm(blocks, Tensor.double)
    return math.ulp(0.0) if found == 0 and bool(x.any()) else found


def _norm(blocks: tuple[Tensor, ...], widen: Callable[[Tensor], Tensor]) -> float:
    norms = [float(torch.linalg.vector_norm(widen(block))) for block in blocks]
    return math.sqrt(total(one * one for one in norms))


class BranchGradients:
    """Norms of ∂ loss/∂ branch, by the index of the branch.

    after = keep·before + branch, so the gradient of the branch is that of `after`. While an operation is dispatched
    its result has no grad_fn yet: `watch` it then, and `attach` when the next operation is dispatched or the forward
    is over, before anything is written into it in place. The hook sits on the grad_fn of that moment, which a later
    `x += f` leaves as it is.
    """

    def __init__(self) -> None:
        self.norms: dict[int, float] = {}
        self._pending: list[tuple[int, Tensor]] = []

    def watch(self, index: int, after: Tensor) -> None:
        """Remember the stream (B, T, d_model) after branch `index` until the next `attach`."""
        self._pending.append((index, after))

    def attach(self) -> None:
        """Hook what was watched. What needs no gradient (frozen, under no_grad) gets no norm.

        Inside a custom autograd function (gradients off) nothing has a grad_fn; what it returns has one later, so
        such tensors wait.
        """
        waiting = []
        for index, after in self._pending:
            if after.grad_fn is not None:
                self._hook(index, after.grad_fn, after.output_nr)
            elif not torch.is_grad_enabled():
                waiting.append((index, after))
        self._pending = waiting

    def _hook(self, index: int, node: Any, output: int) -> None:
        self.norms[index] = 0.0  # a gradient that never arrives is zero

        def note(gradients: tuple[Tensor | None, ...]) -> None:
            gradient = gradients[output]
            if gradient is not None:
                self.norms[index] = norm(gradient)

        node.register_prehook(note)


def backward(loss: Tensor, module: nn.Module) -> GradientMeasure:
    """Run the backward of a scalar loss, whose graph is freed, and return what the trainable parameters get.

    Every `.grad` stays the object that it was. A parameter that the loss does not depend on is in `zero` and has no
    entry in `norms`; a tied one is there once, with the gradient of all its uses.
    """
    named = module.named_parameters()
    trainable = {name: parameter for name, parameter in named if parameter.requires_grad and parameter.numel()}
    found: dict[str, float] = {}
    if trainable and loss.requires_grad:
        run = _accumulated if _runs_python(loss) else _captured
        with thin_products(trainable.values()):
            run(loss, trainable, lambda name, gradient: found.__setitem__(name, norm(gradient)))
    norms = tuple((name, found[name]) for name in trainable if name in found)
    return GradientMeasure(
        norms=norms,
        not_finite=tuple(name for name, value in norms if not math.isfinite(value)),
        zero=tuple(name for name in trainable if found.get(name, 0.0) == 0),
    )


def _captured(loss: Tensor, parameters: dict[str, nn.Parameter], note: Callable[[str, Tensor], None]) -> None:
    """Take each gradient, summed over all uses, as autograd hands it over, and keep none of them."""

    def hook(name: str) -> Callable[[Tensor], Tensor | None]:
        def taken(gradient: Tensor) -> Tensor | None:
            note(name, gradient)
            return None if gradient.is_sparse else gradient.new_zeros(()).expand(gradient.shape)

        return taken

    handles = [parameter.register_hook(hook(name)) for name, parameter in parameters.items()]
    try:
        torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()


def _accumulated(loss: Tensor, parameters: dict[str, nn.Parameter], note: Callable[[str, Tensor], None]) -> None:
    """Let gradients accumulate as training does: a backward in Python may run a backward of its own, which
    torch.autograd.grad doesn't reach (re-entrant checkpoints refuse it)."""
    with _set_aside(list(parameters.values())):
        loss.backward()
        for name, parameter in parameters.items():
            if parameter.grad is not None:
                note(name, parameter.grad)


@contextmanager
def _set_aside(parameters: list[nn.Parameter]) -> Iterator[None]:
    """Put .grad away, and the hooks that would act on it (an optimizer's step in backward), and bring them back."""
    grads = [parameter.grad for parameter in parameters]
    hooks = [getattr(parameter, "_post_accumulate_grad_hooks", None) or {} for parameter in parameters]
    kept = [dict(own) for own in hooks]
    try:
        for parameter, own in zip(parameters, hooks, strict=True):
            parameter.grad = None
            own.clear()
        yield
    finally:
        for parameter, grad, own, before in zip(parameters, grads, hooks, kept, strict=True):
            parameter.grad = grad
            own.update(before)


def _runs_python(loss: Tensor) -> bool:
    """Whether the graph has a backward written in Python, other than ours."""
    seen, todo = set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        if isinstance(node, BackwardCFunction) and not isinstance(node, _MeanCrossEntropy._backward_cls):
            return True
        seen.add(node)
        todo += [following for following, _ in node.next_functions]
    return False


def mean_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy in nats, a float32 (or wider) scalar, with a graph.

    Softmax and its gradient are computed a chunk at a time: besides the logits (B, T, V) and, in the backward, their
    gradient, nothing of that size exists.

    Args:
        logits: (B, T, V), of any floating dtype. targets: (B, T), int64.
    """
    loss: Tensor = _MeanCrossEntropy.apply(logits, targets)  # type: ignore[no-untyped-call]
    return loss


class _MeanCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        sums = logits.new_empty(targets.shape, dtype=torch.promote_types(logits.dtype, torch.float32))
        losses = torch.empty_like(sums)
        for at in _chunks(logits):
            rows = widened(logits[at])
            sums[at] = rows.logsumexp(-1)
            losses[at] = sums[at] - rows.gather(-1, targets[at].unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(logits, targets, sums)
        return losses.mean()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """∂/∂ logits = (softmax − one-hot)/(B·T)."""
        logits, targets, sums = ctx.saved_tensors
        scale = grads[0] / targets.numel()
        gradient = torch.empty_like(logits)
        for at in _chunks(logits):
            rows = (widened(logits[at]) - sums[at].unsqueeze(-1)).exp_()
            rows.scatter_add_(-1, targets[at].unsqueeze(-1), rows.new_full((len(rows), 1), -1.0))
            gradient[at] = rows.mul_(scale)
        return gradient, None


def _chunks(logits: Tensor) -> Iterator[tuple[int, slice]]:
    """Index (sequence, some positions), at most CHUNK logits or one position each; works on views without a copy."""
    batch, length, vocab_size = logits.shape
    step = max(1, CHUNK // vocab_size)
    for row in range(batch):
        for start in range(0, length, step):
            yield row, slice(start, start + step)
