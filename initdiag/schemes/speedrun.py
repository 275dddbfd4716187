"""Schemes of nanochat, modded-nanogpt, Mamba and nGPT: small code bases that are read, copied and raced.

RWKV is left out: its zeros and gains belong to matrices of its own time mixing, which a Transformer does not have.
"""

from __future__ import annotations

from initdiag.schemes.roles import (
    EMBEDDINGS,
    INPUT_PROJECTIONS,
    LINEAR_WEIGHTS,
    RESIDUAL_PROJECTIONS,
    Role,
)
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

_FAMILY = "Speedruns"
_HIDDEN = (*INPUT_PROJECTIONS, Role.ROUTER)
_ZERO = Draw("constant", "0")
_NOTHING_ADDED = (
    "nothing is added at init: both output projections are zero, so that the stream stays the embedding at any depth"
)

NANOCHAT = Scheme(
    name="nanochat",
    family=_FAMILY,
    summary="uniform of std 1/sqrt(d_model), 0.4 of that into the MLP, zeros out of both; head N(0.001)",
    source="karpathy/nanochat nanochat/gpt.py GPT.init_weights at 92d63d4 (2026-07-03)",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "embedding_std")),
        **dict.fromkeys(_HIDDEN, Draw("uniform", "sqrt(3 / d_model)")),
        **dict.fromkeys((Role.MLP_IN, Role.MLP_GATE), Draw("uniform", "0.4 * sqrt(3 / d_model)")),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, _ZERO),
        Role.LM_HEAD: Draw("normal", "head_std"),
    },
    parameters={"embedding_std": "0.8", "head_std": "0.001"},
    forward={"embedding_norm": "true"},
    depth=_NOTHING_ADDED,
    notes=(
        "Its docstring still says N(1) for the embedding, which goes through a norm without parameters at once.",
        "Not in the reference Transformer: value embeddings (drawn like values), gates from 0 to 0.02, smear, backout "
        "and per-layer scalars: the stream times 1.15 - 0.10 l/(N-1) plus the embedding times 0.20 - 0.15 l/(N-1).",
        "The model also has norms on queries and keys, relu squared and logits 15 * tanh(x / 15); at init these logits "
        "have std 0.001 * sqrt(d_model), and the cap changes nothing. `model:` sets all that.",
        "The head is not to be tied: drawn as the embedding it would start at logits of std 0.8 * sqrt(d_model).",
    ),
)

NANOCHAT_2025 = Scheme(
    name="nanochat-2025",
    family=_FAMILY,
    summary="normal of std min(1, sqrt(fan_out / fan_in)) / sqrt(fan_in), zeros out of attention, MLP and head",
    source="karpathy/nanochat nanochat/gpt.py GPT.init_weights, first release (October 2025)",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "1")),
        **dict.fromkeys(_HIDDEN, Draw("normal", "min(1, sqrt(fan_out / fan_in)) / sqrt(fan_in)")),
        **dict.fromkeys((*RESIDUAL_PROJECTIONS, Role.LM_HEAD), _ZERO),
    },
    forward={"embedding_norm": "true"},
    depth=_NOTHING_ADDED,
    notes=(
        "All logits are 0, so that the loss starts at ln V exactly, and the first step moves the head alone.",
        "The std is that of the spectral condition (arXiv 2310.17813): grouped keys and values, whose fan_out is below "
        "their fan_in, get less.",
        "The head is not to be tied: drawn as the embedding it would start at logits of std sqrt(d_model).",
    ),
)

MODDED_NANOGPT = Scheme(
    name="modded-nanogpt",
    family=_FAMILY,
    summary="uniform of std 0.5/sqrt(d_model), attention out as well; zeros out of the MLP; head, embedding N(0.005)",
    source="KellerJordan/modded-nanogpt train_gpt.py at f411b3d (2026-08-01)",
    roles={
        **PLAIN,
        **dict.fromkeys((*EMBEDDINGS, Role.LM_HEAD), Draw("normal", "std")),
        **dict.fromkeys((*_HIDDEN, Role.ATTENTION_OUT), Draw("uniform", "0.5 * sqrt(3 / d_model)")),
        Role.MLP_OUT: _ZERO,
    },
    parameters={"std": "0.005"},
    forward={"embedding_norm": "true"},
    depth="grows like N through attention alone, whose branches are unscaled; those of the MLP are zero",
    notes=(
        "The embedding begins as a copy of the head and is trained apart from it: untied it is drawn anew here, with "
        "tied: true the model at step 0 is the same.",
        "Its logits go through 23 * sigmoid((x + 5) / 7.5), which is not in the reference Transformer; nor are value "
        "embeddings, smear, skips over layers and learned weights of the stream.",
        "Attention out was zero until 2026-01-30; from November 2024 on the head was zero, too.",
    ),
)

MAMBA = Scheme(
    name="mamba",
    family=_FAMILY,
    summary="PyTorch's uniform linear layers, output projections divided by sqrt(2N); embedding N(0.02)",
    source="state-spaces/mamba models/mixer_seq_simple.py _init_weights",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "std")),
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("uniform", "fan_in ** -0.5")),
        **dict.fromkeys(
            RESIDUAL_PROJECTIONS,
            Draw("uniform", "fan_in ** -0.5 / sqrt(branches * n_layers)", unscaled="fan_in ** -0.5"),
        ),
    },
    parameters={"std": "0.02", "branches": "2"},
    depth="constant: the 2N branches each write with 1/(2N) of the variance of an unscaled one",
    used_by="Mamba, whose layers have one branch each (branches: 1) and a tied head",
    notes=(
        "kaiming_uniform with a = sqrt(5) is U(1/sqrt(fan_in)), of std 1/sqrt(3 fan_in); biases are zero.",
        "branches, n_residuals_per_layer there, is 1 by default and 2 with an MLP; here it is 2, for a Transformer.",
    ),
)

NGPT = Scheme(
    name="ngpt",
    family=_FAMILY,
    summary="N(1/sqrt(d_model)), output projections at 1/sqrt(2N) of that: the weights of nGPT, not its forward pass",
    source="NVIDIA/ngpt model.py GPT._init_weights",
    roles={
        **PLAIN,
        **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), Draw("normal", "std")),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, Draw("normal", "residual_std", unscaled="std")),
    },
    parameters={"std": "d_model ** -0.5", "residual_std": "std / sqrt(2 * n_layers)"},
    depth="constant in a pre-norm model: the 2N branches each write with 1/(2N) of the variance of an unscaled one; "
    "nGPT itself normalizes every branch and the stream, so that there the stds don't count",
    notes=(
        "Weights only: nGPT keeps rows of its matrices and the stream at length 1, moves the stream by alpha = 0.05 of "
        "the way to each branch, and scales queries and keys (1), MLP inputs (sqrt(d_model)) and logits (1) by learned "
        "vectors. The reference Transformer does none of this.",
        "base_scale is 1/32 in the class, which is 1/sqrt(d_model) at its width of 1024.",
    ),
)

SPEEDRUN_SCHEMES = (NANOCHAT, NANOCHAT_2025, MODDED_NANOGPT, MAMBA, NGPT)
