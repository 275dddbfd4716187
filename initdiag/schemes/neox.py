"""Small init, and the residual projections that fall like 1/N: GPT-J, GPT-NeoX ("wang") and TinyLlama."""

from __future__ import annotations

from collections.abc import Mapping

from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS, RESIDUAL_PROJECTIONS, Role
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

_FAMILY = "Small init and NeoX"
_SMALL = "sqrt(2 / (5 * d_model))"
_NEOX = "EleutherAI/gpt-neox megatron/model/init_functions.py"


def _roles(draw: Draw, residual: Draw) -> Mapping[Role, Draw]:
    return {
        **PLAIN,
        **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), draw),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, residual),
    }


_NORMALS = _roles(Draw("normal", "std"), Draw("normal", "residual_std", unscaled="std"))

SMALL_INIT = Scheme(
    name="small-init",
    family=_FAMILY,
    summary="attention N(sqrt(2 / (5 d_model))), MLP N(sqrt(2 / (d_ff + d_model))), embedding N(1/sqrt(d_model))",
    source="tnq177/transformers_without_tears layers.py and model.py",
    roles={
        **PLAIN,
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("normal", "std")),
        # in and out of the MLP have the same two sizes, d_model and d_ff
        **dict.fromkeys(
            (Role.MLP_IN, Role.MLP_GATE, Role.MLP_OUT),
            Draw("normal", "sqrt(2 / (fan_in + fan_out))"),
        ),
        **dict.fromkeys((*EMBEDDINGS, Role.LM_HEAD), Draw("normal", "1 / sqrt(d_model)")),
    },
    parameters={"std": _SMALL},
    forward={"embedding_multiplier": "sqrt(d_model)"},
    depth="The sum of the branch variances grows like N: no std depends on depth, out projections included.",
    notes=(
        "The MLP's number is xavier's, and at d_ff = 4 d_model it is the attention's: xavier of the MLP for all.",
        "With FixNorm the code draws the embedding U(0.01) and normalizes every row instead.",
        "What GPT-NeoX calls small_init is the first formula for every matrix and the embedding: see wang.",
    ),
    aliases=("transformers-without-tears",),
)

WANG = Scheme(
    name="wang",
    family=_FAMILY,
    summary="GPT-NeoX: N(sqrt(2 / (5 d_model))), residual projections N(2 / (N sqrt(d_model)))",
    source=f"{_NEOX}: small_init_init_method, wang_init_method",
    roles=_NORMALS,
    parameters={"std": _SMALL, "residual_std": "2 / (n_layers * sqrt(d_model))"},
    depth="The sum of the branch variances falls like 1/N: 2N branches, each 10/N^2 of an unscaled one.",
    used_by="GPT-NeoX-20B, Pythia 14M to 2.8B",
    notes=(
        "residual_std is std * sqrt(10) / N, as llm-foundry's neox_init_ has it; it is d_model's even where fan_in is "
        "d_ff. The unscaled std is that of all other matrices.",
        "Wider than std / sqrt(2N) below 20 layers and narrower above.",
        "Pythia 6.9B and 12B leave both settings out and so were drawn by NeoX's defaults, N(0.02) with scaled_normal: "
        "that is `scaled`.",
    ),
    aliases=("neox", "gpt-neox", "pythia", "small-init-wang"),
)

TINYLLAMA = Scheme(
    name="tinyllama",
    family=_FAMILY,
    summary="N(sqrt(2 / (5 d_model))), residual projections N(1 / (N sqrt(d_model))): half of wang",
    source="jzhang38/TinyLlama lit_gpt/model.py GPT._init_weights; litgpt pretrain.py initialize_weights",
    roles=_NORMALS,
    parameters={"std": _SMALL, "residual_std": "1 / (n_layers * sqrt(d_model))"},
    depth="The sum of the branch variances falls like 1/N: 2N branches, each 2.5/N^2 of an unscaled one.",
    used_by="TinyLlama 1.1B; models pretrained with litgpt",
    notes=("The code cites GPT-NeoX, whose residual projections are twice as wide.",),
    aliases=("litgpt-pretrain",),
)

NEOX_SINGLE_RESIDUAL = Scheme(
    name="neox-single-residual",
    family=_FAMILY,
    summary="N(std), residual projections N(std / sqrt(N)), for blocks with one residual addition",
    source=f"{_NEOX}: single_residual_scaled_normal",
    roles=_NORMALS,
    parameters={"std": "0.02", "residual_std": "std / sqrt(n_layers)"},
    depth="The sum of the branch variances is constant: N branches add up to one unscaled branch, 2N to two.",
    notes=("Meant for Mamba's blocks; where attention and MLP are added one by one, `scaled` is what adds up to 1.",),
)

NEOX_ORTHOGONAL = Scheme(
    name="neox-orthogonal",
    family=_FAMILY,
    summary="every matrix and embedding orthogonal times sqrt(2), residual projections times sqrt(2 / N)",
    source=f"{_NEOX}: orthogonal_init_method, scaled_orthogonal",
    roles=_roles(Draw("orthogonal", "gain"), Draw("orthogonal", "residual_gain", unscaled="gain")),
    parameters={"gain": "sqrt(2)", "residual_gain": "gain / sqrt(n_layers)"},
    depth="The sum of the branch variances is constant: 2N branches, each 1/N of an unscaled one.",
    notes=(
        "At the commit read, the name orthogonal passes its arguments in the wrong places and raises; only "
        "scaled_orthogonal can be used.",
        "Embeddings are drawn by the same method, so their std is sqrt(2 / vocab_size), whatever the width.",
    ),
)

_KERNEL = Draw("truncated", "1 / sqrt(fan_in)", cut="cut")

GPTJ = Scheme(
    name="gptj",
    family=_FAMILY,
    summary="kernels 1/sqrt(fan_in) cut at 2 sigma, residual projections 2 / (N sqrt(d_model))",
    source="kingoflolz/mesh-transformer-jax mesh_transformer/layers.py TransformerLayerShard, transformer_shard.py",
    roles={
        **_roles(_KERNEL, Draw("truncated", "residual_std", unscaled="1 / sqrt(d_model)", cut="cut")),
        Role.TOKEN_EMBEDDING: Draw("truncated", "1 / sqrt(vocab_size)", cut="cut"),
        Role.POSITION_EMBEDDING: Draw("truncated", "0.02", cut="cut"),
    },
    parameters={"residual_std": "2 / (n_layers * sqrt(d_model))", "cut": "2"},
    depth="The sum of the branch variances falls like 1/N: 2N branches, each 4/N^2 of an unscaled one.",
    used_by="GPT-J-6B",
    notes=(
        "Where wang_init comes from: init_scale is 2 / layers.",
        "residual_std goes with d_model, also for the MLP's output, whose fan_in is d_ff.",
        "The embedding is a linear layer over one-hot vectors: its fan_in is vocab_size, so it is N(0.00445) at 50400.",
        "Haiku cuts at 2 sigma and corrects nothing: every std is 0.8796 of what is asked for.",
        "GPT-J's positions are rotary; the code's learned ones are N(0.02). The Hugging Face class draws N(0.02) for "
        "all.",
    ),
    aliases=("gpt-j", "mesh-transformer-jax"),
)

NEOX_SCHEMES = (SMALL_INIT, WANG, TINYLLAMA, NEOX_SINGLE_RESIDUAL, NEOX_ORTHOGONAL, GPTJ)
