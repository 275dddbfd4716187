"""Megatron's normal with scaled residual projections, and the models that were trained with it under another std."""

from __future__ import annotations

from collections.abc import Mapping

from initdiag.schemes.neox import NEOX_SCHEMES
from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS, RESIDUAL_PROJECTIONS, Role
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

_CONSTANT = (
    "The sum of the branch variances stays that of one unscaled branch at any depth: 2N branches, each 1/(2N) of one."
)


def _roles(embedding: str = "std") -> dict[Role, Draw]:
    """Everything N(std), embeddings N(embedding), residual projections N(residual_std)."""
    return {
        **PLAIN,
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("normal", "std")),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, Draw("normal", "residual_std", unscaled="std")),
        **dict.fromkeys(EMBEDDINGS, Draw("normal", embedding)),
    }


def _parameters(std: str) -> Mapping[str, str]:
    return {"std": std, "residual_std": "std / sqrt(2 * n_layers)"}


MEGATRON = Scheme(
    name="megatron",
    family="Megatron",
    summary="N(std), residual projections N(std / sqrt(2N)), embeddings N(embedding_std)",
    source="NVIDIA/Megatron-LM megatron/core/utils.py scaled_init_method_normal, transformer_config.py",
    roles={**_roles("embedding_std"), Role.ROUTER_BIAS: Draw("normal", "std")},
    parameters={**_parameters("0.02"), "embedding_std": "std"},
    depth=_CONSTANT,
    used_by="Megatron-LM; std in its examples: 0.006 (GPT-3 175B), 0.0134 (Llama 3 8B), 0.01 and 0.008 (Mixtral), "
    "0.0173, 0.014 and 0.0099 (Nemotron)",
    notes=(
        "Biases are 0, but that of a router is drawn like a weight.",
        "Experts are drawn like an MLP: their first matrices N(std), their last N(std / sqrt(2N)).",
        "A hybrid model has one residual addition a layer: set residual_std to std / sqrt(n_layers).",
        "Without an embedding_std of its own this is `scaled`, up to the bias of a router.",
    ),
    aliases=("megatron-lm",),
)

MEGATRON_TURING = Scheme(
    name="megatron-turing",
    family="Megatron",
    summary="N(sqrt(1 / (3 d_model))), residual projections over sqrt(2N)",
    source="Megatron-Turing NLG 530B, as cited in bigscience-workshop/bigscience train/tr11-176B-ml/README.md",
    roles=_roles(),
    parameters=_parameters("sqrt(1 / (3 * d_model))"),
    depth=_CONSTANT,
    used_by="Megatron-Turing NLG 530B",
    notes=("BLOOM took this number for its own width, 14336, and kept it for all its sizes: see bloom.",),
    aliases=("mt-nlg",),
)

BIGSCIENCE = Scheme(
    name="bigscience",
    family="Megatron",
    summary="N(sqrt(2 / (5 d_model))), small init's number, with residual projections over sqrt(2N)",
    source="bigscience-workshop/bigscience train/lessons-learned.md; Megatron-DeepSpeed megatron/model/utils.py",
    roles=_roles(),
    parameters=_parameters("sqrt(2 / (5 * d_model))"),
    depth=_CONSTANT,
    used_by="BigScience's 104B (0.00587 at width 11600, rounded to 0.006)",
    notes=("At the width of their 13B, 5120, it gives 0.00884.",),
)

BLOOM = Scheme(
    name="bloom",
    family="Megatron",
    summary="N(sqrt(1 / (3 * 14336))) at every width, residual projections over sqrt(2N), a norm on the embedding",
    source="bigscience-workshop/bigscience train/tr11-176B-ml/README.md; Megatron-DeepSpeed megatron/model/utils.py",
    roles=_roles(),
    parameters=_parameters("sqrt(1 / (3 * 14336))"),
    forward={"embedding_norm": "true"},
    depth=_CONSTANT,
    used_by="BLOOM, all sizes",
    notes=(
        "The number is that of the 176B model's width. Its scripts round 0.00482 to 0.0048, and the smaller BLOOMs "
        "take 0.0048 too: 0.018 would be the formula's at width 1024.",
        "Embeddings are so small that eps counts: 1e-5 beside 0.0048^2 leaves the first norm's output at a variance "
        "of 0.70. The norm on the embedding is where this happens.",
        "The Hugging Face class draws N(0.02) without scaling.",
    ),
)

OPT = Scheme(
    name="opt",
    family="Megatron",
    summary="N(0.006) at every size, residual projections N(0.006 / sqrt(2N))",
    source="facebookresearch/metaseq metaseq/launcher/opt_baselines.py (full-megatron-init, megatron-init-sigma)",
    roles=_roles(),
    parameters=_parameters("0.006"),
    depth=_CONSTANT,
    used_by="OPT, 125M to 175B",
    notes=(
        "Token and position embeddings are N(0.006) as well, and the forward pass doesn't scale them by sqrt(d_model).",
        "The Hugging Face class disagrees: N(0.02), no scaling.",
    ),
    aliases=("metaseq",),
)

MPT = Scheme(
    name="mpt",
    family="Megatron",
    summary="kaiming normal, N(sqrt(2 / fan_in)), residual projections over sqrt(2N)",
    source="mosaicml/llm-foundry llmfoundry/models/utils/param_init_fns.py and config_defaults.py",
    roles={
        **PLAIN,
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("normal", "gain / sqrt(fan_in)")),
        **dict.fromkeys(
            RESIDUAL_PROJECTIONS,
            Draw("normal", "gain / sqrt(fan_in) / sqrt(2 * n_layers)", unscaled="gain / sqrt(fan_in)"),
        ),
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "embedding_std")),
    },
    parameters={"gain": "sqrt(2)", "embedding_std": "gain / sqrt(d_model)"},
    depth=_CONSTANT,
    used_by="MPT, if its releases took llm-foundry's defaults",
    notes=(
        "Embeddings are drawn like the matrices unless emb_init_std is set; a tied head then has logit std sqrt(2).",
        "The Hugging Face class draws N(0.02) without scaling.",
    ),
    aliases=("llm-foundry",),
)

MEGATRON_SCHEMES = (MEGATRON, MEGATRON_TURING, BIGSCIENCE, BLOOM, OPT, MPT, *NEOX_SCHEMES)
