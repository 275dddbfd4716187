"""Steps of the small GPT's init function, healthy and faulty, and losses that a model may bring along.

Each step works in place on the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpt_parts import STD, Attention, Mlp, RMSNorm, Rotary
from benchmarks.small_gpt import GPT, Step


def mlps(model: GPT) -> list[Mlp]:
    return [module for module in model.modules() if isinstance(module, Mlp)]


def attentions(model: GPT) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]


def normal(model: GPT, std: float = STD) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            module.weight.normal_(std=std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, RMSNorm):
            module.weight.fill_(1.0 - module.offset)


def linears_only(model: GPT) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.weight.normal_(std=STD)


def torch_defaults(model: GPT) -> None:
    """Leave everything as nn.Linear and nn.Embedding made it."""


def redraw(*names: str, std: float) -> Step:
    """Draw the matrices of a name again, as "attention.out" in every block."""

    def step(model: GPT) -> None:
        for name, parameter in model.named_parameters():
            if f".{name}".endswith(tuple(f".{ending}.weight" for ending in names)):
                parameter.normal_(std=std)

    return step


def residual_projections(model: GPT) -> list[Tensor]:
    """Return the matrices that write into the stream."""
    return [module.out.weight for module in model.modules() if isinstance(module, Attention | Mlp)]


def scaled(model: GPT) -> None:
    for weight in residual_projections(model):
        weight.normal_(std=STD / math.sqrt(2 * model.shape.n_layers))


def scaled_twice(model: GPT) -> None:
    for weight in residual_projections(model):
        weight.normal_(std=STD / (2 * model.shape.n_layers))


def scaled_in_place(model: GPT) -> None:
    for weight in residual_projections(model):
        weight.mul_(1 / math.sqrt(2 * model.shape.n_layers))


def normal_but_out(model: GPT) -> None:
    """Draw everything but the residual projections, which keep what nn.Linear gave them."""
    kept = {id(weight) for weight in residual_projections(model)}
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding) and id(module.weight) not in kept:
            module.weight.normal_(std=STD)


def equal_blocks(model: GPT) -> None:
    for block in model.blocks[1:]:
        block.load_state_dict(model.blocks[0].state_dict())


def equal_experts(model: GPT) -> None:
    for block in model.blocks:
        for expert in block.mlp.experts[1:]:
            expert.load_state_dict(block.mlp.experts[0].state_dict())


def equal_halves(model: GPT) -> None:
    for mlp in mlps(model):
        half = mlp.up.weight.shape[0] // 2
        mlp.up.weight[half:] = mlp.up.weight[:half]


def gate_is_up(model: GPT) -> None:
    for mlp in mlps(model):
        mlp.gate.weight.copy_(mlp.up.weight)


def scaled_copy(model: GPT) -> None:
    model.blocks[5].mlp.up.weight.copy_(0.5 * model.blocks[2].mlp.up.weight)


def fill_scales(value: float) -> Step:
    def step(model: GPT) -> None:
        for block in model.blocks:
            block.scale.fill_(value)

    return step


def recompute_frequencies(model: GPT) -> None:
    for module in model.modules():
        if isinstance(module, Rotary):
            module.inv_freq.copy_(module.frequencies())


def zero_frequencies(model: GPT) -> None:
    for module in model.modules():
        if isinstance(module, Rotary):
            module.inv_freq.zero_()


def truncated(dtype: torch.dtype) -> Step:
    """Draw as nn.init.trunc_normal_ did, with its bounds at ±2: in bfloat16 the uniform hits −1, and erfinv is −∞."""

    def step(model: GPT) -> None:
        for mlp in mlps(model):
            drawn = torch.empty(mlp.up.weight.shape, dtype=dtype).uniform_(-1, 1).erfinv_().mul_(STD * math.sqrt(2))
            mlp.up.weight.copy_(drawn.clamp_(-2, 2))

    return step


def uniform(low: float) -> Step:
    def step(model: GPT) -> None:
        for mlp in mlps(model):
            mlp.up.weight.uniform_(low, STD * math.sqrt(3))

    return step


def outlier(model: GPT) -> None:
    for mlp in mlps(model):
        mlp.up.weight[3, 5] = 1.0


def heavy_tails(model: GPT) -> None:
    for mlp in mlps(model):
        mlp.up.weight.cauchy_(0, STD).clamp_(-2, 2)


def zero(*names: str) -> Step:
    """Set to zero the parameters of these names, or whose paths end in them."""

    def step(model: GPT) -> None:
        for name, parameter in model.named_parameters():
            if f".{name}".endswith(tuple(f".{ending}" for ending in names)):
                parameter.zero_()

    return step


def constant_up(model: GPT) -> None:
    for mlp in mlps(model):
        mlp.up.weight.fill_(STD)


def rank_one(model: GPT) -> None:
    for attention in attentions(model):
        rows, columns = attention.value.weight.shape
        attention.value.weight.copy_(STD * torch.outer(torch.randn(rows), torch.randn(columns)))


def gains_of_one(model: GPT) -> None:
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.weight.fill_(1.0)


def table_of_zeros(model: GPT) -> None:
    for block in model.blocks:
        block.mlp.table.zero_()


def zero_routers(model: GPT) -> None:
    """All logits of the router tie, and topk resolves every tie alike: all tokens go to the same two experts."""
    for block in model.blocks:
        block.mlp.router.weight.zero_()


HEALTHY: tuple[Step, ...] = (normal, scaled)


# --- losses of their own

Loss = Callable[[Tensor, Tensor], Tensor]


def moved(shift: int, reduction: str = "mean", **arguments: Any) -> Loss:
    """Return the cross-entropy of the logits with the ids that stand `shift` places later."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        kept = logits[:, : logits.shape[1] - shift].flatten(0, 1)
        return F.cross_entropy(kept, labels[:, shift:].flatten(), reduction=reduction, **arguments)

    return loss


def plus(coefficient: float, term: Loss) -> Loss:
    """Return the loss for the next token with a further term, as mixtures and second heads have."""
    return lambda logits, labels: moved(1)(logits, labels) + coefficient * term(logits, labels)


def z_loss(logits: Tensor, _: Tensor) -> Tensor:
    return logits.logsumexp(-1).square().mean()
