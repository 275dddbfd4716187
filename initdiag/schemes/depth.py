"""Depth with normalization: where norms stand, and what stream and branches are multiplied by."""

from __future__ import annotations

from collections.abc import Mapping

from initdiag.schemes.depth_without_norms import FAIRSEQ, FAIRSEQ_QKV_BIAS, UNNORMED_SCHEMES, XAVIER, XAVIER_QKV
from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS, Role
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

_LINEAR = "sqrt(1 / fan_in)"  # the bound of nn.Linear's own uniform
_MLP = (Role.MLP_IN, Role.MLP_GATE, Role.MLP_OUT)


def _torchscale(factor: str) -> Mapping[Role, Draw]:
    """The decoder of torchscale, with value, output and MLP matrices multiplied by a parameter of the scheme."""
    return {
        **PLAIN,
        Role.TOKEN_EMBEDDING: Draw("normal", "1 / sqrt(d_model)"),
        Role.POSITION_EMBEDDING: Draw("normal", "position_std"),
        **dict.fromkeys((Role.ATTENTION_QUERY, Role.ATTENTION_KEY), Draw("uniform", XAVIER_QKV)),
        Role.ATTENTION_VALUE: Draw("uniform", f"{factor} * {XAVIER_QKV}", unscaled=XAVIER_QKV),
        Role.ATTENTION_OUT: Draw("uniform", f"{factor} * {XAVIER}", unscaled=XAVIER),
        **dict.fromkeys(_MLP, Draw("uniform", f"{factor} * {_LINEAR}", unscaled=_LINEAR)),
        Role.ROUTER: Draw("uniform", _LINEAR),
        Role.LM_HEAD: Draw("normal", "1 / sqrt(d_model)"),
    }


_TORCHSCALE_NOTES = (
    "Attention matrices are those of MultiheadAttention.reset_parameters (xavier_uniform, gain 1/√2 for q, k, v). In "
    "torchscale 0.3.0 nothing calls that method, so a model that is simply built has nn.Linear's U(1 / sqrt(fan_in)) "
    "there, too.",
    "The code multiplies biases along with their matrices, and they start at nn.Linear's uniform; here they are 0.",
    "A gated MLP is not in this code; gate is treated as in.",
    "Learned positions are the caller's, and torchscale's class for them is nn.Embedding's N(1), beside which tokens "
    "of std 1 / sqrt(d_model) are lost; here positions are drawn like tokens (position_std: 1 gives theirs).",
)

DEEPNORM = Scheme(
    name="deepnorm",
    family="Depth",
    summary="post-norm on alpha * x + f(x), alpha = (2N)^1/4; value, output and MLP matrices / (8N)^1/4",
    source="microsoft/torchscale architecture/decoder.py (Decoder, DecoderLayer), component/multihead_attention.py",
    roles=_torchscale("beta"),
    parameters={
        "alpha": "(2 * n_layers) ** 0.25",
        "beta": "(8 * n_layers) ** -0.25",
        "position_std": "1 / sqrt(d_model)",
    },
    forward={"placement": "post", "stream_multiplier": "alpha"},
    depth="Each norm sets the stream back to variance 1; a branch, through two matrices with beta and next to "
    "alpha * x, is a share of it that falls like N^(-3/2).",
    used_by="DeepNet, up to 1000 layers (paper)",
    notes=(
        "Code and paper disagree about the base: the paper has xavier_normal with gain beta for value, output and MLP "
        "and gain 1 for q and k.",
        *_TORCHSCALE_NOTES,
        "alpha and beta are those of a decoder alone (or an encoder alone); with both, other numbers hold.",
    ),
    aliases=("deep-norm",),
)

SUB_LN = Scheme(
    name="sub-ln",
    family="Depth",
    summary="pre-norm with norms before output projections as well; value, output and MLP matrices * sqrt(ln 2N)",
    source="microsoft/torchscale architecture/decoder.py (subln), component/feedforward_network.py (ffn_layernorm)",
    roles=_torchscale("gamma"),
    parameters={"gamma": "sqrt(log(2 * n_layers))", "position_std": "1 / sqrt(d_model)"},
    forward={"placement": "pre", "inner_norm": "true"},
    depth="The inner norms take away what comes before them, so a branch has variance in proportion to ln 2N, and the "
    "stream grows like N ln N.",
    used_by="Magneto and Kosmos-1 (papers)",
    notes=(
        "gamma of the value matrix has no effect at the start, that of MLP in hardly any: the inner norm removes it.",
        *_TORCHSCALE_NOTES,
    ),
    aliases=("subln", "magneto"),
)

ADMIN = Scheme(
    name="admin",
    family="Depth",
    summary="post-norm on omega * x + f(x), omega² = (2N + 1) / ln(2N + 1) - 1; xavier matrices",
    source="microsoft/admin-torch admin_torch/admin.py (calculate_init)",
    roles=FAIRSEQ,
    parameters={"omega": "sqrt((2 * n_layers + 1) / log(2 * n_layers + 1) - 1)"},
    forward={"placement": "post", "stream_multiplier": "omega", "embedding_multiplier": "sqrt(d_model)"},
    depth="A branch of variance 1 is ln(2N + 1) / (2N + 1) of the stream that it is added to, so that all 2N together "
    "change the output by O(log N).",
    notes=(
        "This is admin-torch, which computes omega from N alone. The original (LiyuanLucasLiu/Transformer-Clinic) "
        "profiles it: omega_i² is the running sum of branch variances measured on a batch.",
        "admin-torch leaves the weights alone; the ones here are fairseq's, which Transformer-Clinic is built on, "
        "with its embedding * sqrt(d_model).",
        "omega can also be trained, as a vector (as_parameter); here it is a number.",
        FAIRSEQ_QKV_BIAS,
    ),
)

LAYERSCALE = Scheme(
    name="layerscale",
    family="Depth",
    summary="pre-norm with a learned vector at the end of each branch that starts at 1e-4; matrices N(0.02)",
    source="facebookresearch/deit cait_models.py (LayerScale_Block, cait_models._init_weights)",
    roles={
        **PLAIN,
        **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), Draw("normal", "std")),
        Role.MULTIPLIER: Draw("constant", "gain"),
    },
    parameters={"std": "0.02", "gain": "1e-4"},
    forward={"placement": "pre", "branch_gain": "vector"},
    depth="Branch variances are multiplied by 1e-8: the stream is the embedding at any depth in use.",
    used_by="CaiT",
    notes=(
        "1e-4 is the default of the class; CaiT's models have 1e-5 (XXS24, XXS36, XS24, S24) or 1e-6 (S36, M36, M48).",
        "The code's trunc_normal_(std=0.02) cuts at ±2, 100σ: a plain normal.",
    ),
    aliases=("layer-scale",),
)

DEPTH_SCHEMES = (DEEPNORM, SUB_LN, ADMIN, *UNNORMED_SCHEMES, LAYERSCALE)
