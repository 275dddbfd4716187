"""GPT-2's small normal, without and with the residual scaling of its paper."""

from __future__ import annotations

from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS, RESIDUAL_PROJECTIONS, Role
from initdiag.schemes.scheme import Draw, Scheme

_SMALL_NORMAL = {
    **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), Draw("normal", "std")),
    Role.BIAS: Draw("constant", "0"),
    Role.NORM_SCALE: Draw("constant", "1"),
    Role.NORM_BIAS: Draw("constant", "0"),
}

GPT2 = Scheme(
    name="gpt2",
    summary="every matrix and embedding N(std), biases 0; the residual stream grows with depth",
    source="openai/gpt-2 src/model.py (conv1d, wte); there wpe is N(0.01), here it is N(std) as in nanoGPT",
    roles=_SMALL_NORMAL,
    parameters={"std": "0.02"},
    notes=(
        "No depth scaling: the 2N branches all write with the same variance, so the sum of them grows like N.",
        "Most Hugging Face classes of the Llama family draw this, whatever their training code did.",
    ),
)

SCALED = Scheme(
    name="scaled",
    summary="gpt2 with residual projections at std / sqrt(2N), so that the stream keeps its size at any depth",
    source="GPT-2 paper, section 2.3 (1/sqrt of the residual layers), read as 2N by karpathy/nanoGPT model.py",
    roles={
        **_SMALL_NORMAL,
        **dict.fromkeys(RESIDUAL_PROJECTIONS, Draw("normal", "residual_std", unscaled="std")),
    },
    parameters={"std": "0.02", "residual_std": "std / sqrt(2 * n_layers)"},
    notes=(
        "The promise: the variances of all 2N branches add up to the variance of one unscaled branch.",
        "The loss does not see whether the scaling is there: GPT-2 small starts at 10.98 with it and without it.",
    ),
)
