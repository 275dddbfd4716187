"""muP for depth as well: the forward pass multiplies branches, or branches and stream, by numbers that depend on N."""

from __future__ import annotations

from dataclasses import replace

from initdiag.schemes.roles import BLOCK_WEIGHTS, EMBEDDINGS, LINEAR_WEIGHTS, RESIDUAL_PROJECTIONS, Role
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

# No code that was read has a default for the base width; 256 is that of Cerebras' configs, and typical in nanoGPT-mup.
WIDTH = {"base_width": "256", "width_multiplier": "d_model / base_width"}
HIDDEN = "std / sqrt(width_multiplier)"
_ELEUTHER = {
    **PLAIN,
    **dict.fromkeys((*EMBEDDINGS, Role.LM_HEAD), Draw("normal", "std")),
    **dict.fromkeys(BLOCK_WEIGHTS, Draw("normal", HIDDEN)),
}
_ALPHAS = {"input_alpha": "1", "output_alpha": "1"}
_ELEUTHER_FORWARD = {
    "embedding_multiplier": "input_alpha",
    "attention_scale": "1 / head_dim",
    "logit_multiplier": "output_alpha / width_multiplier",
}
_SUM = "The code multiplies the sum of token and position embeddings by input_alpha; here it is the tokens' only."

ELEUTHER_MUP = Scheme(
    name="eleuther-mup",
    family="muP",
    summary="hidden matrices N(std / sqrt(m)), output projections also / sqrt(2N); attention 1 / head_dim, logits / m",
    source="EleutherAI/nanoGPT-mup model.py (GPT.__init__), branch master",
    roles={
        **_ELEUTHER,
        **dict.fromkeys(RESIDUAL_PROJECTIONS, Draw("normal", "residual_std / sqrt(width_multiplier)", unscaled=HIDDEN)),
    },
    parameters={"std": "0.02", **WIDTH, "residual_std": "std / sqrt(2 * n_layers)", **_ALPHAS},
    forward=_ELEUTHER_FORWARD,
    depth="1 / sqrt(2N) on output projections: the variances of all branches add up to that of one.",
    notes=(_SUM, "Queries and readout are drawn like the rest, not 0 as microsoft/mup recommends."),
    aliases=("nanogpt-mup",),
)

COMPLETEP = Scheme(
    name="completep",
    family="muP",
    summary="hidden matrices N(std / sqrt(m)); branches * (n_layers / base_depth)^-alpha in the forward pass",
    source="EleutherAI/nanoGPT-mup model.py (Block, GPT.__init__), branch completep",
    roles=_ELEUTHER,
    parameters={"std": "0.02", **WIDTH, "base_depth": "2", "alpha": "1", **_ALPHAS},
    forward={**_ELEUTHER_FORWARD, "residual_multiplier": "(n_layers / base_depth) ** -alpha"},
    depth="With alpha 1 each branch has variance 1/N², so that all 2N together shrink like 1/N next to the embedding.",
    notes=(
        _SUM,
        "base_depth 2 is our default: the code takes the ratio n_layers / base_depth and has none of its own.",
        "The weights carry no depth factor: without the multiplier in the forward pass, this is muP.",
        "Learning rates, weight decay and Adam's eps of CompleteP also depend on depth; they are not part of an init.",
    ),
    aliases=("complete-p",),
)

DEPTH_MUP = replace(
    COMPLETEP,
    name="depth-mup",
    summary="completep with alpha 1/2: branches * sqrt(base_depth / n_layers) in the forward pass",
    parameters={**COMPLETEP.parameters, "alpha": "0.5"},
    depth="Each branch has variance 1/N, so that all 2N together are the same at any depth.",
    aliases=(),
)

U_MUP = Scheme(
    name="u-mup",
    family="muP",
    summary="unit scaling with muP: N(1 / sqrt(fan_in)), readout N(1 / fan_in), embedding N(1), weighted residuals",
    source="graphcore unit_scaling 0.3.5 _modules.py, core/functional.py (transformer_residual_scaling_rule)",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "1")),
        **dict.fromkeys(BLOCK_WEIGHTS, Draw("normal", "1 / sqrt(fan_in)")),
        Role.ATTENTION_OUT: Draw("normal", "attention_gain / sqrt(fan_in)"),
        Role.MLP_OUT: Draw("normal", "activation_gain / sqrt(fan_in)"),
        Role.LM_HEAD: Draw("normal", "1 / fan_in"),
    },
    parameters={
        "attention_multiplier": "1",
        "residual_alpha": "1",
        "attention_ratio": "1",
        "mlp_alpha": "residual_alpha * sqrt(2 / (1 + attention_ratio**2))",
        "attention_alpha": "attention_ratio * mlp_alpha",
        "attention_gain": "1",
        "activation_gain": "1",
    },
    forward={
        "attention_scale": "attention_multiplier / head_dim",
        "stream_multiplier": "1 / sqrt(1 + tau_squared)",
        "residual_multiplier": "sqrt(tau_squared / (1 + tau_squared))",
        "logit_multiplier": "d_model ** -tied",  # a tied readout's weights are the embedding's N(1)
    },
    terms={
        # the embedding counts n_layers, and each branch before this one its alpha squared
        "before": "n_layers + (branch - layer - 1) * attention_alpha**2 + layer * mlp_alpha**2",
        "is_mlp": "branch - 2 * layer - 1",
        "tau_squared": "((1 - is_mlp) * attention_alpha**2 + is_mlp * mlp_alpha**2) / before",
    },
    depth="The squares of what embedding and branches count in the final stream add up to 1 at any depth: by default "
    "a third each for the embedding, all attention and all MLPs.",
    notes=(
        "unit_scaling draws every weight from N(1) and divides in the forward pass, by sqrt(fan_in) and for the "
        "readout by fan_in. Here that factor is in the weights: the same numbers at the start, but another model to "
        "an optimizer, whose step is then not scaled.",
        "unit_scaling also multiplies what enters the output projections, so that branches have variance 1: after "
        "SwiGLU by 2**0.75 = 1.682 (GELU or SiLU: 1.767), which is activation_gain, and after attention over T "
        "tokens by (T / log(T)) ** (0.5 - 0.5 / (1 + 4 * head_dim / attention_multiplier**2)), which is "
        "attention_gain. Both are 1 here unless set, since they depend on the activation and on the tokens.",
        "A tied head has the embedding's N(1), and the forward pass divides its logits by d_model.",
    ),
    aliases=("umup", "unit-scaled-mup"),
)

MINICPM = Scheme(
    name="minicpm",
    family="muP",
    summary="matrices N(0.1 / sqrt(m)), m = d_model / 256; embeddings * 12, branches * 1.4 / sqrt(N), logits / m",
    source="vllm models/minicpm.py (scale_emb, scale_depth, dim_model_base); std: the paper, arXiv 2404.06395",
    roles={**PLAIN, **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), Draw("normal", HIDDEN))},
    parameters={"std": "0.1", **WIDTH, "embedding_scale": "12", "depth_scale": "1.4"},
    forward={
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "depth_scale / sqrt(n_layers)",
        "logit_multiplier": "1 / width_multiplier",
    },
    depth="1.4 / sqrt(N) on branches in the forward pass: all 2N together add 2 * 1.4² = 3.92 branch variances.",
    used_by="MiniCPM-1.2B and MiniCPM-2.4B",
    notes=(
        "The training code is not public; the multipliers are those of inference code, the std is the paper's, "
        "recalled and not read again.",
        "The paper gives the std for two-dimensional weights; embeddings are taken to be among them.",
        "Attention keeps 1 / sqrt(head_dim).",
    ),
)

MUP_DEPTH_SCHEMES = (ELEUTHER_MUP, COMPLETEP, DEPTH_MUP, U_MUP, MINICPM)
