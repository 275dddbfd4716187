"""GPT-2's small normal, without and with the residual scaling of its paper, and what other code made of the two."""

from __future__ import annotations

from initdiag.schemes.roles import EMBEDDINGS, LINEAR_WEIGHTS, RESIDUAL_PROJECTIONS, Role
from initdiag.schemes.scheme import PLAIN, Draw, Scheme

_GROWS = "The sum of the branch variances grows like N: no std depends on depth."

_SMALL_NORMAL = {
    **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), Draw("normal", "std")),
    **PLAIN,
}

GPT2 = Scheme(
    name="gpt2",
    family="GPT-2",
    summary="every matrix and embedding N(std), biases 0; the residual stream grows with depth",
    source="openai/gpt-2 src/model.py (conv1d, wte); there wpe is N(0.01), here it is N(std) as in nanoGPT",
    roles=_SMALL_NORMAL,
    parameters={"std": "0.02"},
    depth=_GROWS,
    used_by="Hugging Face classes (Llama, Mistral, Qwen, OLMo, Phi, GPT-NeoX, Falcon, BERT, …), litgpt",
    notes=(
        "No depth scaling: the 2N branches all write with the same variance, so the sum of them grows like N.",
        "Most Hugging Face classes of the Llama family draw this, whatever their training code did; std is their "
        "initializer_range.",
        "Hugging Face's GPT-2 class scales its residual projections, as `scaled` does; transformers 5.0.0, 5.8.0 and "
        "5.14.1 drew this instead, by a bug.",
    ),
    aliases=("hf", "huggingface", "bert-hf", "litgpt"),
)

GPT2_RELEASE = Scheme(
    name="gpt2-release",
    family="GPT-2",
    summary="gpt2 as OpenAI's released file has it, with learned positions at N(0.01)",
    source="openai/gpt-2 src/model.py: conv1d, wte and wpe",
    roles={**_SMALL_NORMAL, Role.POSITION_EMBEDDING: Draw("normal", "position_std")},
    parameters={"std": "0.02", "position_std": "0.01"},
    depth=_GROWS,
    notes=("The released file has no residual scaling, though the paper describes one: see scaled.",),
)

_SCALED_NORMAL = Draw("normal", "residual_std", unscaled="std")

SCALED = Scheme(
    name="scaled",
    family="GPT-2",
    summary="gpt2 with residual projections at std / sqrt(2N), so that the stream keeps its size at any depth",
    source="GPT-2 paper, section 2.3 (1/sqrt of the residual layers), read as 2N by karpathy/nanoGPT model.py",
    roles={**_SMALL_NORMAL, **dict.fromkeys(RESIDUAL_PROJECTIONS, _SCALED_NORMAL)},
    parameters={"std": "0.02", "residual_std": "std / sqrt(2 * n_layers)"},
    depth="The sum of the branch variances stays that of one unscaled branch at any depth: 2N branches, each 1/(2N).",
    used_by="nanoGPT, minGPT, llm.c, Hugging Face's GPT-2 class; Pythia 6.9B and 12B, by an omission in their configs",
    notes=(
        "The promise: the variances of all 2N branches add up to the variance of one unscaled branch.",
        "The loss does not see whether the scaling is there: GPT-2 small starts at 10.98 with it and without it.",
    ),
    aliases=("nanogpt", "gpt2-paper", "gpt2-hf"),
)

LLAMA2C = Scheme(
    name="llama2c",
    family="GPT-2",
    summary="scaled, but with the up projection (w3) scaled where the down projection (w2) was meant",
    source="karpathy/llama2.c model.py Transformer.__init__; issue karpathy/llama2.c#579",
    roles={**_SMALL_NORMAL, **dict.fromkeys((Role.ATTENTION_OUT, Role.MLP_IN), _SCALED_NORMAL)},
    parameters={"std": "0.02", "residual_std": "std / sqrt(2 * n_layers)"},
    depth="The sum of the branch variances stays constant, since a gated MLP is linear in w3: scaling it shrinks the "
    "branch as scaling w2 would.",
    used_by="llama2.c",
    notes=(
        "mlp_in is w3, mlp_gate w1 and mlp_out w2. The MLP's branches are right in size at step zero; the gradients of "
        "w2 and w3 are not those of a scaled w2.",
        "An MLP without a gate is not linear in mlp_in: there this scheme is no depth scaling.",
    ),
    aliases=("llama2.c",),
)

TRANSFORMERLENS = Scheme(
    name="transformerlens",
    family="GPT-2",
    summary="every matrix and embedding N(0.8 / sqrt(d_model)), biases 0, no residual scaling",
    source="TransformerLensOrg/TransformerLens HookedTransformer.init_weights, mode gpt2",
    roles=_SMALL_NORMAL,
    parameters={"std": "0.8 / sqrt(d_model)"},
    depth=_GROWS,
    notes=("0.8 / sqrt(d_model) is GPT-2's 0.02 made to follow the width: 0.029 at 768, 0.02 at 1600.",),
    aliases=("transformer-lens",),
)

ZERO_RESIDUAL = Scheme(
    name="zero-residual",
    family="GPT-2",
    summary="gpt2 with residual projections of zeros: every block starts as the identity",
    source="the zeroed c_proj of karpathy/nanochat nanochat/gpt.py GPT.init_weights, on the matrices of gpt2",
    roles={**_SMALL_NORMAL, **dict.fromkeys(RESIDUAL_PROJECTIONS, Draw("constant", "0"))},
    parameters={"std": "0.02"},
    depth="The branches add nothing at step zero, so the stream is the embedding at any depth.",
    notes=(
        "In the first step nothing inside a branch but its residual projection has a gradient: behind a matrix of "
        "zeros it is 0.",
    ),
    aliases=("zero-init",),
)

GPT2_SCHEMES = (GPT2, GPT2_RELEASE, SCALED, LLAMA2C, TRANSFORMERLENS, ZERO_RESIDUAL)
