"""Families of transformers 5.24.0 from GPT-2 to Qwen2, small, beside the same as configs of ours.

Sizes are such that no two of them are alike, heads are wider than d_model / n_heads and share keys and values where the
class allows it, and windows are shorter than the sequence.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from initdiag.subjects.quiet import import_transformers
from tests.parity.family import Family
from tests.parity.tools import apart, renamed, without

pytest.importorskip("transformers")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import_transformers()
    import transformers

State = Mapping[str, Tensor]

V, CONTEXT, D, N, FF = 101, 32, 48, 3, 80
OURS: Mapping[str, Any] = MappingProxyType({"vocab_size": V, "context": CONTEXT, "d_model": D, "n_layers": N})
TOKENS: Mapping[str, Any] = MappingProxyType({"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2})
THEIRS: Mapping[str, Any] = MappingProxyType(
    {"vocab_size": V, "hidden_size": D, "num_hidden_layers": N, "max_position_embeddings": CONTEXT, **TOKENS}
)
QKV = ("attention.query", "attention.key", "attention.value")


def built(cls: str, **fields: Any) -> nn.Module:
    """Build one of their classes on its own init; the same weights each time."""
    made: Any = getattr(transformers, cls)
    with warnings.catch_warnings(), torch.random.fork_rng():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        module: nn.Module = made(made.config_class(attn_implementation="eager", **fields))
    return module


def by_groups(packed: Tensor, groups: int, head_dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Cut rows that hold, for each group of heads, its queries, its key and its value."""
    rows = packed.unflatten(0, (groups, -1, head_dim))
    return rows[:, :-2].flatten(0, 2), rows[:, -2].flatten(0, 1), rows[:, -1].flatten(0, 1)


# --- GPT-2, OPT

GPT2_NAMES = {
    "transformer.wte": "token_embedding",
    "transformer.wpe": "position_embedding",
    "ln_1": "attention_norm",
    **{name: name for name in QKV},
    "attn.c_proj": "attention.out",
    "ln_2": "mlp_norm",
    "mlp.c_fc": "mlp.input",
    "mlp.c_proj": "mlp.out",
    "transformer.ln_f": "final_norm",
}


def gpt2(state: State) -> dict[str, Tensor]:
    """Their Conv1D holds (inputs, outputs)."""
    turned = {
        name: x.mT if ".c_" in name and x.dim() == 2 else x for name, x in without(state, "lm_head.weight").items()
    }
    return renamed(apart(turned, "attn.c_attn", QKV, lambda x: x.chunk(3)), "transformer.h", GPT2_NAMES)


OPT_NAMES = {
    "model.decoder.embed_tokens": "token_embedding",
    "model.decoder.embed_positions": "position_embedding",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.out",
    "self_attn_layer_norm": "attention_norm",
    "fc1": "mlp.input",
    "fc2": "mlp.out",
    "final_layer_norm": "mlp_norm",
    "model.decoder.final_layer_norm": "final_norm",
}


def opt(state: State) -> dict[str, Tensor]:
    return renamed(without(state, "lm_head.weight"), "model.decoder.layers", OPT_NAMES)


def opt_family(name: str, placement: str, **fields: Any) -> Family:
    """OPT's norms have nn.LayerNorm's own eps, 1e-5. The 350M one is post-norm."""
    return Family(
        name,
        {**OURS, "n_heads": 4, "d_ff": FF, "activation": "relu", "position_offset": 2, "placement": placement},
        lambda: built("OPTForCausalLM", **THEIRS, num_attention_heads=4, ffn_dim=FF, word_embed_proj_dim=D, **fields),
        opt,
    )


# --- with ALiBi: BLOOM, MPT

BLOOM_NAMES = {
    "transformer.word_embeddings": "token_embedding",
    "transformer.word_embeddings_layernorm": "embedding_norm",
    "input_layernorm": "attention_norm",
    **{name: name for name in QKV},
    "self_attention.dense": "attention.out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.dense_h_to_4h": "mlp.input",
    "mlp.dense_4h_to_h": "mlp.out",
    "transformer.ln_f": "final_norm",
}


def bloom_family(heads: int) -> Family:
    def ours(state: State) -> dict[str, Tensor]:
        parted = apart(state, "self_attention.query_key_value", QKV, lambda x: by_groups(x, heads, D // heads))
        return renamed(without(parted, "lm_head.weight"), "transformer.h", BLOOM_NAMES)

    model = {"n_heads": heads, "activation": "gelu_tanh", "eps": 1e-3, "embedding_norm": True, "position": "alibi"}
    given = {"hidden_size": D, "n_layer": N, "n_head": heads, "layer_norm_epsilon": 1e-3}
    return Family(
        f"bloom, {heads} heads",
        {**OURS, **model},
        lambda: built("BloomForCausalLM", vocab_size=V, **given, **TOKENS),
        ours,
    )


MPT_NAMES = {
    "transformer.wte": "token_embedding",
    "norm_1": "attention_norm",
    **{name: name for name in QKV},
    "attn.out_proj": "attention.out",
    "norm_2": "mlp_norm",
    "ffn.up_proj": "mlp.input",
    "ffn.down_proj": "mlp.out",
    "transformer.norm_f": "final_norm",
}


def mpt(state: State) -> dict[str, Tensor]:
    parted = apart(without(state, "lm_head.weight"), "attn.Wqkv", QKV, lambda x: x.chunk(3))
    return renamed(parted, "transformer.blocks", MPT_NAMES)


def mpt_family(heads: int) -> Family:
    model = {"n_heads": heads, "eps": 1e-3, "position": "alibi", "attention_scale": 0.5, "biases": False}
    given = {"d_model": D, "n_heads": heads, "n_layers": N, "max_seq_len": CONTEXT, "layer_norm_epsilon": 1e-3}
    return Family(
        f"mpt, {heads} heads",
        {**OURS, **model},
        lambda: built("MptForCausalLM", vocab_size=V, **given, attn_config={"softmax_scale": 0.5}, **TOKENS),
        mpt,
    )


# --- rotary, with parallel blocks: GPT-NeoX, GPT-J, Falcon, Phi

NEOX_NAMES = {
    "gpt_neox.embed_in": "token_embedding",
    "input_layernorm": "attention_norm",
    **{name: name for name in QKV},
    "attention.dense": "attention.out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.dense_h_to_4h": "mlp.input",
    "mlp.dense_4h_to_h": "mlp.out",
    "gpt_neox.final_layer_norm": "final_norm",
    "lm_head": "head",
}


def neox(state: State) -> dict[str, Tensor]:
    parted = apart(state, "attention.query_key_value", QKV, lambda x: by_groups(x, 4, D // 4))
    return renamed(parted, "gpt_neox.layers", NEOX_NAMES)


def neox_family(name: str, placement: str, **fields: Any) -> Family:
    model = {"n_heads": 4, "d_ff": FF, "eps": 1e-3, "placement": placement, "tied": False}
    rotary = {"position": "rotary", "rotary_base": 100.0, "rotary_dims": 6}
    given = {"num_attention_heads": 4, "intermediate_size": FF, "layer_norm_eps": 1e-3}
    rope = {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    return Family(
        name,
        {**OURS, **model, **rotary},
        lambda: built("GPTNeoXForCausalLM", **THEIRS, **given, rope_parameters=rope, **fields),
        neox,
    )


GPTJ_NAMES = {
    "transformer.wte": "token_embedding",
    "ln_1": "attention_norm",
    "attn.q_proj": "attention.query",
    "attn.k_proj": "attention.key",
    "attn.v_proj": "attention.value",
    "attn.out_proj": "attention.out",
    "mlp.fc_in": "mlp.input",
    "mlp.fc_out": "mlp.out",
    "transformer.ln_f": "final_norm",
    "lm_head": "head",
}
GPTJ_DIMS = 8


def halved(rows: Tensor, heads: int) -> Tensor:
    """Put features that turn with their neighbours, 0 with 1, where they turn with features half a width away."""
    width = len(rows) // heads
    order = [*range(0, GPTJ_DIMS, 2), *range(1, GPTJ_DIMS, 2), *range(GPTJ_DIMS, width)]
    reordered: Tensor = rows.unflatten(0, (heads, width))[:, order].flatten(0, 1)
    return reordered


def gptj(state: State) -> dict[str, Tensor]:
    turning = ("attn.q_proj.weight", "attn.k_proj.weight")
    rows = {name: halved(x, 4) if name.endswith(turning) else x for name, x in state.items()}
    return renamed(rows, "transformer.h", GPTJ_NAMES)


FALCON_NAMES = {
    "transformer.word_embeddings": "token_embedding",
    "input_layernorm": "attention_norm",
    "ln_attn": "attention_norm",
    **{name: name for name in QKV},
    "self_attention.dense": "attention.out",
    "post_attention_layernorm": "mlp_norm",
    "ln_mlp": "mlp_norm",
    "mlp.dense_h_to_4h": "mlp.input",
    "mlp.dense_4h_to_h": "mlp.out",
    "transformer.ln_f": "final_norm",
}


def falcon_family(name: str, placement: str, kv: int, biases: Any, **fields: Any) -> Family:
    def ours(state: State) -> dict[str, Tensor]:
        parted = apart(state, "self_attention.query_key_value", QKV, lambda x: by_groups(x, kv, D // 4))
        return renamed(without(parted, "lm_head.weight"), "transformer.h", FALCON_NAMES)

    model = {"n_heads": 4, "n_kv_heads": kv, "d_ff": FF, "eps": 1e-3, "placement": placement, "biases": biases}
    rotary = {"position": "rotary", "rotary_base": 100.0}
    given = {"num_attention_heads": 4, "ffn_hidden_size": FF, "layer_norm_epsilon": 1e-3, "alibi": False}
    rope = {"rope_type": "default", "rope_theta": 100.0}
    return Family(
        name,
        {**OURS, **model, **rotary},
        lambda: built("FalconForCausalLM", **THEIRS, **given, rope_parameters=rope, **fields),
        ours,
    )


PHI_NAMES = {
    "model.embed_tokens": "token_embedding",
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.dense": "attention.out",
    "mlp.fc1": "mlp.input",
    "mlp.fc2": "mlp.out",
    "model.final_layernorm": "final_norm",
    "lm_head": "head",
}

# --- the Llama line: Llama, Mistral, Qwen2, Phi-3, and StarCoder2 with another MLP

LLAMA_NAMES = {
    "model.embed_tokens": "token_embedding",
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.o_proj": "attention.out",
    "post_attention_layernorm": "mlp_norm",
    "mlp.gate_proj": "mlp.gate",
    "mlp.up_proj": "mlp.input",
    "mlp.down_proj": "mlp.out",
    "model.norm": "final_norm",
    "lm_head": "head",
}
STARCODER_NAMES = {**LLAMA_NAMES, "mlp.c_fc": "mlp.input", "mlp.c_proj": "mlp.out"}
PHI3_NAMES = {**LLAMA_NAMES, **{name: name for name in (*QKV, "mlp.gate", "mlp.input")}}

HEADS, KV, HEAD_DIM = 6, 2, 12  # 72 wide altogether, with d_model 48
LLAMA: Mapping[str, Any] = MappingProxyType(
    {
        **OURS,
        "n_heads": HEADS,
        "n_kv_heads": KV,
        "head_dim": HEAD_DIM,
        "d_ff": FF,
        "activation": "silu",
        "gated": True,
        "norm": "rmsnorm",
        "eps": 1e-3,
        "position": "rotary",
        "rotary_base": 100.0,
        "tied": False,
        "biases": False,
    }
)
LLAMA_GIVEN: Mapping[str, Any] = MappingProxyType(
    {
        **THEIRS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV,
        "head_dim": HEAD_DIM,
        "intermediate_size": FF,
        "rms_norm_eps": 1e-3,
        "tie_word_embeddings": False,
    }
)


def rope(kind: str = "default", **fields: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 100.0, **fields}


def llama(state: State) -> dict[str, Tensor]:
    return renamed(state, "model.layers", LLAMA_NAMES)


def llama_family(name: str, model: Mapping[str, Any], cls: str = "LlamaForCausalLM", **fields: Any) -> Family:
    given = {**LLAMA_GIVEN, "rope_parameters": rope(), **fields}
    return Family(name, {**LLAMA, **model}, lambda: built(cls, **given), llama)


def phi3(state: State) -> dict[str, Tensor]:
    sizes = (HEADS * HEAD_DIM, KV * HEAD_DIM, KV * HEAD_DIM)
    parted = apart(state, "self_attn.qkv_proj", QKV, lambda x: x.split(sizes))
    parted = {name.replace(".self_attn.attention.", ".attention."): x for name, x in parted.items()}
    return renamed(
        apart(parted, "mlp.gate_up_proj", ("mlp.gate", "mlp.input"), lambda x: x.chunk(2)), "model.layers", PHI3_NAMES
    )


def tied_llama(state: State) -> dict[str, Tensor]:
    return llama(without(state, "lm_head.weight"))


def starcoder2(state: State) -> dict[str, Tensor]:
    return renamed(without(state, "lm_head.weight"), "model.layers", STARCODER_NAMES)


# --- all of them

EARLY_ROTARY = {"position": "rotary", "rotary_base": 100.0}
PARALLEL = {"n_heads": 4, "d_ff": FF, "activation": "gelu_tanh", "eps": 1e-3, "placement": "parallel_shared"}
YARN_SCALE = "(0.1 * log(8) + 1) ** 2 / sqrt(head_dim)"  # theirs multiplies cos and sin, so queries and keys, by it

FAMILIES: tuple[Family, ...] = (
    Family(
        "gpt2",
        {**OURS, "n_heads": 4, "d_ff": FF, "activation": "gelu_tanh", "eps": 1e-3},
        lambda: built(
            "GPT2LMHeadModel",
            **{"vocab_size": V, "n_embd": D, "n_layer": N, "n_head": 4, "n_positions": CONTEXT, "n_inner": FF},
            layer_norm_epsilon=1e-3,
            **TOKENS,
        ),
        gpt2,
    ),
    opt_family("opt", "pre"),
    opt_family("opt, post-norm", "post", do_layer_norm_before=False),
    bloom_family(4),
    bloom_family(6),
    mpt_family(4),
    mpt_family(6),
    neox_family("gpt-neox", "parallel"),
    neox_family("gpt-neox, sequential", "pre", use_parallel_residual=False),
    Family(
        "gpt-j",
        {
            **OURS,
            **PARALLEL,
            "position": "rotary",
            "rotary_dims": GPTJ_DIMS,
            "tied": False,
            "biases": {"mlp": True, "norm": True, "head": True},
        },
        lambda: built(
            "GPTJForCausalLM",
            **{"vocab_size": V, "n_embd": D, "n_layer": N, "n_head": 4, "n_positions": CONTEXT, "n_inner": FF},
            rotary_dim=GPTJ_DIMS,
            layer_norm_epsilon=1e-3,
            **TOKENS,
        ),
        gptj,
    ),
    falcon_family("falcon-7b", "parallel_shared", 1, {"norm": True}, multi_query=True),
    falcon_family("falcon-40b", "parallel", 2, {"norm": True}, new_decoder_architecture=True, num_kv_heads=2),
    falcon_family("falcon, sequential", "pre", 4, True, multi_query=False, parallel_attn=False, bias=True),
    Family(
        "phi",
        {
            **OURS,
            **PARALLEL,
            **EARLY_ROTARY,
            "n_heads": HEADS,
            "n_kv_heads": KV,
            "head_dim": HEAD_DIM,
            "rotary_dims": 6,
            "tied": False,
            "biases": {"qkv": True, "out": True, "mlp": True, "norm": True, "head": True},
        },
        lambda: built(
            "PhiForCausalLM",
            **{**THEIRS, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": HEAD_DIM},
            **{"intermediate_size": FF, "layer_norm_eps": 1e-3},
            rope_parameters=rope(partial_rotary_factor=0.5),
        ),
        lambda state: renamed(state, "model.layers", PHI_NAMES),
    ),
    llama_family("llama", {}),
    llama_family(
        "llama, with biases",
        {"biases": {"qkv": True, "out": True, "mlp": True}},
        attention_bias=True,
        mlp_bias=True,
    ),
    llama_family(
        "llama, llama3",  # with six pairs of features, turning 24/2π · (1 … 0.02) times in 24 tokens: some in all bands
        {"rotary_scaling": {"kind": "llama3", "factor": 8.0, "low": 0.5, "high": 2.0, "context": 24}},
        rope_parameters=rope(
            "llama3", factor=8.0, low_freq_factor=0.5, high_freq_factor=2.0, original_max_position_embeddings=24
        ),
    ),
    llama_family(
        "llama, linear",
        {"rotary_scaling": {"kind": "linear", "factor": 3.0}},
        rope_parameters=rope("linear", factor=3.0),
    ),
    llama_family(
        "llama, yarn",
        {
            "rotary_scaling": {"kind": "yarn", "factor": 8.0, "low": 0.5, "high": 2.0, "context": 24},
            "attention_scale": YARN_SCALE,
        },
        rope_parameters=rope("yarn", factor=8.0, beta_slow=0.5, beta_fast=2.0, original_max_position_embeddings=24),
    ),
    llama_family(
        "llama, yarn, not rounded",
        {
            "rotary_scaling": {
                **{"kind": "yarn", "factor": 8.0, "low": 0.5, "high": 2.0, "context": 24},
                "rounded": False,
            },
            "attention_scale": YARN_SCALE,
        },
        rope_parameters=rope(
            "yarn", factor=8.0, beta_slow=0.5, beta_fast=2.0, original_max_position_embeddings=24, truncate=False
        ),
    ),
    llama_family("mistral", {"windows": [7]}, "MistralForCausalLM", sliding_window=7),
    Family(
        "phi-3",
        {**LLAMA, "rotary_dims": 6, "windows": [7]},
        lambda: built(
            "Phi3ForCausalLM", **LLAMA_GIVEN, sliding_window=7, rope_parameters=rope(partial_rotary_factor=0.5)
        ),
        phi3,
    ),
    Family(
        "starcoder2",
        {
            **LLAMA,
            "activation": "gelu_tanh",
            "gated": False,
            "norm": "layernorm",
            "windows": [7],
            "tied": True,
            "biases": True,
        },
        lambda: built(
            "Starcoder2ForCausalLM",
            **{name: x for name, x in LLAMA_GIVEN.items() if name not in ("rms_norm_eps", "tie_word_embeddings")},
            norm_epsilon=1e-3,
            sliding_window=7,
            rope_parameters=rope(),
        ),
        starcoder2,
    ),
    Family(
        "qwen2",
        {**LLAMA, "windows": [None, 7, 7], "tied": True, "biases": {"qkv": True}},
        lambda: built(
            "Qwen2ForCausalLM",
            **{**LLAMA_GIVEN, "tie_word_embeddings": True},
            **{"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
            rope_parameters=rope(),
        ),
        tied_llama,
    ),
)
