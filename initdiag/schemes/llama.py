"""Schemes of code bases that train Llama-like models: torchtitan, lingua, nanotron, DeepSeek, Gemma, MaxText, PaLM.

Meta published no init for Llama: facebookresearch/llama builds its layers with `init_method=lambda x: x`.
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

_FAMILY = "Llama line"
_ATTENTION_INPUTS = (Role.ATTENTION_QUERY, Role.ATTENTION_KEY, Role.ATTENTION_VALUE)
_MLP = (Role.MLP_GATE, Role.MLP_IN, Role.MLP_OUT)
_PLAIN_GROWTH = "grows like N: no weight depends on depth, so that every branch writes with the same variance"

TORCHTITAN = Scheme(
    name="torchtitan",
    family=_FAMILY,
    summary="N(0.02); attention out, MLP out and MLP up at std / sqrt(2(l+1)) of their layer l; embedding N(1)",
    source="pytorch/torchtitan models/llama3/__init__.py, models/common/param_init.py depth_scaled_std",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "embedding_std")),
        **dict.fromkeys((*_ATTENTION_INPUTS, Role.MLP_GATE), Draw("normal", "std")),
        **dict.fromkeys(
            (Role.MLP_IN, *RESIDUAL_PROJECTIONS, Role.ROUTER), Draw("normal", "std / sqrt(2 * depth)", unscaled="std")
        ),
        Role.LM_HEAD: Draw("truncated", "d_model ** -0.5", cut="3"),
    },
    parameters={"std": "0.02", "embedding_std": "d_model ** (-tied / 2)"},
    choices={"depth": {"layer": "layer + 1", "total": "n_layers"}},
    depth="grows like log N in attention, where layer l adds 1/(2(l+1)) of an unscaled branch; the gated MLP is scaled "
    "twice, up and out, and its sum stays bounded; with depth: total, attention is constant and the MLP falls like 1/N",
    notes=(
        "Hidden weights come from PyTorch's trunc_normal_ with its default bounds, an absolute ±2: at std 0.02 that is "
        "a cut at 100 sigmas, a plain normal, and so it is drawn here. The head is really cut, at 3 sigmas.",
        "The up projection (mlp_in, w3) is scaled as well as the down projection (w2); the gate (w1) is not. The one "
        "input matrix of an MLP without a gate is mlp_in, too, and is scaled here.",
        "depth: total is the former depth_init=False, 0.02 / sqrt(2N): gone from its Llama, kept in "
        "experiments/transformers_modeling_backend.",
        "With tied weights only the head's init is applied: the shared matrix has std 1/sqrt(d_model), there cut at 3 "
        "sigmas, here not. Forgetting it in Qwen3 gave a loss past 500 (PR #2342).",
        "Router and experts as in its models/deepseek_v3: the router is scaled like the output projections.",
        "Found by the name llama, too: Meta published no init, and PyTorch's own code trains Llama 3 from this one.",
    ),
    aliases=("llama", "llama3"),
)

DEEPSEEK = Scheme(
    name="deepseek",
    family=_FAMILY,
    summary="every matrix and embedding N(0.006), routers and experts as well; no depth scaling",
    source="papers of DeepSeek-V2 and V3 (recalled); NVIDIA-NeMo/Megatron-Bridge recipes/deepseek/h100/deepseek_v3.py",
    roles={
        **PLAIN,
        **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), Draw("normal", "std")),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, Draw("normal", "residual_std", unscaled="std")),
    },
    parameters={"std": "0.006", "residual_std": "std"},
    depth=_PLAIN_GROWTH + "; at 0.006 each is small",
    used_by="DeepSeek-V2, DeepSeek-V3",
    notes=(
        "The Megatron-Bridge recipe has the same 0.006 but goes through Megatron, which divides the output projections "
        "by sqrt(2N): residual_std: std / sqrt(2 * n_layers) gives that.",
        "The Hugging Face class draws 0.02 instead.",
        "An embedding this small makes eps count: a first norm with eps 1e-5 gives variance 0.78 instead of 1, one "
        "with 1e-6 0.97.",
    ),
)

GEMMA = Scheme(
    name="gemma",
    family=_FAMILY,
    summary="every matrix and embedding N(0.01), embeddings times sqrt(d_model), norms 1 + w with w = 0",
    source="google-deepmind/gemma gm/nn/_modules.py Embedder: public inference code, not known to be the training init",
    # a norm's gain is 1, which the plan of a one_plus norm turns into a weight of 0
    roles={**PLAIN, **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), Draw("normal", "std"))},
    parameters={"std": "0.01"},
    forward={"embedding_multiplier": "sqrt(d_model)", "norm_scale": "one_plus"},
    depth=_PLAIN_GROWTH,
    notes=(
        "What Gemma was trained from is not published: 0.01 is the default of flax's normal(), which the released code "
        "never overrides.",
        "The head is the embedding, without a scale of its own.",
        "The Hugging Face classes draw N(0.02) instead, and norm weights of 0 as well.",
    ),
)

NANOTRON = Scheme(
    name="nanotron",
    family=_FAMILY,
    summary="N(1/sqrt(d_model)) for all, attention out and MLP out (row-parallel) at std / sqrt(2N)",
    source="huggingface/nanotron scaling/parametrization.py StandardParametrizator",
    roles={
        **PLAIN,
        **dict.fromkeys((*EMBEDDINGS, *LINEAR_WEIGHTS), Draw("normal", "std")),
        **dict.fromkeys(RESIDUAL_PROJECTIONS, Draw("normal", "residual_std", unscaled="std")),
    },
    parameters={"std": "d_model ** -0.5", "residual_std": "std / sqrt(2 * n_layers)"},
    depth="constant: the 2N branches each write with 1/(2N) of the variance of an unscaled one",
    used_by="SmolLM2: 135M with std 1/24 = 1/sqrt(576), 360M with 1/sqrt(960), 1.7B with 0.02",
    notes=(
        "nanotron has no default std: 1/sqrt(d_model) is that of SmolLM2 135M and 360M; the 1.7B set 0.02, not "
        "1/sqrt(2048) = 0.0221.",
    ),
    aliases=("smollm",),
)

LINGUA = Scheme(
    name="lingua",
    family=_FAMILY,
    summary="1/sqrt(fan_in), cut at 3 sigmas; attention out and MLP out divided by a factor, by default 1",
    source="facebookresearch/lingua lingua/transformer.py InitStdFactor, apps/main/transformer.py",
    roles={
        **PLAIN,
        **dict.fromkeys((*EMBEDDINGS, Role.LM_HEAD), Draw("truncated", "d_model ** -0.5", cut="3")),
        **dict.fromkeys((*INPUT_PROJECTIONS, Role.ROUTER), Draw("truncated", "std", cut="3")),
        # the bound stays 3 * std; below 0.1 sigmas a cut normal is a uniform to three digits, whatever its sigma
        Role.ATTENTION_OUT: Draw("truncated", "std / max(factor, 0.034)", unscaled="std", cut="3 * max(factor, 0.034)"),
        Role.MLP_OUT: Draw("truncated", "fan_in ** -0.5 / factor", unscaled="fan_in ** -0.5", cut="3"),
    },
    parameters={"std": "d_model ** -0.5"},
    choices={
        "factor": {
            "disabled": "1",
            "current": "sqrt(2 * (layer + 1))",
            "global": "sqrt(2 * (n_layers + 1))",
            "dim": "d_model / 4096",
        }
    },
    depth="grows like N with factor: disabled, the default, and dim; like log N with current; constant with global",
    notes=(
        "The bound of attention out stays at 3 * std when its std is divided: with sqrt(2(l+1)) it lies at "
        "3 * sqrt(2(l+1)) sigmas and hardly cuts; with dim and d_model < 4096 it cuts hard. That of MLP out moves "
        "along with its std.",
        "global divides by sqrt(2(N+1)), not sqrt(2N).",
        "dim makes the output projections of models narrower than 4096 wider, not smaller.",
        "Its init_base_std sets the std of MLP out as well; here std is that of the other block weights.",
    ),
)

MAXTEXT = Scheme(
    name="maxtext",
    family="JAX",
    summary="1/sqrt(fan_in): attention normal, MLP and head cut at 2 sigmas with std kept; embedding N(1)",
    source="AI-Hypercomputer/maxtext layers/attentions.py init_query_w, layers/linears.py, models/models.py",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "1")),
        **dict.fromkeys((*_ATTENTION_INPUTS, Role.ATTENTION_OUT), Draw("normal", "fan_in ** -0.5")),
        Role.ATTENTION_QUERY: Draw("normal", "fan_in ** -0.5 / sqrt(key_dim)"),
        **dict.fromkeys(
            (*_MLP, Role.ROUTER, Role.LM_HEAD), Draw("truncated", "fan_in ** -0.5", cut="2", corrected=True)
        ),
    },
    parameters={"key_dim": "head_dim"},
    forward={"attention_scale": "head_dim ** (-qk_norm / 2)", "logit_multiplier": "d_model ** (-tied / 2)"},
    depth=_PLAIN_GROWTH,
    notes=(
        "Queries are drawn with the 1/sqrt(head_dim) of attention in them, and the forward pass leaves it out. With "
        "qk-norm or a query_pre_attn_scalar MaxText doesn't divide them: norms would undo it.",
        "A tied head reads an N(1) embedding, so that its logits are divided by sqrt(d_model) "
        "(normalize_embedding_logits). Untied, its default, there is no division.",
        "That JAX's truncated_normal initializer corrects the std for the cut is from memory.",
    ),
)

PALM = Scheme(
    name="palm",
    family="JAX",
    summary="N(1/sqrt(fan_in)) for every matrix, embedding N(1), shared with the head: logits / sqrt(d_model)",
    source="PaLM paper, section on model details (recalled, not re-read)",
    roles={
        **PLAIN,
        **dict.fromkeys(EMBEDDINGS, Draw("normal", "1")),
        **dict.fromkeys(LINEAR_WEIGHTS, Draw("normal", "fan_in ** -0.5")),
        Role.LM_HEAD: Draw("normal", "1"),
    },
    forward={"logit_multiplier": "1 / sqrt(d_model)"},
    depth=_PLAIN_GROWTH,
    used_by="PaLM",
    notes=("PaLM's head is its embedding; an untied head is drawn like it, N(1), since its logits are divided, too.",),
)

LLAMA_SCHEMES = (TORCHTITAN, DEEPSEEK, GEMMA, NANOTRON, LINGUA, MAXTEXT, PALM)
