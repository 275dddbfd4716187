"""Designs that only look faulty: `TRAPS`, whose numbers (T1) are those of facts/faults.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpt_parts import VOCAB_SIZE
from benchmarks.init_steps import attentions, fill_scales, mlps, moved, plus, redraw, torch_defaults, z_loss, zero
from benchmarks.model_factories import ROTARY, SMALL, Factory, build, hf, small_llama
from benchmarks.small_gpt import GPT, WithLabels, deep_norm, post_norm, reordered_norm, sandwich, scaled_branch


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
