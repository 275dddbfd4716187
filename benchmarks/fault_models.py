"""Small models that have every fault of initialization, their healthy twins, and designs that only look faulty.

One hand-written GPT of 6 layers, in plain torch, is varied by small functions: wirings (`join`s), losses, and steps of
its init function. The models run on random tokens in well below half a second. `TWINS` are for tests/faults and
benchmarks/faults.py, which prints the detection matrix; `TRAPS` are legitimate designs. The numbers of kinds and traps
(K1, T1) are those of facts/faults.md. A faulty model and its healthy twin differ by the fault alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

STD = 0.02
VOCAB_SIZE = 1000

# --- the model


@dataclass(frozen=True)
class Shape:
    """Sizes and switches of the model; the defaults are the healthy pre-norm decoder that most twins start from."""

    vocab_size: int = VOCAB_SIZE
    context: int = 256
    d_model: int = 64
    n_heads: int = 4
    n_layers: int = 6
    tied: bool = False
    positions: str = "learned"  # or "rotary", "none"
    causal: bool = True
    diagonal: int = 0  # of the causal mask: 1 lets every token see the next one
    unmasked_layer: int | None = None
    attention_scale: float | None = None
    norm_offset: float = 0.0  # 1 for gains that are stored as w and used as 1 + w
    final_norm: bool = True
    gated: bool = False
    squared_relu: bool = False
    experts: int = 0
    routed_by_table: bool = False
    extra: str = ""  # learned factors of the branches: "vector" (LayerScale) or "scalar" (ReZero)
    shared: bool = False
    dropout: float = 0.0
    head_bias: bool = False
    padded_rows: int = 0
    masked: bool = False  # the padded rows get logits of −inf
    embedding_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    softcap: float = 0.0
    low_rank: int = 0  # LoRA on queries and values
    declares_std: bool = False


class RMSNorm(nn.Module):
    def __init__(self, size: int, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 1.0 - offset))
        self.offset = offset

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return normed.to(x.dtype) * (self.offset + self.weight)


class Rotary(nn.Module):
    inv_freq: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.register_buffer("inv_freq", self.frequencies(), persistent=False)

    def frequencies(self) -> Tensor:
        return 10_000.0 ** (-torch.arange(0, self.head_dim, 2).float() / self.head_dim)

    def forward(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[-2], device=x.device)[:, None] * self.inv_freq
        (first, second), cos, sin = x.chunk(2, -1), angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class LowRank(nn.Linear):
    """LoRA: a frozen matrix and a product of two thin ones, the second of which starts at zero."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.weight.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, inputs) / math.sqrt(inputs))
        self.lora_b = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x @ self.lora_a.T @ self.lora_b.T


class Attention(nn.Module):
    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        d = shape.d_model
        linear = partial(LowRank, rank=shape.low_rank) if shape.low_rank else partial(nn.Linear, bias=False)
        self.query, self.value = linear(d, d), linear(d, d)
        self.key, self.out = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.shape = shape
        self.causal = shape.causal and index != shape.unmasked_layer
        self.rotary = Rotary(d // shape.n_heads) if shape.positions == "rotary" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        shape, (length, width) = self.shape, x.shape[-2:]
        query, key, value = (
            project(x).unflatten(-1, (shape.n_heads, -1)).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        query, key = self.rotary(query), self.rotary(key)
        ones = torch.ones(length, length, dtype=torch.bool, device=x.device)
        mask = ones.tril(shape.diagonal) if self.causal and shape.diagonal else None
        mixed = F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=self.causal and mask is None, scale=shape.attention_scale
        )
        return self.out(mixed.transpose(1, 2).reshape(-1, length, width))


class Mlp(nn.Module):
    def __init__(self, shape: Shape, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(shape.d_model, hidden, bias=False)
        self.out = nn.Linear(hidden, shape.d_model, bias=False)
        self.gate = nn.Linear(shape.d_model, hidden, bias=False) if shape.gated else None
        self.act = (lambda u: F.relu(u).square()) if shape.squared_relu else F.gelu

    def forward(self, x: Tensor, _: Tensor | None = None) -> Tensor:
        hidden = self.act(self.up(x)) if self.gate is None else self.act(self.gate(x)) * self.up(x)
        return self.out(hidden)


class Mixture(nn.Module):
    """Experts of which each token takes two by a learned router, or one by a table of its id (hash routing)."""

    table: Tensor

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.experts = nn.ModuleList(Mlp(shape, shape.d_model) for _ in range(shape.experts))
        self.router = None if shape.routed_by_table else nn.Linear(shape.d_model, shape.experts, bias=False)
        if self.router is None:
            self.register_buffer("table", torch.arange(shape.vocab_size) % shape.experts)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        flat = x.flatten(0, 1)
        if self.router is None:
            chosen = self.table[ids].flatten()[:, None]
            weights = torch.ones_like(chosen, dtype=x.dtype)
        else:
            weights, chosen = self.router(flat).softmax(-1).topk(2, -1)
            weights = weights / weights.sum(-1, keepdim=True)
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            tokens, rank = torch.where(chosen == number)
            mixed.index_add_(0, tokens, expert(flat[tokens]) * weights[tokens, rank, None])
        return mixed.view_as(x)


Join = Callable[["Block", Tensor, nn.Module, Callable[[Tensor], Tensor]], Tensor]


class Block(nn.Module):
    def __init__(self, shape: Shape, index: int, join: Join) -> None:
        super().__init__()
        self.index, self.join = index, join
        self.attention = Attention(shape, index)
        self.mlp = Mixture(shape) if shape.experts else Mlp(shape, 4 * shape.d_model)
        self.attention_norm, self.mlp_norm, self.attention_out_norm, self.mlp_out_norm = (
            RMSNorm(shape.d_model, shape.norm_offset) if join is sandwich or i < 2 else None for i in range(4)
        )
        if shape.extra:  # as many write it: memory first, numbers in the init function
            self.scale = nn.Parameter(torch.empty(shape.d_model if shape.extra == "vector" else 1))
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        x = self.join(self, x, self.attention_norm, lambda y: self.dropout(self.attention(y)))
        return self.join(self, x, self.mlp_norm, lambda y: self.dropout(self.mlp(y, ids)))


class GPT(nn.Module):
    """ids (B, T) -> logits (B, T, V); `init_weights()` is its init function, `steps` are what that does in turn."""

    def __init__(self, shape: Shape, join: Join, steps: tuple[Step, ...]) -> None:
        super().__init__()
        rows = shape.vocab_size + shape.padded_rows
        self.shape, self.steps = shape, steps
        self.config = SimpleNamespace(vocab_size=rows, max_position_embeddings=shape.context)
        if shape.tied:  # the others say nothing, as hand-written models do
            self.config.tie_word_embeddings = True
        if shape.embedding_multiplier != 1:
            self.config.embedding_multiplier = shape.embedding_multiplier
        if shape.declares_std:
            self.config.initializer_range = STD
        self.tokens = nn.Embedding(rows, shape.d_model)
        self.positions = nn.Embedding(shape.context, shape.d_model) if shape.positions == "learned" else None
        blocks = [Block(shape, i, join) for i in range(1 if shape.shared else shape.n_layers)]
        self.blocks = nn.ModuleList(blocks * shape.n_layers if shape.shared else blocks)
        self.norm = RMSNorm(shape.d_model, shape.norm_offset) if shape.final_norm else nn.Identity()
        self.head = nn.Linear(shape.d_model, rows, bias=shape.head_bias)
        self.tie_weights()
        self.init_weights()

    def tie_weights(self) -> None:
        if self.shape.tied:
            self.head.weight = self.tokens.weight

    @torch.no_grad()
    def init_weights(self) -> None:
        for step in self.steps:
            step(self)

    def embed(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) * self.shape.embedding_multiplier
        return x if self.positions is None else x + self.positions(torch.arange(ids.shape[1], device=ids.device))

    def states(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, ids)
        return self.norm(x)

    def logits(self, states: Tensor) -> Tensor:
        logits = self.head(states) * self.shape.logit_multiplier
        if self.shape.softcap:
            logits = self.shape.softcap * torch.tanh(logits / self.shape.softcap)
        if self.shape.masked:
            logits = logits.index_fill(-1, torch.arange(self.shape.vocab_size, logits.shape[-1]), -math.inf)
        return logits

    def forward(self, ids: Tensor) -> Tensor:
        return self.logits(self.states(ids))


class WithLabels(GPT):
    """As in Hugging Face: `labels` are the ids themselves, and the model moves them by one."""

    loss: Callable[[Tensor, Tensor], Tensor]

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(ids)
        return (logits, None if labels is None else self.loss(logits, labels))


class WithTargets(GPT):
    """As in nanoGPT: `targets` have been moved by one already."""

    loss: Callable[[Tensor, Tensor], Tensor]

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> Any:
        logits = super().forward(ids)
        return (logits, None if targets is None else self.loss(logits, targets))


# --- ways to join a branch with the stream


def pre_norm(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return x + f(norm(x))


def normed_stream(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    x = norm(x)  # K12: the stream itself is overwritten
    return x + f(x)


def lost_skip(block: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    skipped = block.index == 3 and norm is block.mlp_norm
    return f(norm(x)) if skipped else x + f(norm(x))


def detached_skip(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return x.detach() + f(norm(x))


def post_norm(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return norm(x + f(x))


def deep_norm(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return norm((2 * 6) ** 0.25 * x + f(x))  # arXiv 2203.00555, decoder-only


def sandwich(block: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    after = block.attention_out_norm if norm is block.attention_norm else block.mlp_out_norm
    return x + after(f(norm(x)))


def reordered_norm(_: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return x + norm(f(x))


def scaled_branch(block: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return x + block.scale * f(norm(x))


class Amplify(torch.autograd.Function):
    """The identity, whose backward multiplies: as an all-reduce does that runs once too often."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0] * ctx.factor, None


def amplified_everywhere(block: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return pre_norm(block, Amplify.apply(x, 4.0) if norm is block.attention_norm else x, norm, f)


def amplified_once(block: Block, x: Tensor, norm: nn.Module, f: Callable[[Tensor], Tensor]) -> Tensor:
    return pre_norm(block, Amplify.apply(x, 10.0) if block.index == 4 and norm is block.mlp_norm else x, norm, f)


# --- steps of the init function; each works in place on the whole model

Step = Callable[[GPT], None]


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


# --- the whole

HEALTHY: tuple[Step, ...] = (normal, scaled)


def build(
    *damages: Step,
    init: tuple[Step, ...] = HEALTHY,
    seed: int = 0,
    join: Join = pre_norm,
    kind: type[GPT] = GPT,
    loss: Loss | None = None,
    on_meta: bool = False,
    tied_again: bool = False,
    dtype: torch.dtype = torch.float32,
    training: bool = False,
    **shape: Any,
) -> GPT:
    """Build a model whose init function is `init` and then `damages`; the caller's random state stays as it is.

    Args:
        on_meta: as large models are: built on the meta device, given memory by to_empty, then initialised.
        tied_again: with on_meta, whether the tie that to_empty loses is made again.
        shape: fields of Shape.
    """
    steps = (*init, *damages)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if on_meta:
            with torch.device("meta"):
                model = kind(Shape(**shape), join, steps)
            model.to_empty(device="cpu")
            if tied_again:
                model.tie_weights()
            model.init_weights()
        else:
            model = kind(Shape(**shape), join, steps)
    if loss is not None:
        model.loss = loss
    return model.to(dtype).train(training)


Factory = Callable[..., nn.Module]


def hugging_face(name: str, sizes: Mapping[str, Any], seed: int = 0) -> nn.Module:
    """Build a class of transformers, "Gemma:ForCausalLM", at a small size from its own config class."""
    import transformers

    family, head = name.split(":")
    config = getattr(transformers, f"{family}Config")(**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = getattr(transformers, family + head)(config)
    return model.eval()


def hf(name: str, **sizes: Any) -> Factory:
    common = {"vocab_size": VOCAB_SIZE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return partial(hugging_face, name, {**common, **sizes})


SMALL = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256}


def small_llama(seed: int = 0, loss: Callable[..., Tensor] | None = None) -> nn.Module:
    model = hf("Llama:ForCausalLM", **SMALL, num_key_value_heads=2)(seed=seed)
    if loss is not None:
        model.loss_function = loss
    return model


def in_place_loss(logits: Tensor, labels: Tensor, vocab_size: int, **_: Any) -> Tensor:
    """The loss of a masked language model, which moves nothing, in a causal one: `loss_type` set wrongly."""
    return F.cross_entropy(logits.float().view(-1, vocab_size), labels.view(-1))


@dataclass(frozen=True)
class Twin:
    """A fault and its healthy twin; both factories take a seed.

    rules: ids of which one at least must speak about the faulty model. severity: the least it must have.
    watched: the factory is to be checked, not the module, since the fault shows while it is built.
    """

    faulty: Factory
    healthy: Factory
    rules: tuple[str, ...]
    severity: str = "error"
    watched: bool = False
    backward: bool = False


PLAIN: Factory = partial(build)


def twin(*rules: str, faulty: Any = (), healthy: Any = (), both: Mapping[str, Any] | None = None, **how: Any) -> Twin:
    """Make a Twin: `faulty` and `healthy` are the damages of either, or arguments of build; `both` are of both.

    Twins whose model is the plain one share its factory.
    """

    def factory(what: Any) -> Factory:
        arguments = dict(both or {})
        if isinstance(what, Mapping):
            arguments |= what
            what = ()
        damages = what if isinstance(what, tuple) else (what,)
        return partial(build, *damages, **arguments) if damages or arguments else PLAIN

    return Twin(factory(faulty), factory(healthy), rules, **how)


ROTARY = {"positions": "rotary"}
MIXTURE = {"experts": 8, "n_layers": 3}
TIED_ON_META = {"tied": True, "on_meta": True}
LABELS = {"kind": WithLabels}
TARGETS = {"kind": WithTargets}
OWN_LOSS = {"loss": moved(1)}

TWINS: dict[str, Twin] = {
    "K1 head drawn with std 1": twin("LOGIT001", faulty=redraw("head", std=1.0)),
    "K2 head takes an N(1) table": twin(
        "LOGIT002",
        faulty=(lambda model: setattr(model.head, "weight", model.tokens.weight),),
        healthy=(lambda model: setattr(model.tokens, "weight", model.head.weight),),
        both={"init": (torch_defaults,), **ROTARY},  # learned positions of N(1) would drown the tokens
    ),
    "K2 shared table drawn last, N(1)": twin(
        "LOGIT002", faulty=redraw("tokens", std=1.0), healthy=redraw("tokens", std=STD), both={"tied": True}
    ),
    "K3 tie lost by to_empty": twin("TIE001", healthy={"tied_again": True}, both=TIED_ON_META, watched=True),
    "K3 tie lost, module handed in": twin("TIE001", healthy={"tied_again": True}, both=TIED_ON_META),
    "K4 no scaling": twin("RES001", faulty={"init": (normal,)}, severity="warning"),
    "K4 scaled twice": twin("RES002", faulty=scaled_twice),
    "K4 wrong matrices": twin(
        "RES003", faulty={"init": (normal, redraw("query", "key", "value", "up", std=STD / 12**0.5))}
    ),
    "K4 MLP in for MLP out": twin(
        "RES003", faulty={"init": (normal, redraw("attention.out", "mlp.up", std=STD / 12**0.5))}
    ),
    "K4 attention alone": twin(
        "RES001", "RES003", faulty={"init": (normal, redraw("attention.out", std=STD / 12**0.5))}, severity="warning"
    ),
    "K5 equal blocks": twin("INIT003", faulty=equal_blocks),
    "K5 equal experts": twin("INIT003", faulty=equal_experts, both=MIXTURE),
    "K5 equal halves of a matrix": twin("INIT003", faulty=equal_halves),
    "K5 gate is a copy of up": twin("INIT003", faulty=gate_is_up, both={"gated": True}),
    "K5 a copy times 0.5": twin("INIT003", faulty=scaled_copy),
    "K6 parameter": twin(
        "INIT004", healthy=fill_scales(0.1), both={"extra": "vector", "join": scaled_branch}, watched=True
    ),
    "K6 buffer": twin("INIT004", healthy=recompute_frequencies, both={**ROTARY, "on_meta": True}, watched=True),
    "K7 init never called": twin("INIT002", faulty={"init": (torch_defaults,)}, both={"declares_std": True}),
    "K7 embeddings forgotten": twin("INIT002", faulty={"init": (linears_only, scaled)}, both={"declares_std": True}),
    "K8 bfloat16 truncated normal": twin("INIT005", faulty=truncated(torch.bfloat16), healthy=truncated(torch.float32)),
    "K8 uniform off its centre": twin("INIT005", faulty=uniform(-STD), healthy=uniform(-STD * math.sqrt(3))),
    "K8 a single outlier": twin("INIT005", faulty=outlier),
    "K8 heavy tails": twin("INIT005", faulty=heavy_tails),
    "K9 value and out both zero": twin(
        "GRAD003",
        faulty=zero("attention.value.weight", "attention.out.weight"),
        healthy=zero("attention.out.weight"),
        backward=True,
    ),
    "K9 final gain and head both zero": twin(
        "GRAD003", faulty=zero("head.weight", "norm.weight"), healthy=zero("head.weight"), backward=True
    ),
    "K10 a constant matrix": twin("INIT006", faulty=constant_up),
    "K10 a matrix of rank 1": twin("INIT006", faulty=rank_one),
    "K10 positive entries alone": twin("INIT006", faulty=uniform(0), healthy=uniform(-STD * math.sqrt(3))),
    "K11 gain 1 + w with w = 1": twin("NORM001", faulty=gains_of_one, both={"norm_offset": 1.0}),
    "K12 norm overwrites the stream": twin("RES004", faulty={"join": normed_stream}),
    "K12 a skip is missing": twin("RES004", faulty={"join": lost_skip}),
    "K13 no final norm": twin("NORM002", faulty={"final_norm": False}, severity="warning"),
    "K14 scale 1, Xavier q and k": twin(
        "ATTN001",
        faulty={"attention_scale": 1.0},
        both={"n_heads": 1, "init": (*HEALTHY, redraw("query", "key", std=64**-0.5))},
    ),
    "K15 no mask": twin("SIG001", faulty={"causal": False}),
    "K15 mask off by one": twin("SIG001", faulty={"diagonal": 1}),
    "K15 one layer without mask": twin("SIG001", faulty={"unmasked_layer": 5}),
    "K15 no mask, zero out matrices": twin(
        "SIG001", faulty={"causal": False}, both={"init": (*HEALTHY, zero("attention.out.weight", "mlp.out.weight"))}
    ),
    "K16 labels moved twice": twin("LABEL001", faulty={"loss": moved(2)}, healthy=OWN_LOSS, both=LABELS),
    # of a module of one's own, `labels` may be moved by its caller, so that this can't be more than a warning
    "K16 labels not moved": twin(
        "LABEL001", faulty={"loss": moved(0)}, healthy=OWN_LOSS, both=LABELS, severity="warning"
    ),
    "K16 targets moved again": twin("LABEL001", faulty=OWN_LOSS, healthy={"loss": moved(0)}, both=TARGETS),
    "K16 labels not moved, Llama": Twin(partial(small_llama, loss=in_place_loss), partial(small_llama), ("LABEL001",)),
    "K17 summed loss": twin("LABEL002", faulty={"loss": moved(1, "sum")}, healthy=OWN_LOSS, both=LABELS),
    "K18 token embedding of zero": twin("SIG002", faulty=zero("tokens.weight")),
    "K18 token embedding of 0.001": twin("SIG002", faulty=redraw("tokens", std=1e-3)),
    "K19 no positions": twin("SIG003", faulty={"positions": "none"}, severity="warning"),  # some mean it: NoPE
    "K19 rotary frequencies of zero": twin("SIG003", faulty=zero_frequencies, both=ROTARY),
    "K20 skip detached": twin("GRAD001", faulty={"join": detached_skip}, backward=True),
    "K20 backward × 4 in every block": twin("GRAD001", faulty={"join": amplified_everywhere}, backward=True),
    "K20 backward × 10 in one block": twin("GRAD001", faulty={"join": amplified_once}, backward=True),
    "K21 squared ReLU beyond float16": twin(
        "NUM002",
        faulty=redraw("mlp.up", std=4.0),
        both={"squared_relu": True, "dtype": torch.float16},
    ),
    "K21 attention beyond float16": twin(
        "NUM002",
        faulty=redraw("query", "key", std=3.0),
        both={"attention_scale": 1.0, "dtype": torch.float16},
    ),
    "K23 multiplied in place": twin(
        "INIT008",
        faulty={"init": (normal_but_out, scaled_in_place)},
        healthy={"init": (normal, scaled_in_place)},
        watched=True,
    ),
    "K24 route table of zeros": twin("MOE001", faulty=table_of_zeros, both={**MIXTURE, "routed_by_table": True}),
    "K24 router of zeros": twin("MOE001", faulty=zero_routers, both=MIXTURE),
}


# --- designs that only look faulty


@dataclass(frozen=True)
class Trap:
    """A legitimate design; `factory` takes a seed. forward and causal are those of initdiag.Subject."""

    factory: Factory
    vocab_size: int = VOCAB_SIZE
    backward: bool = False
    causal: bool | None = None
    forward: Callable[[nn.Module, Tensor], Any] | None = None


def trained(seed: int = 0, steps: int = 12) -> nn.Module:
    """Take some optimizer steps on ids whose frequencies are those of words."""
    model = build(seed=seed, n_layers=4, head_bias=True)
    generator = torch.Generator().manual_seed(seed)
    frequencies = 1 / torch.arange(1, VOCAB_SIZE + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        ids = torch.multinomial(frequencies, 4 * 65, replacement=True, generator=generator).view(4, 65)
        optimizer.zero_grad()
        F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model


def encoder_and_decoder(model: nn.Module, ids: Tensor) -> Any:
    return model(input_ids=ids, decoder_input_ids=ids)


def embedding_of_ones(model: GPT) -> None:
    model.tokens.weight.normal_(std=1.0)


def word_frequencies(model: GPT) -> None:
    model.head.bias.copy_(-torch.arange(1.0, model.head.out_features + 1).log())


def rows_at_the_mean(model: GPT) -> None:
    """As resize_token_embeddings does: new rows are the mean of the old ones and hardly any noise."""
    for weight in (model.tokens.weight, model.head.weight):
        old = model.shape.vocab_size
        new = weight[:old].mean(0) + 1e-6 * torch.randn(model.shape.padded_rows, weight.shape[1])
        weight[old:] = new


def rows_of_zero(model: GPT) -> None:
    for weight in (model.tokens.weight, model.head.weight):
        weight[model.shape.vocab_size :] = 0


def deep_norm_gains(model: GPT) -> None:
    for attention in attentions(model):
        for linear in (attention.value, attention.out):
            nn.init.xavier_normal_(linear.weight, gain=(8 * model.shape.n_layers) ** -0.25)
        for linear in (attention.query, attention.key):
            nn.init.xavier_normal_(linear.weight)
    for mlp in mlps(model):
        for linear in (mlp.up, mlp.out):
            nn.init.xavier_normal_(linear.weight, gain=(8 * model.shape.n_layers) ** -0.25)


WIDE = {"num_hidden_layers": 2, "hidden_size": 640, "num_attention_heads": 4, "intermediate_size": 512}
GROUPED = {"num_key_value_heads": 2, "head_dim": 32}
BRANCHES_OF_ZERO = zero("attention.out.weight", "mlp.out.weight")

TRAPS: dict[str, Trap] = {
    "T1 zero head": Trap(partial(build, zero("head.weight")), backward=True),
    "T2 zero branch outputs": Trap(partial(build, BRANCHES_OF_ZERO), backward=True),
    "T2 zero branch outputs and head": Trap(partial(build, BRANCHES_OF_ZERO, zero("head.weight")), backward=True),
    "T2 ReZero": Trap(partial(build, fill_scales(0.0), join=scaled_branch, extra="scalar"), backward=True),
    "T3 unit-variance head": Trap(partial(build, redraw("head", std=64**-0.5))),
    "T4 PyTorch's defaults": Trap(partial(build, init=(torch_defaults,)), backward=True),
    "T5 0.02 at width 768": Trap(partial(build, d_model=768, n_layers=2)),
    "T6 GPT-2": Trap(hf("GPT2:LMHeadModel", n_embd=128, n_layer=4, n_head=4, n_positions=256), backward=True),
    "T7 Gemma, tied and √d": Trap(hf("Gemma:ForCausalLM", **WIDE, **GROUPED)),
    "T7 Bloom, embedding LayerNorm": Trap(hf("Bloom:ForCausalLM", hidden_size=640, n_layer=2, n_head=4)),
    "T7 own, tied and √d": Trap(partial(build, tied=True, embedding_multiplier=640**0.5, d_model=640, n_layers=2)),
    "T8 Cohere, logits × 0.0625": Trap(hf("Cohere:ForCausalLM", **SMALL, logit_scale=0.0625)),
    "T8 logits × 6": Trap(partial(build, logit_multiplier=6.0)),
    "T9 softcap": Trap(partial(build, softcap=30.0)),
    "T10 post-norm": Trap(partial(build, join=post_norm), backward=True),
    "T11 Gemma-2": Trap(hf("Gemma2:ForCausalLM", **SMALL, **GROUPED), backward=True),
    "T11 OLMo-2": Trap(hf("Olmo2:ForCausalLM", **SMALL), backward=True),
    "T11 sandwich": Trap(partial(build, join=sandwich), backward=True),
    "T11 reordered norm": Trap(partial(build, join=reordered_norm), backward=True),
    "T12 DeepNorm": Trap(partial(build, deep_norm_gains, join=deep_norm), backward=True),
    "T13 muP": Trap(
        partial(
            build,
            embedding_of_ones,
            zero("query.weight"),
            redraw("key", "value", "attention.out", "up", std=64**-0.5),
            redraw("mlp.out", std=256**-0.5),
            attention_scale=1 / 16,
            logit_multiplier=0.5,
        ),
        backward=True,
    ),
    "T14 T5": Trap(
        hf("T5:ForConditionalGeneration", d_model=128, d_kv=32, d_ff=256, num_layers=4, decoder_start_token_id=0),
        forward=encoder_and_decoder,
    ),
    "T14 GPT-Neo": Trap(
        hf(
            "GPTNeo:ForCausalLM",
            hidden_size=128,
            num_layers=4,
            num_heads=4,
            max_position_embeddings=256,
            attention_types=[[["global", "local"], 2]],
        )
    ),
    "T15 gains stored as w of 1 + w": Trap(partial(build, norm_offset=1.0)),
    "T16 LayerScale": Trap(partial(build, fill_scales(1e-5), join=scaled_branch, extra="vector"), backward=True),
    "T16 Mamba": Trap(hf("Mamba:ForCausalLM", hidden_size=64, state_size=8, num_hidden_layers=2)),
    "T17 padded rows": Trap(partial(build, padded_rows=24)),
    "T17 padded rows masked": Trap(partial(build, padded_rows=24, masked=True)),
    "T18 pad rows of zero": Trap(partial(build, rows_of_zero, padded_rows=24)),
    "T18 resized rows": Trap(partial(build, rows_at_the_mean, padded_rows=24)),
    "T19 one block for all layers": Trap(partial(build, shared=True), backward=True),
    "T19 LoRA": Trap(partial(build, low_rank=4), backward=True),
    "T19 rotary tables in every layer": Trap(partial(build, **ROTARY)),
    "T19 tied": Trap(partial(build, tied=True), backward=True),
    "T20 label smoothing": Trap(partial(build, kind=WithLabels, loss=moved(1, label_smoothing=0.1))),
    "T21 ignored labels": Trap(partial(build, kind=WithLabels, loss=moved(1, ignore_index=0))),
    "T22 z-loss": Trap(partial(build, kind=WithLabels, loss=plus(1e-4, z_loss))),
    "T22 second head": Trap(partial(build, kind=WithLabels, loss=plus(0.3, moved(2)))),
    "T22 Mixtral with its auxiliary loss": Trap(
        hf("Mixtral:ForCausalLM", **SMALL, num_key_value_heads=2, output_router_logits=True), backward=True
    ),
    "T23 bfloat16": Trap(partial(build, dtype=torch.bfloat16), backward=True),
    "T24 dropout left on": Trap(partial(build, dropout=0.1, training=True), backward=True),
    "T25 BERT": Trap(hf("Bert:ForMaskedLM", **SMALL, max_position_embeddings=256)),
    "T25 no mask, declared": Trap(partial(build, causal=False), causal=False),
    "T26 trained": Trap(trained),
    "T27 27 characters": Trap(partial(build, vocab_size=27), vocab_size=27),
    "T28 word frequencies in the head's bias": Trap(partial(build, word_frequencies, head_bias=True)),
    "T29 Llama, unscaled": Trap(small_llama, backward=True),
    "T30 Bloom, added inside the module": Trap(hf("Bloom:ForCausalLM", hidden_size=128, n_layer=4, n_head=4)),
}
