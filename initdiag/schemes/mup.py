"""Width: muP and its relatives. A small base model is tuned; m = d_model / base_width says how much wider this one is.

muP draws hidden matrices at std / sqrt(m), divides logits by m, and scales attention by 1 / head_dim.
"""

from __future__ import annotations

from initdiag.schemes.mup_depth import HIDDEN, MUP_DEPTH_SCHEMES, WIDTH
from initdiag.schemes.roles import BLOCK_WEIGHTS, EMBEDDINGS, LINEAR_WEIGHTS, RESIDUAL_PROJECTIONS, Role
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

_BASE_SHAPE = (
    "width_multiplier is d_model / base_width for every matrix: the base model is this one with all widths "
    "(n_heads * head_dim, d_ff) divided by it"
)

MUP = Scheme(
    name="mup",
    family="muP",
    summary="hidden matrices N(std / sqrt(m)), m = d_model / base_width; queries and readout 0; logits / m",
    source="microsoft/mup init.py (constant_std_init_), layer.py (MuReadout), README",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "std")),
        **dict.fromkeys(BLOCK_WEIGHTS, Draw("normal", HIDDEN)),
        Role.ATTENTION_QUERY: Draw("normal", f"query * {HIDDEN}"),
        # to a number of experts that doesn't grow: the package wants a MuReadout, N(std) and a forward / m, in one here
        Role.ROUTER: Draw("normal", "std / width_multiplier"),
        Role.LM_HEAD: Draw("normal", "readout * std"),
    },
    parameters={"std": "0.02", **WIDTH, "attention_multiplier": "8", "output_multiplier": "1"},
    choices={"readout": {"zero": "0", "normal": "1"}, "query": {"zero": "0", "normal": "1"}},
    forward={
        "attention_scale": "attention_multiplier / head_dim",
        "logit_multiplier": "output_multiplier / width_multiplier",
    },
    depth="Nothing: muP is about width, and the stream grows like N, as that of gpt2.",
    notes=(
        "The README recommends zero for readout and query, and so do the defaults here; the class MuReadout itself "
        "has readout_zero_init=False. With readout zero the loss starts at ln V exactly, and says nothing about the "
        "rest; set both to normal to see it.",
        "Without the zeros, logits and attention logits shrink like 1 / sqrt(width) at the start, and are of order 1 "
        "only after some steps.",
        "attention_multiplier 8 is 1 / sqrt(head_dim) at a head_dim of 64.",
        "With a tied head (MuSharedReadout) the embedding governs, and readout is without effect.",
        "std and base_width are for the user to choose: the package has no default, and rescales nn.Linear's uniform "
        f"weights unless they are drawn anew by mup.init.normal_, which is what is stated here; {_BASE_SHAPE}.",
    ),
)

MEGATRON_MUP = Scheme(
    name="megatron-mup",
    family="muP",
    summary="megatron with hidden matrices divided by sqrt(m), m = d_model / base_width, and logits by m",
    source="NVIDIA/Megatron-LM megatron/core/utils.py (scaled_init_method_normal), transformer_config.py (use_mup)",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "embedding_std")),
        **dict.fromkeys((*BLOCK_WEIGHTS, Role.ROUTER_BIAS), Draw("normal", HIDDEN)),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, Draw("normal", "residual_std / sqrt(width_multiplier)", unscaled=HIDDEN)),
        Role.LM_HEAD: Draw("normal", "std"),
    },
    parameters={
        "std": "0.02",
        **WIDTH,
        "embedding_std": "std",
        "residual_std": "std / sqrt(2 * n_layers)",
        "attention_multiplier": "1",
    },
    forward={
        "attention_scale": "attention_multiplier / head_dim",
        "logit_multiplier": "1 / width_multiplier",
    },
    depth="Output projections have 1 / sqrt(2N), as megatron: the variances of all branches add up to that of one.",
    notes=(
        "With a base head_dim the code's attention scale is sqrt(base head_dim) / head_dim: set attention_multiplier "
        "to that root.",
        "A router bias is drawn like a matrix, not 0.",
        "Hybrid models (attention and state space) have N in place of 2N.",
    ),
)

_TRUNCATED = Draw("truncated", "std", cut="cut")

CEREBRAS = Scheme(
    name="cerebras",
    family="muP",
    summary="Cerebras-GPT without muP: everything TN(0.02, 2σ), output projections TN(0.02 / sqrt(2N), 2σ)",
    source="Cerebras/modelzoo models/nlp/gpt3/configs/Cerebras_GPT/111m.yaml and gpt2_model.py (GPT2LMHeadModel)",
    roles={
        **PLAIN,
        **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), _TRUNCATED),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, Draw("truncated", "residual_std", unscaled="std", cut="cut")),
    },
    parameters={"std": "0.02", "residual_std": "std / sqrt(2 * n_layers)", "cut": "2"},
    depth="1 / sqrt(2N) on output projections: the variances of all branches add up to that of one.",
    used_by="Cerebras-GPT, 111M to 13B",
    notes=(
        "The cut is not corrected for: at 2σ the std is 0.8796 of the number written.",
        "The configs of 1.3B (24 layers) and 13B (40 layers) both say 0.0025 for output projections; 0.02 / sqrt(2N) "
        "is 0.00289 and 0.00224.",
    ),
    aliases=("cerebras-gpt",),
)

CEREBRAS_MUP = Scheme(
    name="cerebras-mup",
    family="muP",
    summary="TN(0.08, 2σ), hidden matrices / sqrt(m), output projections also / sqrt(2N); embeddings * 10, logits / m",
    source="Cerebras/modelzoo models/nlp/gpt2/gpt2_model.py and common/utils/model/mup_utils.py, 111m_mup.yaml",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, _TRUNCATED),
        **dict.fromkeys(BLOCK_WEIGHTS, Draw("truncated", HIDDEN, cut="cut")),
        **dict.fromkeys(
            RESIDUAL_PROJECTIONS,
            Draw("truncated", "residual_std / sqrt(width_multiplier)", unscaled=HIDDEN, cut="cut"),
        ),
        Role.ROUTER: _TRUNCATED,
        Role.LM_HEAD: _TRUNCATED,
    },
    parameters={
        "std": "0.08",
        **WIDTH,
        "residual_std": "std / sqrt(2 * n_layers)",
        "embedding_scale": "10",
        "attention_multiplier": "1",
        "output_multiplier": "1",
        "cut": "2",
    },
    forward={
        "embedding_multiplier": "embedding_scale",
        "attention_scale": "attention_multiplier / head_dim",
        "logit_multiplier": "output_multiplier / width_multiplier",
    },
    depth="1 / sqrt(2N) on output projections: the variances of all branches add up to that of one.",
    used_by="Cerebras-GPT with muP, 111M to 2.7B",
    notes=(
        "The configs write the cut as ±0.16 for every weight; scale_initializers_by_dimension scales it along with "
        "the std, so it stays at 2σ.",
        "The code scales mlp_out by its own d_ff / mup_base_filter_size (1024 for a base width of 256); the same "
        "where d_ff is 4 * d_model.",
        "Where a config has mup_base_filter_size and no ffn_output_layer_initializer, as 111m_mup.yaml, the code read "
        "(f1fd1e0) starts mlp_out from initializer_range, 0.02, and not from the config's 0.08.",
        "The code multiplies the sum of token and position embeddings by embedding_scale; here it is the tokens' only.",
    ),
    aliases=("cerebras-gpt-mup",),
)

SPECTRAL = Scheme(
    name="spectral",
    family="muP",
    summary="every matrix N(min(1, sqrt(fan_out / fan_in)) / sqrt(fan_in)), so that its spectral norm is right",
    source="huggingface/nanotron scaling/parametrization.py (SpectralMupParametrizator); arXiv 2310.17813",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "std")),
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("normal", "std * min(1, sqrt(fan_out / fan_in)) / sqrt(fan_in)")),
    },
    parameters={"std": "1"},
    depth="Nothing: the stream grows like N.",
    used_by="nanochat in its first version (October 2025), which set the head and both output projections to 0",
    notes=(
        "fan_out is that of each matrix here. nanotron packs q, k, v and gate, up, so there it is larger, and the "
        "min is 1 also for the few keys and values of grouped-query attention.",
        "nanotron computes fans of a bias as well, which fails for a vector: models with biases can't use it.",
    ),
    aliases=("spectral-mup",),
)

MUP_SCHEMES = (MUP, MEGATRON_MUP, CEREBRAS, CEREBRAS_MUP, *MUP_DEPTH_SCHEMES, SPECTRAL)
