"""Schemes of AI2's OLMo and OLMo-core, and of open_lm: normals that are cut at 3 sigmas.

Where OLMo-core says `embedding`, its answer is used for learned positions, too: it has none.
"""

from __future__ import annotations

from collections.abc import Mapping

from initdiag.schemes.roles import (
    EMBEDDINGS,
    INPUT_PROJECTIONS,
    LINEAR_WEIGHTS,
    RESIDUAL_PROJECTIONS,
    Role,
)
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

_FAMILY = "OLMo"
_OLMO = "allenai/OLMo olmo/model.py reset_parameters, olmo/initialization.py init_normal"
_CORE = "allenai/OLMo-core nn/transformer/init.py InitMethod, nn/attention/__init__.py init_weights"
_ALL = (*EMBEDDINGS, *LINEAR_WEIGHTS)
_LOG_GROWTH = (
    "grows like log N: in layer l both branches write with 1/(2(l+1)) of an unscaled one's variance, and these sum to "
    "1 + 1/2 + ... + 1/N"
)
_CONSTANT = "constant: the 2N branches each write with 1/(2N) of the variance of an unscaled one"
_GROWTH = "grows like N: no weight depends on depth, so that every branch writes with the same variance"


def _cut(formula: str, unscaled: str | None = None, cut: str = "3") -> Draw:
    return Draw("truncated", formula, unscaled=unscaled, cut=cut)


def _by_layer(cut: str) -> Mapping[Role, Draw]:
    """1/sqrt(d_model), and the output projections at less the deeper their layer; attention out by d_model."""
    return {
        **PLAIN,
        **dict.fromkeys(_ALL, _cut("d_model ** -0.5", cut=cut)),
        Role.ATTENTION_OUT: _cut("1 / sqrt(2 * d_model * (layer + 1))", unscaled="d_model ** -0.5", cut=cut),
        Role.MLP_OUT: _cut("1 / sqrt(2 * fan_in * (layer + 1))", unscaled="fan_in ** -0.5", cut=cut),
    }


MITCHELL = Scheme(
    name="olmo-mitchell",
    family=_FAMILY,
    summary="1/sqrt(d_model), cut at 3 sigmas; output projections at 1/sqrt(2 fan_in (l+1)) of their layer l",
    source=_OLMO,
    roles={**_by_layer("cut"), Role.TOKEN_EMBEDDING: _cut("embedding_std", cut="cut")},
    parameters={"embedding_std": "d_model ** -0.5", "cut": "3"},
    depth=_LOG_GROWTH,
    used_by="OLMo 1B, 7B, 7B-0424 and 7B-0724",
    notes=(
        "Attention out is scaled by d_model, also where its fan_in, n_heads * head_dim, is another number.",
        "The Hugging Face class draws N(0.02) everywhere instead.",
        "Its enum also has kaiming_normal and fan_in, which raise NotImplementedError.",
    ),
    aliases=("mitchell",),
)

FULL_MEGATRON = Scheme(
    name="olmo-full-megatron",
    family=_FAMILY,
    summary="N(0.02) cut at 3 sigmas, output projections at std / sqrt(2N), head at 1/sqrt(d_model)",
    source=_OLMO,
    roles={
        **PLAIN,
        **dict.fromkeys(_ALL, _cut("std", cut="cut")),
        Role.TOKEN_EMBEDDING: _cut("embedding_std", cut="cut"),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, _cut("residual_std", unscaled="std", cut="cut")),
        Role.LM_HEAD: _cut("d_model ** -0.5", cut="cut"),
    },
    parameters={"std": "0.02", "embedding_std": "std", "residual_std": "std / sqrt(2 * n_layers)", "cut": "3"},
    depth=_CONSTANT,
    notes=(
        "Its docstring calls it the init of Llama 2: a claim of AI2, not of Meta, whose public code has no init.",
        "scale_emb_init of OLMo is embedding_std: std * sqrt(d_model).",
        "Unlike Megatron's, its normals are cut, and its head is 1/sqrt(d_model) instead of std.",
    ),
)

NORMAL = Scheme(
    name="olmo-normal",
    family=_FAMILY,
    summary="N(0.02) cut at 3 sigmas for every matrix and embedding; no depth scaling",
    source=_OLMO,
    roles={
        **PLAIN,
        **dict.fromkeys(_ALL, _cut("std", cut="cut")),
        Role.TOKEN_EMBEDDING: _cut("embedding_std", cut="cut"),
    },
    parameters={"std": "0.02", "embedding_std": "std", "cut": "3"},
    depth=_GROWTH + "; OLMo 2 puts a norm behind each branch, where no std of the output projections counts",
    used_by="OLMo 2 1B, 7B and 13B",
    notes=(
        "The cut at 3 sigmas is that of the OLMo 2 configs; in the code it is off unless init_cutoff_factor is set.",
    ),
)

CORE_NORMAL = Scheme(
    name="olmo-core-normal",
    family=_FAMILY,
    summary="N(0.02) cut at 3 sigmas for every matrix and embedding, router and experts as well; its default",
    source=_CORE,
    roles={
        **PLAIN,
        **dict.fromkeys(_ALL, _cut("std")),
        **dict.fromkeys(EMBEDDINGS, _cut("embedding_std")),
    },
    parameters={"std": "0.02", "embedding_std": "std"},
    depth=_GROWTH + "; OLMo 2 puts a norm behind each branch, where no std of the output projections counts",
    used_by="OLMo 2 32B",
)

CORE_LLAMA = Scheme(
    name="olmo-core-llama",
    family=_FAMILY,
    summary="N(0.02) cut at 3 sigmas; attention out, MLP out and MLP up at std / sqrt(2N); embedding N(1)",
    source=_CORE,
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "1")),
        **dict.fromkeys(INPUT_PROJECTIONS, _cut("std")),
        **dict.fromkeys((Role.MLP_IN, *RESIDUAL_PROJECTIONS, Role.ROUTER), _cut("std / sqrt(2 * depth)", "std")),
        Role.MLP_GATE: _cut("std / (2 * depth) ** (mlp / 2)", unscaled="std"),
        Role.LM_HEAD: _cut("d_model ** -0.5"),
    },
    parameters={"std": "0.02"},
    choices={
        "depth": {"total": "n_layers", "layer": "layer + 1"},
        "mlp": {"dense": "0", "experts": "1"},
    },
    depth="constant in attention, whose N branches each write with 1/(2N) of an unscaled one's variance; the gated MLP "
    "is scaled twice, up and out, and falls like 1/N; with depth: layer, log N in attention and bounded in the MLP",
    notes=(
        "depth: total is its llama, depth: layer its llama_depth.",
        "The up projection (mlp_in, w3) is scaled as well as the down projection (w2); the gate (w1) is not. The one "
        "input matrix of an MLP without a gate is mlp_in, too, and is scaled here.",
        "In a mixture of experts router and all matrices of the experts are scaled, gates as well: set mlp: experts.",
        "An embedding that is N(1) must not be tied to the head: the logits would have std sqrt(d_model).",
    ),
)

CORE_NORMALIZED = Scheme(
    name="olmo-core-normalized",
    family=_FAMILY,
    summary="1/sqrt(d_model) cut at 3 sigmas, output projections at 1/sqrt(2N) of that: weights for nGPT",
    source=_CORE,
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "std")),
        **dict.fromkeys((*INPUT_PROJECTIONS, Role.LM_HEAD), _cut("std")),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, _cut("std / sqrt(2 * n_layers)", unscaled="std")),
        Role.ROUTER: _cut("router_std"),
    },
    parameters={"std": "d_model ** -0.5", "router_std": "0.02"},
    depth=_CONSTANT + "; nGPT itself normalizes every branch and the stream, so that there the stds don't count",
    notes=(
        "It is meant for nGPT, whose weights and activations are normalized in every step: the reference Transformer "
        "is not that model. The embedding is a plain normal.",
        "In a mixture of experts this method forgets router and experts, which take TN(0.02, 3); the router does here, "
        "experts are drawn like an MLP.",
    ),
)

CORE_FAN_IN = Scheme(
    name="olmo-core-fan-in",
    family=_FAMILY,
    summary="1/sqrt(fan_in) cut at 3 sigmas for every matrix; embedding N(1 / embed_scale), then times embed_scale",
    source=_CORE,
    roles={
        **PLAIN,
        **dict.fromkeys(LINEAR_WEIGHTS, _cut("fan_in ** -0.5")),
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "1 / embed_scale")),
    },
    parameters={"embed_scale": "1"},
    forward={"embedding_multiplier": "embed_scale"},
    depth=_GROWTH,
    notes=(
        "An embedding that is N(1) must not be tied to the head: the logits would have std sqrt(d_model). Its "
        "Gemma-like config sets embed_scale: sqrt(d_model).",
    ),
)

OPEN_LM = Scheme(
    name="open-lm",
    family=_FAMILY,
    summary="1/sqrt(d_model), cut at 3 sigmas; output projections at 1/sqrt(2 fan_in (l+1)) of their layer l",
    source="mlfoundations/open_lm model.py CustomAttn, Block and Transformer reset_parameters",
    roles=_by_layer("3"),
    depth=_LOG_GROWTH,
    notes=(
        "olmo-mitchell by another hand: the two differ in what they let one set.",
        "Its mixture of experts is megablocks', which draws itself: experts here are drawn like its MLP.",
    ),
)

OLMO_SCHEMES = (
    MITCHELL,
    FULL_MEGATRON,
    NORMAL,
    CORE_NORMAL,
    CORE_LLAMA,
    CORE_NORMALIZED,
    CORE_FAN_IN,
    OPEN_LM,
)
