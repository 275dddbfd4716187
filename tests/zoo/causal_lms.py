"""Causal language models of the `transformers` release in constraints.txt, at tiny sizes, and what is true of each.

Nothing here comes from our tracer. Branches, wiring and roles were read off modeling_*.py of transformers 5.24.0 (the
`where` of each row says in which function the additions stand), and tests/zoo/test_causal_lms.py first holds every row
against plain forward hooks: block out = block in + Σ branches, or, in post-norm, what each norm reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

V, D, LAYERS, HEADS, KV, FF, T = 300, 48, 3, 4, 2, 80, 32

Roles = Mapping[str, str]
Rows = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Added:
    """One branch of a layer: kind (alternatives by "|"), the weights that may be named as having written it.

    out: the module whose output is added (default: that of the first weight). read_by: in post-norm, the norm whose
    input is the sum. joined: how many branches are summed before they meet the stream. normed: a norm comes after the
    projection.
    """

    kind: str
    weights: tuple[str, ...]
    out: str = ""
    read_by: str = ""
    joined: int = 1
    normed: bool = False

    @property
    def output(self) -> str:
        return self.out or self.weights[0].removesuffix(".weight")


@dataclass(frozen=True, eq=False)
class Row:
    """A class of transformers, how to make a tiny one, and what is to be found in it.

    layer: path of a layer, "{}" for its number. branches: of every layer; others: of layers that differ, by number.
    times: what branches are multiplied by before they are added. roles: by pattern (fnmatch, first match counts,
    alternatives by "|"): every parameter of two axes or more has one. parts: of packed matrices, the roles of their
    output rows in order of the source. where: where the additions stand.
    """

    name: str
    cls: str
    given: Mapping[str, Any]
    layer: str
    branches: tuple[Added, ...]
    roles: Roles
    head: str
    embedding: str
    where: str
    placement: str = "pre"
    tied: bool = True
    layers: int = LAYERS
    times: float = 1.0
    others: Mapping[int, tuple[Added, ...]] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, Rows]] = field(default_factory=dict)

    def of(self, layer: int) -> tuple[Added, ...]:
        return self.others.get(layer, self.branches)


def mha(weight: str, **more: Any) -> Added:
    return Added("attention", (weight,), **more)


def mlp(weight: str, **more: Any) -> Added:
    return Added("mlp", (weight,), **more)


def moe(*weights: str, out: str = "mlp", **more: Any) -> Added:
    """One branch, also where a shared expert's output is summed with that of the routed ones before it is added."""
    return Added("moe", weights, out=out, **more)


def mixer(weight: str, **more: Any) -> Added:
    """A state-space, recurrent or convolutional mixer: no attention, and two products or more."""
    return Added("other|mlp", (weight,), **more)


# --- sizes, under the names that config classes have for them

S: Mapping[str, Any] = MappingProxyType(
    {
        "vocab_size": V,
        "hidden_size": D,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": FF,
        "max_position_embeddings": 64,
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
)
G = MappingProxyType({**S, "num_key_value_heads": KV})  # grouped queries
HD = MappingProxyType({**G, "head_dim": D // HEADS})
WINDOW = MappingProxyType({**G, "sliding_window": 16})
DECODER = MappingProxyType({**S, "is_decoder": True, "pad_token_id": 0})
N = MappingProxyType(
    {
        "vocab_size": V,
        "n_embd": D,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "n_positions": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
)
OPT = MappingProxyType(
    {
        "vocab_size": V,
        "hidden_size": D,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "ffn_dim": FF,
        "max_position_embeddings": 64,
        "word_embed_proj_dim": D,
        "pad_token_id": 0,
    }
)
FALCON = MappingProxyType(
    {
        "vocab_size": V,
        "hidden_size": D,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
)
MLA = MappingProxyType(
    {
        **G,
        "num_key_value_heads": HEADS,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 16,
        "q_lora_rank": 24,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 12,
    }
)
MAMBA = MappingProxyType(
    {"vocab_size": V, "hidden_size": D, "num_hidden_layers": LAYERS, "state_size": 8, "pad_token_id": 0}
)

# --- roles by name pattern, as the names are in the source

Q, K, VALUE, OUT = "attention_query", "attention_key", "attention_value", "attention_out"
GATE, UP, DOWN, ROUTER = "mlp_gate", "mlp_in", "mlp_out", "router"
PACKED = f"{Q}|{K}|{VALUE}|other"  # what the whole of a packed matrix is called is free; its parts are not
BESIDE = f"other|{UP}"  # before the first branch or after the last: widens the embedding, narrows or turns the states
ENDS = {
    "*embed_tokens.weight": "token_embedding",
    "*wte.weight": "token_embedding",
    "*embed_in.weight": "token_embedding",
    "*word_embeddings.weight": "token_embedding",
    "*wpe.weight": "position_embedding",
    "*embed_positions.weight": "position_embedding",
    "*position_embeddings.weight": "position_embedding",
    "*token_type_embeddings.weight": "position_embedding|token_embedding|other",  # a third table: segments
    "lm_head.weight": "lm_head",
}
QKVO = {"*.q_proj.weight": Q, "*.k_proj.weight": K, "*.v_proj.weight": VALUE, "*.o_proj.weight": OUT}
OUT_PROJ = {**QKVO, "*.out_proj.weight": OUT}
GATED = {"*.gate_proj.weight": GATE, "*.up_proj.weight": UP, "*.down_proj.weight": DOWN}
FC = {"*fc1.weight": UP, "*fc2.weight": DOWN, "*fc_in.weight": UP, "*fc_out.weight": DOWN}
C_FC = {"*attn.c_attn.weight": PACKED, "*attn.c_proj.weight": OUT, "*mlp.c_fc.weight": UP, "*mlp.c_proj.weight": DOWN}
NEOX = {
    "*.query_key_value.weight": PACKED,
    "*.dense.weight": OUT,
    "*.dense_h_to_4h.weight": UP,
    "*.dense_4h_to_h.weight": DOWN,
}
EXPERTS = {
    "*.experts.gate_up_proj": f"{GATE}|{UP}",
    "*.experts.down_proj": DOWN,
    "*.mlp.gate.weight": ROUTER,
    "*.router.weight": ROUTER,
}
BERT = {
    "*.self.query.weight": Q,
    "*.self.key.weight": K,
    "*.self.value.weight": VALUE,
    "*.attention.output.dense.weight": OUT,
    "*.intermediate.dense.weight": UP,
    "*.output.dense.weight": DOWN,
}
SSM = {
    "*.mixer.out_proj.weight": DOWN,
    "*.mamba.out_proj.weight": DOWN,
    "*.in_proj.weight": f"{UP}|{GATE}|other",  # (input, gate) of the scan: a gated branch, seen from the graph
    "*.x_proj.weight": f"{UP}|{GATE}|other",
    "*.dt_proj.weight": f"{UP}|{GATE}|other",
    "*.conv1d.weight": "other",
    "*.A_log": "other|multiplier",
}
LLAMA_ROLES = {**ENDS, **QKVO, **GATED}
PLAIN_ROLES = {**ENDS, **QKVO, "*.up_proj.weight": UP, "*.down_proj.weight": DOWN}

# --- packed matrices: which output rows are what


def in_a_row(*sizes: tuple[str, int]) -> dict[str, Rows]:
    """Blocks one after the other."""
    rows: dict[str, Rows] = {}
    start = 0
    for role, size in sizes:
        rows[role] = (*rows.get(role, ()), (start, start + size))
        start += size
    return rows


def repeated(times: int, *sizes: tuple[str, int]) -> dict[str, Rows]:
    """The same blocks again and again, one set per head or per group of heads."""
    return in_a_row(*(sizes * times))


QKV = in_a_row((Q, D), (K, D), (VALUE, D))
BY_HEAD = repeated(HEADS, (Q, D // HEADS), (K, D // HEADS), (VALUE, D // HEADS))
GATE_UP = in_a_row((GATE, FF), (UP, FF))
EXPERT_PARTS = {"*.experts.gate_up_proj": GATE_UP}
SMALL_EXPERT_PARTS = {"*.experts.gate_up_proj": in_a_row((GATE, 32), (UP, 32))}
# Per head 8 rows of keys (without position) and 12 of values; the 4 rotary rows of the keys come from kv_a_proj.
MLA_PARTS = {"*.kv_b_proj.weight": repeated(HEADS, (K, 8), (VALUE, 12)), **SMALL_EXPERT_PARTS}

# --- layers

LLAMA = (mha("self_attn.o_proj.weight"), mlp("mlp.down_proj.weight"))
NORMED = (
    mha("self_attn.o_proj.weight", out="post_attention_layernorm", normed=True),
    mlp("mlp.down_proj.weight", out="post_feedforward_layernorm", normed=True),
)
ROUTED = (mha("self_attn.o_proj.weight"), moe("mlp.experts.down_proj"))
BERT_POST = (
    mha("attention.output.dense.weight", read_by="attention.output.LayerNorm"),
    mlp("output.dense.weight", read_by="output.LayerNorm"),
)
IN_DECODER_LAYER = "DecoderLayer.forward: hidden_states = residual + hidden_states, twice"


def llama(name: str, cls: str, given: Mapping[str, Any] = G, **more: Any) -> Row:
    """Rows of the family: model.layers.N.self_attn / mlp, pre-norm, additions in the layer's forward."""
    row: dict[str, Any] = {
        "layer": "model.layers.{}",
        "branches": LLAMA,
        "roles": LLAMA_ROLES,
        "head": "lm_head.weight",
        "embedding": "model.embed_tokens.weight",
        "where": IN_DECODER_LAYER,
        "tied": False,
    }
    return Row(name, cls, given, **{**row, **more})


def gpt(name: str, cls: str, given: Mapping[str, Any] = N, **more: Any) -> Row:
    """Rows of the older family: transformer.h.N, transformer.wte, tied."""
    row: dict[str, Any] = {
        "layer": "transformer.h.{}",
        "branches": (mha("attn.c_proj.weight"), mlp("mlp.c_proj.weight")),
        "roles": {**ENDS, **C_FC},
        "head": "lm_head.weight",
        "embedding": "transformer.wte.weight",
        "where": "Block.forward: attn_output + residual; residual + feed_forward_hidden_states",
    }
    return Row(name, cls, given, **{**row, **more})


def neox(name: str, parallel: bool) -> Row:
    joined = 2 if parallel else 1
    return Row(
        name,
        "GPTNeoXForCausalLM",
        {**S, "use_parallel_residual": parallel},
        "gpt_neox.layers.{}",
        (mha("attention.dense.weight", joined=joined), mlp("mlp.dense_4h_to_h.weight", joined=joined)),
        {**ENDS, **NEOX},
        "lm_head.weight",
        "gpt_neox.embed_in.weight",
        "GPTNeoXLayer.forward: mlp_output + attn_output + hidden_states" if parallel else "GPTNeoXLayer.forward",
        tied=False,
        parts={"*.query_key_value.weight": BY_HEAD},
    )


def falcon(name: str, given: Mapping[str, Any], joined: int, where: str, parts: Mapping[str, Rows]) -> Row:
    return gpt(
        name,
        "FalconForCausalLM",
        {**FALCON, **given},
        branches=(
            mha("self_attention.dense.weight", joined=joined),
            mlp("mlp.dense_4h_to_h.weight", joined=joined),
        ),
        roles={**ENDS, **NEOX},
        embedding="transformer.word_embeddings.weight",
        where=where,
        parts={"*.query_key_value.weight": parts},
    )


def opt(name: str, given: Mapping[str, Any], post: bool) -> Row:
    return Row(
        name,
        "OPTForCausalLM",
        {**OPT, **given},
        "model.decoder.layers.{}",
        (
            mha("self_attn.out_proj.weight", read_by="self_attn_layer_norm" if post else ""),
            mlp("fc2.weight", read_by="final_layer_norm" if post else ""),
        ),
        {**ENDS, **OUT_PROJ, **FC, "*.project_in.weight": BESIDE, "*.project_out.weight": BESIDE},
        "lm_head.weight",
        "model.decoder.embed_tokens.weight",
        "OPTDecoderLayer.forward; the second addition is of (B·T, d) matrices, viewed back",
        placement="post" if post else "pre",
    )


def bert(name: str, cls: str, prefix: str, given: Mapping[str, Any] = DECODER, **more: Any) -> Row:
    row: dict[str, Any] = {
        "layer": prefix + ".encoder.layer.{}",
        "branches": BERT_POST,
        "embedding": prefix + ".embeddings.word_embeddings.weight",
        "where": "SelfOutput.forward and Output.forward: LayerNorm(hidden_states + input_tensor)",
        "placement": "post",
    }
    return Row(name, cls, given, **{**row, **more})


STABLELM = {**G, "hidden_size": 64, "intermediate_size": FF}  # a quarter of head_dim is rotated: 16, so 4

ROWS: tuple[Row, ...] = (
    gpt("gpt2", "GPT2LMHeadModel", parts={"*.c_attn.weight": QKV}),
    gpt(
        "gpt_neo",
        "GPTNeoForCausalLM",
        {
            "vocab_size": V,
            "hidden_size": D,
            "num_layers": 4,
            "num_heads": HEADS,
            "max_position_embeddings": 64,
            "window_size": 8,
            "attention_types": [[["global", "local"], 2]],
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        branches=(mha("attn.attention.out_proj.weight"), mlp("mlp.c_proj.weight")),
        roles={**ENDS, **OUT_PROJ, **C_FC},
        layers=4,
    ),
    neox("gpt_neox", parallel=False),
    neox("gpt_neox-parallel", parallel=True),
    gpt(
        "gptj",
        "GPTJForCausalLM",
        {**N, "rotary_dim": 4},
        branches=(mha("attn.out_proj.weight", joined=2), mlp("mlp.fc_out.weight", joined=2)),
        roles={**ENDS, **OUT_PROJ, **FC},
        where="GPTJBlock.forward: attn_output + feed_forward_hidden_states + residual",
        tied=False,
    ),
    gpt(
        "codegen",
        "CodeGenForCausalLM",
        {**N, "n_embd": 64, "n_ctx": 64, "rotary_dim": 8},
        branches=(mha("attn.out_proj.weight", joined=2), mlp("mlp.fc_out.weight", joined=2)),
        roles={**ENDS, **OUT_PROJ, **FC, "*.qkv_proj.weight": PACKED},
        where="CodeGenBlock.forward: attn_output + feed_forward_hidden_states + residual",
        tied=False,
        parts={"*.qkv_proj.weight": repeated(4, (Q, 16), (VALUE, 16), (K, 16))},  # for 4 TPU cores: q, v, k
    ),
    gpt(
        "gpt_bigcode",
        "GPTBigCodeForCausalLM",
        parts={"*.c_attn.weight": in_a_row((Q, D), (K, D // HEADS), (VALUE, D // HEADS))},  # multi-query
    ),
    opt("opt", {}, post=False),
    opt("opt-post-norm", {"do_layer_norm_before": False}, post=True),
    opt("opt-350m", {"do_layer_norm_before": False, "word_embed_proj_dim": 32}, post=True),  # project_in, project_out
    gpt(
        "bloom",
        "BloomForCausalLM",
        {"vocab_size": V, "hidden_size": D, "n_layer": LAYERS, "n_head": HEADS},
        branches=(mha("self_attention.dense.weight"), mlp("mlp.dense_4h_to_h.weight")),
        roles={**ENDS, **NEOX},
        embedding="transformer.word_embeddings.weight",
        where="dropout_add, called inside BloomAttention.forward and BloomMLP.forward",
        parts={"*.query_key_value.weight": BY_HEAD},
    ),
    falcon(
        "falcon",
        {},
        2,
        "FalconDecoderLayer.forward: mlp_output += attention_output, then dropout_add(mlp_output, residual)",
        in_a_row((Q, D), (K, D // HEADS), (VALUE, D // HEADS)),
    ),
    falcon(
        "falcon-new",
        {"num_kv_heads": KV, "new_decoder_architecture": True},
        2,
        "as falcon, with a norm for each branch",
        repeated(KV, (Q, D // KV), (K, D // HEADS), (VALUE, D // HEADS)),
    ),
    falcon(
        "falcon-sequential",
        {"parallel_attn": False, "alibi": True, "multi_query": False},
        1,
        "FalconDecoderLayer.forward: dropout_add, twice",
        BY_HEAD,
    ),
    gpt(
        "mpt",
        "MptForCausalLM",
        {"vocab_size": V, "d_model": D, "n_layers": LAYERS, "n_heads": HEADS, "max_seq_len": 64, "expansion_ratio": 2},
        layer="transformer.blocks.{}",
        branches=(mha("attn.out_proj.weight"), mlp("ffn.down_proj.weight")),
        roles={**PLAIN_ROLES, "*.Wqkv.weight": PACKED, "*.out_proj.weight": OUT},
        where="MptBlock.forward: resid_attn_dropout(attn_outputs) + residual; MptMLP.forward: output + residual",
        parts={"*.Wqkv.weight": QKV},
    ),
    llama("llama", "LlamaForCausalLM"),
    llama("mistral", "MistralForCausalLM"),
    llama(
        "mixtral",
        "MixtralForCausalLM",
        {**G, "num_local_experts": 4},
        branches=ROUTED,
        roles={**LLAMA_ROLES, **EXPERTS},
        parts=EXPERT_PARTS,
    ),
    llama("gemma", "GemmaForCausalLM", HD, tied=True),
    llama(
        "gemma2",
        "Gemma2ForCausalLM",
        {**HD, **WINDOW},
        branches=NORMED,
        placement="sandwich",
        tied=True,
        where="Gemma2DecoderLayer.forward: residual + post_*_layernorm(…), twice",
    ),
    llama(
        "gemma3_text",
        "Gemma3ForCausalLM",
        {**HD, **WINDOW},
        branches=NORMED,
        placement="sandwich",
        tied=True,
        where="Gemma3DecoderLayer.forward: residual + post_*_layernorm(…), twice",
    ),
    llama("qwen2", "Qwen2ForCausalLM"),
    llama("qwen3", "Qwen3ForCausalLM", {**G, "head_dim": 16}),
    llama(
        "qwen2_moe",
        "Qwen2MoeForCausalLM",
        {
            **G,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 40,
        },
        branches=(
            mha("self_attn.o_proj.weight"),
            moe("mlp.experts.down_proj", "mlp.shared_expert.down_proj.weight"),
        ),
        # (1, d): a sigmoid that multiplies the shared expert's output
        roles={"*.shared_expert_gate.weight": f"{ROUTER}|{GATE}|other", **LLAMA_ROLES, **EXPERTS},
        parts=SMALL_EXPERT_PARTS,
        where="layer: residual + hidden_states; in Qwen2MoeSparseMoeBlock.forward expert_output + shared_expert_output",
    ),
    llama(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        {**HD, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        branches=ROUTED,
        roles={**LLAMA_ROLES, **EXPERTS},
        parts=SMALL_EXPERT_PARTS,
    ),
    llama("olmo", "OlmoForCausalLM"),  # norms without parameters
    llama(
        "olmo2", "Olmo2ForCausalLM", branches=NORMED, placement="reordered", where="residual + post_*_layernorm(f(x))"
    ),
    llama(
        "olmo3",
        "Olmo3ForCausalLM",
        WINDOW,
        branches=NORMED,
        placement="reordered",
        where="residual + post_*_layernorm(f(x))",
    ),
    llama(
        "olmoe",
        "OlmoeForCausalLM",
        {**G, "num_experts": 4, "num_experts_per_tok": 2},
        branches=ROUTED,
        roles={**LLAMA_ROLES, **EXPERTS},
        parts=EXPERT_PARTS,
    ),
    llama(
        "phi",
        "PhiForCausalLM",
        branches=(mha("self_attn.dense.weight", joined=2), mlp("mlp.fc2.weight", joined=2)),
        roles={**ENDS, **QKVO, "*.self_attn.dense.weight": OUT, **FC},
        where="PhiDecoderLayer.forward: attn_outputs + feed_forward_hidden_states + residual",
    ),
    llama(
        "phi3",
        "Phi3ForCausalLM",
        roles={**LLAMA_ROLES, "*.qkv_proj.weight": PACKED, "*.gate_up_proj.weight": f"{GATE}|{UP}"},
        parts={"*.qkv_proj.weight": in_a_row((Q, D), (K, D // 2), (VALUE, D // 2)), "*.gate_up_proj.weight": GATE_UP},
    ),
    llama(
        "phimoe",
        "PhimoeForCausalLM",
        {**G, "num_local_experts": 4},
        branches=ROUTED,
        roles={**LLAMA_ROLES, **EXPERTS},
        parts=EXPERT_PARTS,
    ),
    llama(
        "starcoder2",
        "Starcoder2ForCausalLM",
        branches=(mha("self_attn.o_proj.weight"), mlp("mlp.c_proj.weight")),
        roles={**ENDS, **QKVO, **C_FC},
        tied=True,
    ),
    llama(
        "stablelm",
        "StableLmForCausalLM",
        {**STABLELM, "use_parallel_residual": False},
        where="StableLmDecoderLayer.forward",
    ),
    llama(
        "stablelm-parallel",
        "StableLmForCausalLM",
        {**STABLELM, "use_parallel_residual": True},
        where="StableLmDecoderLayer.forward: residual + self_attn_output + mlp_output (two additions, left to right)",
    ),
    llama(
        "cohere",
        "CohereForCausalLM",
        tied=True,
        where="CohereDecoderLayer.forward: residual + hidden_states_attention + hidden_states_mlp (two additions)",
    ),
    llama(
        "cohere2",
        "Cohere2ForCausalLM",
        WINDOW,
        tied=True,
        where="Cohere2DecoderLayer.forward: residual + hidden_states_attention + hidden_states_mlp (two additions)",
    ),
    llama(
        "granite",
        "GraniteForCausalLM",
        {
            **G,
            "residual_multiplier": 0.22,
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "attention_multiplier": 0.1,
        },
        times=0.22,
        where="GraniteDecoderLayer.forward: residual + hidden_states * residual_multiplier, twice",
    ),
    llama(
        "granitemoe",
        "GraniteMoeForCausalLM",
        {**G, "num_local_experts": 4, "num_experts_per_tok": 2, "residual_multiplier": 0.22},
        branches=(
            mha("self_attn.o_proj.weight"),
            moe("block_sparse_moe.experts.down_proj", out="block_sparse_moe"),
        ),
        roles={**LLAMA_ROLES, **EXPERTS},
        parts=EXPERT_PARTS,
        times=0.22,
        where="GraniteMoeDecoderLayer.forward: residual + hidden_states * residual_multiplier, twice",
    ),
    *(
        llama(
            name,
            cls,
            {**MLA, **groups},
            branches=(
                mha("self_attn.o_proj.weight"),
                moe("mlp.experts.down_proj", "mlp.shared_experts.down_proj.weight"),
            ),
            others={0: LLAMA},  # first_k_dense_replace
            roles={
                "*.q_a_proj.weight": Q,
                "*.q_b_proj.weight": Q,
                "*.kv_a_proj_with_mqa.weight": f"{K}|{VALUE}|other",  # a latent of both, and keys' rotary rows
                "*.kv_b_proj.weight": f"{K}|{VALUE}|other",
                **LLAMA_ROLES,
                **EXPERTS,
            },
            parts=MLA_PARTS,
            where="layer: residual + hidden_states; in the MoE's forward hidden_states + shared_experts(residuals)",
        )
        for name, cls, groups in (
            ("deepseek_v2", "DeepseekV2ForCausalLM", {"topk_method": "greedy", "n_group": None, "topk_group": None}),
            ("deepseek_v3", "DeepseekV3ForCausalLM", {"n_group": 2, "topk_group": 1}),
        )
    ),
    llama(
        "gpt_oss",
        "GptOssForCausalLM",
        {
            **HD,
            **WINDOW,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
        },
        branches=ROUTED,
        roles={"*_proj_bias": "bias", **LLAMA_ROLES, **EXPERTS},
        parts={"*.experts.gate_up_proj": repeated(FF, (GATE, 1), (UP, 1))},  # interleaved: [..., ::2], [..., 1::2]
    ),
    llama(
        "glm",
        "GlmForCausalLM",
        HD,
        roles={**LLAMA_ROLES, "*.gate_up_proj.weight": f"{GATE}|{UP}"},
        parts={"*.gate_up_proj.weight": GATE_UP},
    ),
    llama(
        "glm4",
        "Glm4ForCausalLM",
        HD,
        branches=(
            mha("self_attn.o_proj.weight", out="post_self_attn_layernorm", normed=True),
            mlp("mlp.down_proj.weight", out="post_mlp_layernorm", normed=True),
        ),
        placement="sandwich",
        roles={**LLAMA_ROLES, "*.gate_up_proj.weight": f"{GATE}|{UP}"},
        parts={"*.gate_up_proj.weight": GATE_UP},
        where="Glm4DecoderLayer.forward: residual + post_*_layernorm(…), twice",
    ),
    llama("smollm3", "SmolLM3ForCausalLM", {**G, "no_rope_layers": [1, 1, 0]}, tied=True),
    llama("ernie4_5", "Ernie4_5ForCausalLM", HD, tied=True),
    llama(
        "exaone4",
        "Exaone4ForCausalLM",
        {**WINDOW, "sliding_window_pattern": 2},
        branches=NORMED,
        placement="reordered",
        where="residual + post_*_layernorm(f(x))",
    ),
    llama("helium", "HeliumForCausalLM", HD),
    llama("nemotron", "NemotronForCausalLM", roles=PLAIN_ROLES),
    llama(
        "persimmon",
        "PersimmonForCausalLM",
        S,
        branches=(mha("self_attn.dense.weight"), mlp("mlp.dense_4h_to_h.weight")),
        roles={**ENDS, **NEOX},
        parts={"*.query_key_value.weight": BY_HEAD},
    ),
    llama(
        "xglm",
        "XGLMForCausalLM",
        {
            "vocab_size": V,
            "d_model": D,
            "num_layers": LAYERS,
            "attention_heads": HEADS,
            "ffn_dim": FF,
            "max_position_embeddings": 64,
        },
        branches=(mha("self_attn.out_proj.weight"), mlp("fc2.weight")),
        roles={**ENDS, **OUT_PROJ, **FC},
        tied=True,
    ),
    llama(
        "biogpt",
        "BioGptForCausalLM",
        {**S, "pad_token_id": 0},
        layer="biogpt.layers.{}",
        branches=(mha("self_attn.out_proj.weight"), mlp("fc2.weight")),
        roles={**ENDS, **OUT_PROJ, **FC},
        head="output_projection.weight",
        embedding="biogpt.embed_tokens.weight",
        tied=True,
    ),
    gpt(
        "ctrl",
        "CTRLLMHeadModel",
        {"vocab_size": V, "n_embd": D, "n_layer": LAYERS, "n_head": HEADS, "dff": FF, "n_positions": 64},
        branches=(mha("multi_head_attention.dense.weight"), mlp("ffn.2.weight")),
        roles={
            "*.w.weight": "token_embedding",
            "*.Wq.weight": Q,
            "*.Wk.weight": K,
            "*.Wv.weight": VALUE,
            "*.dense.weight": OUT,
            "*.ffn.0.weight": UP,
            "*.ffn.2.weight": DOWN,
        },
        embedding="transformer.w.weight",
        where="EncoderLayer.forward: x + attn_output; out1 + ffn_output",
    ),
    gpt(
        "openai-gpt",
        "OpenAIGPTLMHeadModel",
        {k: N[k] for k in ("vocab_size", "n_embd", "n_layer", "n_head", "n_positions")},
        branches=(mha("attn.c_proj.weight", read_by="ln_1"), mlp("mlp.c_proj.weight", read_by="ln_2")),
        roles={"*.tokens_embed.weight": "token_embedding", "*.positions_embed.weight": "position_embedding", **C_FC},
        embedding="transformer.tokens_embed.weight",
        where="Block.forward: ln_1(x + a); ln_2(n + m)",
        placement="post",
        parts={"*.c_attn.weight": QKV},
    ),
    *(
        Row(
            name,
            cls,
            {**MAMBA, "bos_token_id": 1, "eos_token_id": 2},
            "backbone.layers.{}",
            (mixer("mixer.out_proj.weight"),),
            {"*.embeddings.weight": "token_embedding", **SSM},
            "lm_head.weight",
            "backbone.embeddings.weight",
            "Block.forward: residual + hidden_states, once per layer",
        )
        for name, cls in (("mamba", "MambaForCausalLM"), ("falcon_mamba", "FalconMambaForCausalLM"))
    ),
    llama(
        "jamba",
        "JambaForCausalLM",
        {
            **G,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "attn_layer_period": 3,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
            "mamba_dt_rank": 4,
        },
        branches=(mixer("mamba.out_proj.weight"), mlp("feed_forward.down_proj.weight")),
        others={1: (mha("self_attn.o_proj.weight"), moe("feed_forward.experts.down_proj", out="feed_forward"))},
        roles={**LLAMA_ROLES, **EXPERTS, **SSM},
        parts=EXPERT_PARTS,
        where="JambaMambaDecoderLayer.forward, JambaAttentionDecoderLayer.forward: residual + hidden_states",
    ),
    llama(
        "bart",
        "BartForCausalLM",
        {
            "vocab_size": V,
            "d_model": D,
            "decoder_layers": LAYERS,
            "encoder_layers": LAYERS,
            "decoder_attention_heads": HEADS,
            "encoder_attention_heads": HEADS,
            "decoder_ffn_dim": FF,
            "encoder_ffn_dim": FF,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        },
        layer="model.decoder.layers.{}",
        branches=(
            mha("self_attn.out_proj.weight", read_by="self_attn_layer_norm"),
            mlp("fc2.weight", read_by="final_layer_norm"),
        ),
        roles={"*.encoder_attn.*": f"{Q}|{K}|{VALUE}|{OUT}|other", **ENDS, **OUT_PROJ, **FC},  # never called here
        embedding="model.decoder.embed_tokens.weight",
        placement="post",
        tied=True,
        where="BartDecoderLayer.forward: residual + hidden_states, then the norm",
    ),
    bert(
        "bert",
        "BertLMHeadModel",
        "bert",
        roles={"cls.predictions.transform.dense.weight": BESIDE, **ENDS, **BERT},
        head="cls.predictions.decoder.weight",
    ),
    bert(
        "roberta",
        "RobertaForCausalLM",
        "roberta",
        roles={"lm_head.dense.weight": BESIDE, **ENDS, **BERT},
        head="lm_head.decoder.weight",
    ),
    bert(
        "electra",
        "ElectraForCausalLM",
        "electra",
        {**DECODER, "embedding_size": 32},
        roles={
            "*.embeddings_project.weight": BESIDE,
            "generator_predictions.dense.weight": BESIDE,
            **ENDS,
            **BERT,
        },
        head="generator_lm_head.weight",
    ),
    llama(
        "nanochat",
        "NanoChatForCausalLM",
        branches=(mha("self_attn.o_proj.weight"), mlp("mlp.fc2.weight")),
        roles={**ENDS, **QKVO, **FC},
        where=IN_DECODER_LAYER + "; the embedding is normed (NanoChatModel.forward), norms have no parameters",
    ),
    llama(
        "modernbert-decoder",
        "ModernBertDecoderForCausalLM",
        {**S, "local_attention": 16, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2},
        branches=(mha("attn.Wo.weight"), mlp("mlp.Wo.weight")),
        roles={
            "*.tok_embeddings.weight": "token_embedding",
            "*.attn.Wo.weight": OUT,
            "*.mlp.Wo.weight": DOWN,
            "*.mlp.Wi.weight": f"{GATE}|{UP}",
            "lm_head.dense.weight": BESIDE,
            **QKVO,
        },
        head="decoder.weight",
        embedding="model.embeddings.tok_embeddings.weight",
        tied=True,
        parts={"*.mlp.Wi.weight": GATE_UP},  # what they call `input` goes through the activation: it is the gate
        where="ModernBertDecoderLayer.forward: residual + hidden_states; residual + mlp_output",
    ),
    gpt(
        "dbrx",
        "DbrxForCausalLM",
        {
            "vocab_size": V,
            "d_model": D,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "max_seq_len": 64,
            "attn_config": {
                "kv_n_heads": KV,
                "clip_qkv": 8.0,
                "rope_theta": 1e4,
            },  # without rope_theta 5.24.0 can't build it
            "ffn_config": {"ffn_hidden_size": FF, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": D},
        },
        layer="transformer.blocks.{}",
        branches=(mha("norm_attn_norm.attn.out_proj.weight"), moe("ffn.experts.mlp.w2", out="ffn")),
        roles={
            **ENDS,
            "*.Wqkv.weight": PACKED,
            "*.out_proj.weight": OUT,
            "*.router.layer.weight": ROUTER,
            "*.mlp.w1": GATE,  # (experts·d_ff, d): all experts in one matrix, viewed apart
            "*.mlp.v1": UP,
            "*.mlp.w2": DOWN,
        },
        tied=False,
        parts={"*.Wqkv.weight": in_a_row((Q, D), (K, D // 2), (VALUE, D // 2))},
        where="DbrxNormAttentionNorm.forward: hidden_states + residual_states; DbrxBlock.forward: resid_states + …",
    ),
    llama(
        "recurrent_gemma",
        "RecurrentGemmaForCausalLM",
        {**G, "lru_width": D, "attention_window_size": 16},
        branches=(mixer("temporal_block.linear_out.weight"), mlp("mlp_block.down_proj.weight")),
        others={2: (mha("temporal_block.o_proj.weight"), mlp("mlp_block.down_proj.weight"))},
        roles={
            "*.linear_y.weight": f"{GATE}|other",  # act_fn(linear_y) multiplies the scan
            "*.linear_x.weight": f"{UP}|other",
            "*.linear_out.weight": DOWN,
            "*.conv_1d.weight": "other",
            "*_gate_weight": f"{UP}|{GATE}|other",  # of the recurrence, per head
            "*_gate_bias": "bias|other",
            **LLAMA_ROLES,
        },
        tied=True,
        where="RecurrentGemmaDecoderLayer.forward: hidden_states + raw_activations; hidden_states + residual",
    ),
    llama(
        "lfm2",
        "Lfm2ForCausalLM",
        {**G, "layer_types": ["conv", "full_attention", "conv"], "block_auto_adjust_ff_dim": False},
        branches=(mixer("conv.out_proj.weight"), mlp("feed_forward.w2.weight")),
        others={1: (mha("self_attn.out_proj.weight"), mlp("feed_forward.w2.weight"))},
        roles={
            "*.conv.in_proj.weight": f"{UP}|{GATE}|other",  # B, C and x: two products of its thirds
            "*.conv.conv.weight": "other",
            "*.conv.out_proj.weight": DOWN,
            **ENDS,
            **OUT_PROJ,
            "*.w1.weight": GATE,
            "*.w3.weight": UP,
            "*.w2.weight": DOWN,
        },
        tied=True,
        where="Lfm2DecoderLayer.forward: hidden_states + residual; hidden_states + feed_forward(…)",
    ),
    llama(
        "apertus",
        "ApertusForCausalLM",
        {**G, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        roles=PLAIN_ROLES,
    ),
    llama("arcee", "ArceeForCausalLM", roles=PLAIN_ROLES),
    llama("bitnet", "BitNetForCausalLM"),  # norms before o_proj and down_proj, inside the branches
    llama("seed_oss", "SeedOssForCausalLM", HD),
    llama("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM", HD),
)
