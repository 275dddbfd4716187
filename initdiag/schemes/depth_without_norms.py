"""Depth without normalization: x + f(x), with weights or learned gains that keep the branches small at the start."""

from __future__ import annotations

from initdiag.schemes.roles import BLOCK_WEIGHTS, EMBEDDINGS, LINEAR_WEIGHTS, RESIDUAL_PROJECTIONS, Role
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

XAVIER = "sqrt(6 / (fan_in + fan_out))"  # the bound of xavier_uniform_
XAVIER_QKV = "sqrt(3 / (fan_in + fan_out))"  # with gain 1/√2: what the packed 3d × d matrix of q, k, v would get

# fairseq's Transformer (modules/multihead_attention.py, models/transformer.py), which several of these start from
FAIRSEQ = {
    **PLAIN,
    **dict.fromkeys(EMBEDDINGS, Draw("normal", "1 / sqrt(d_model)")),
    **dict.fromkeys(BLOCK_WEIGHTS, Draw("uniform", XAVIER)),
    **dict.fromkeys((Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE), Draw("uniform", XAVIER_QKV)),
    Role.LM_HEAD: Draw("normal", "1 / sqrt(d_model)"),
}
FAIRSEQ_QKV_BIAS = "fairseq leaves the biases of q, k and v at nn.Linear's uniform; here all biases are 0."

_NO_NORMS = {"placement": "none", "final_norm": "false"}
_MLP_IN = (Role.MLP_IN, Role.MLP_GATE)
_NO_EMBEDDING = "Embedding and head are not part of {}; here they have GPT-2's N(0.02), settable as embedding_std."

T_FIXUP = Scheme(
    name="t-fixup",
    family="Depth",
    summary="no norms: xavier with value, output and MLP matrices and the embedding * (9N)^-1/4",
    source="layer6ai-labs/T-Fixup fairseq/modules/transformer_layer.py (TransformerDecoderLayer.fixup_initialization)",
    roles={
        **FAIRSEQ,
        **dict.fromkeys(
            (Role.ATTENTION_VALUE, *RESIDUAL_PROJECTIONS, *_MLP_IN),
            Draw("uniform", f"scale * {XAVIER}", unscaled=XAVIER),
        ),
        Role.TOKEN_EMBEDDING: Draw("normal", "scale / sqrt(d_model)", unscaled="1 / sqrt(d_model)"),
    },
    parameters={"scale": "(9 * n_layers) ** -0.25"},
    forward={**_NO_NORMS, "embedding_multiplier": "sqrt(d_model)"},
    depth="A branch passes two scaled matrices, so its variance is in proportion to 1/(9N) of the stream's, and 2N of "
    "them add up to the same share of it at any depth.",
    notes=(
        "A decoder-only model is not defined by the paper: this is its decoder, in which 9 counts the cross "
        "attention as well. Its encoder has 0.67 N^-1/4.",
        "In code, queries and keys keep fairseq's gain 1/√2 and only the value matrix is multiplied by √2.",
        "An untied head is N(1 / sqrt(d_model)), not scaled; a tied one is the scaled embedding.",
        "Positions are not scaled.",
        FAIRSEQ_QKV_BIAS,
    ),
    aliases=("tfixup",),
)

FIXUP = Scheme(
    name="fixup",
    family="Depth",
    summary="no norms: xavier, MLP in * (2N)^-1/2, q, k and v * (2N)^-1/6, output projections and head 0",
    source="hongyi-zhang/Fixup fairseq/models/transformer_zero.py, modules/multihead_attention_zero.py",
    roles={
        **FAIRSEQ,
        **dict.fromkeys(
            (Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE),
            Draw("uniform", f"(2 * n_layers) ** -(1 / 6) * {XAVIER_QKV}", unscaled=XAVIER_QKV),
        ),
        **dict.fromkeys(_MLP_IN, Draw("uniform", f"(2 * n_layers) ** -0.5 * {XAVIER}", unscaled=XAVIER)),
        **dict.fromkeys((*RESIDUAL_PROJECTIONS, Role.LM_HEAD), Draw("constant", "0")),
    },
    forward={**_NO_NORMS, "branch_gain": "scalar", "embedding_multiplier": "sqrt(d_model)"},
    depth="Every branch ends in zeros: the stream is the embedding at any depth, and the factors only bound the first "
    "updates.",
    notes=(
        "The rule is (number of branches)^(-1 / (2m - 2)) for all but the last of the m matrices of a branch, and 0 "
        "for the last: m = 2 in the MLP, m = 4 in attention (q, k, v, out). The base is xavier in the authors' "
        "Transformer; in their ResNets it is He.",
        "The authors' model also has scalar biases, 0 at the start, before every matrix and activation; a reference "
        "Transformer has none.",
        "With a gated MLP, gate and in both get the factor of m = 2; the authors' MLP has no gate.",
        "With the head at 0 the loss starts at ln V exactly; a tied head is the embedding instead.",
    ),
)

REZERO = Scheme(
    name="rezero",
    family="Depth",
    summary="no norms: x + a * f(x) with a learned number a for each branch that starts at 0; xavier matrices",
    source="majumderb/rezero rezero/transformer/rztx.py (RZTXEncoderLayer, Transformer)",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "embedding_std")),
        **dict.fromkeys(BLOCK_WEIGHTS, Draw("uniform", XAVIER)),
        # nn.MultiheadAttention packs q, k and v, which makes xavier's fan_out that of all three
        **dict.fromkeys((Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE), Draw("uniform", XAVIER_QKV)),
        Role.LM_HEAD: Draw("normal", "embedding_std"),
        Role.MULTIPLIER: Draw("constant", "gain"),
    },
    parameters={"gain": "0", "embedding_std": "0.02"},
    forward={**_NO_NORMS, "branch_gain": "scalar"},
    depth="Every branch is multiplied by 0: the stream is the embedding at any depth.",
    notes=(
        "The code has one number for attention and MLP of a layer together; here each branch has its own.",
        "Xavier is what the package's Transformer() gets from nn.Transformer; a layer made alone keeps the defaults of "
        "nn.MultiheadAttention and nn.Linear, uniform biases of the MLP included.",
        _NO_EMBEDDING.format("ReZero"),
    ),
    aliases=("re-zero",),
)

SKIPINIT = Scheme(
    name="skipinit",
    family="Depth",
    summary="no norms: a learned number at the end of each branch that starts at 0; He-normal matrices",
    source="De and Smith 2020, arXiv 2002.10444 (recalled; no public code was read)",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "embedding_std")),
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("normal", "sqrt(2 / fan_in)")),
        Role.LM_HEAD: Draw("normal", "embedding_std"),
        Role.MULTIPLIER: Draw("constant", "gain"),
    },
    parameters={"gain": "0", "embedding_std": "0.02"},
    forward={**_NO_NORMS, "branch_gain": "scalar"},
    depth="Every branch is multiplied by 0: the stream is the embedding at any depth.",
    notes=(
        "The paper is about ResNets without batch normalization; that the norms of a Transformer go as well is our "
        "reading. What differs from rezero here is the He init.",
        _NO_EMBEDDING.format("SkipInit"),
    ),
    aliases=("skip-init",),
)

UNNORMED_SCHEMES = (T_FIXUP, FIXUP, REZERO, SKIPINIT)
