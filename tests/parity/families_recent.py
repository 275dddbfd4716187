"""Families of transformers 5.24.0 from Gemma to gpt-oss, small, beside the same as configs of ours.

Sizes are those of `families_early`, and most models are said as changes of its Llama. Caps, limits and windows are so
tight that they bite.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor, nn

from tests.parity.families_early import (
    HEAD_DIM,
    HEADS,
    KV,
    LLAMA,
    LLAMA_GIVEN,
    LLAMA_NAMES,
    YARN_SCALE,
    D,
    State,
    built,
    rope,
)
from tests.parity.family import Family
from tests.parity.tools import apart, renamed, without

Fields = Mapping[str, Any]
Step = Callable[[State], dict[str, Tensor]]

LEFT_OUT: Any = object()  # in place of a value: the field is not given
EXPERTS, EXPERT_FF = 6, 20
TIED: Fields = MappingProxyType({"tie_word_embeddings": True})
HALF_TURNS: Fields = MappingProxyType({"rope_parameters": rope(partial_rotary_factor=0.5)})

NAMES: Mapping[str, str] = MappingProxyType(
    {
        **LLAMA_NAMES,
        "self_attn.q_norm": "attention.query_norm",
        "self_attn.k_norm": "attention.key_norm",
        "self_attn.sinks": "attention.mix.sinks",
        "mlp.gate": "mlp.router",
        "mlp.router": "mlp.router",
        "mlp.experts.gate": "mlp.gate",
        "mlp.experts.input": "mlp.input",
        "mlp.experts.down_proj": "mlp.out",
        "mlp.shared_experts.gate_proj": "mlp.shared.gate",
        "mlp.shared_experts.up_proj": "mlp.shared.input",
        "mlp.shared_experts.down_proj": "mlp.shared.out",
        "mlp.fc1": "mlp.input",
        "mlp.fc2": "mlp.out",
    }
)


def family(
    name: str,
    model: Fields,
    cls: str,
    given: Fields,
    *steps: Step,
    names: Mapping[str, str] = NAMES,
    altered: Callable[[nn.Module], nn.Module] = lambda module: module,
) -> Family:
    """Say in what it is another than the Llama of `families_early`.

    given: fields of their config. steps: what happens to their state dict, one after the other, before it is renamed.
    altered: sets on their module what their config can't say.
    """
    shape = {field: value for field, value in {**LLAMA, **model}.items() if value is not LEFT_OUT}
    # in float64, theirs can compute experts in this way alone
    wanted = {**LLAMA_GIVEN, "rope_parameters": rope(), "experts_implementation": "eager", **given}
    config = {field: value for field, value in wanted.items() if value is not LEFT_OUT}

    def ours(state: State) -> dict[str, Tensor]:
        state = without(state, "lm_head.weight") if shape["tied"] else state
        for step in steps:
            state = step(state)
        return renamed(state, "model.layers", names)

    return Family(name, shape, lambda: altered(built(cls, **config)), ours)


# --- Gemma: norms multiply by 1 + w, embeddings are multiplied by sqrt(d_model); since Gemma 2, norms after branches

GEMMA: Fields = MappingProxyType(
    {"activation": "gelu_tanh", "norm_scale": "one_plus", "tied": True, "embedding_multiplier": "sqrt(d_model)"}
)
SANDWICH_NAMES = {
    **NAMES,
    "post_attention_layernorm": "attention_post_norm",
    "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "mlp_post_norm",
}

# --- features that turn together: neighbours, or half a width apart as here


def halved(rows: Tensor, heads: int, first: int, dims: int) -> Tensor:
    """Put features first … first + dims of each head, which turn with their neighbours, half of dims apart."""
    width = len(rows) // heads
    last = first + dims
    order = [*range(first), *range(first, last, 2), *range(first + 1, last, 2), *range(last, width)]
    reordered: Tensor = rows.unflatten(0, (heads, width))[:, order].flatten(0, 1)
    return reordered


def swapped(rows: Tensor, heads: int) -> Tensor:
    """Swap the halves of each head: pairs that turn backward (nanochat) turn forward then."""
    reordered: Tensor = rows.unflatten(0, (heads, 2, -1)).flip(1).flatten(0, 2)
    return reordered


def turned(order: Callable[[Tensor, int], Tensor]) -> Step:
    """Reorder the rows of queries and keys, and their biases."""
    counts = {"q_proj": HEADS, "k_proj": KV}

    def step(state: State) -> dict[str, Tensor]:
        heads = {name: counts.get(name.split(".")[-2]) for name in state}
        return {name: order(x, count) if (count := heads[name]) else x for name, x in state.items()}

    return step


def neighbours(dims: int) -> Step:
    return turned(lambda rows, heads: halved(rows, heads, 0, dims))


# --- experts, whose matrices are packed: (experts, outputs, inputs), in gpt-oss (experts, inputs, outputs)


def as_modules(state: State) -> dict[str, Tensor]:
    """Name single tensors like those of a module: down_proj_bias becomes down_proj.bias."""
    ends = {"_proj": "_proj.weight", "_proj_bias": "_proj.bias", ".sinks": ".sinks.weight"}

    def name_of(name: str) -> str:
        end = next((end for end in ends if name.endswith(end)), "")
        return name.removesuffix(end) + ends.get(end, "")

    return {name_of(name): x for name, x in state.items()}


def experts(state: State) -> dict[str, Tensor]:
    """The first half of their outputs is the gate."""
    parts = ("experts.gate", "experts.input")
    return apart(as_modules(state), "experts.gate_up_proj", parts, lambda x: x.chunk(2, dim=1))


def interleaved_experts(state: State) -> dict[str, Tensor]:
    """Their even outputs are the gate, and their matrices are transposed."""
    named = as_modules(state)
    rows = {name: x.mT if ".experts." in name and name.endswith("weight") else x for name, x in named.items()}
    parts = ("experts.gate", "experts.input")
    return apart(rows, "experts.gate_up_proj", parts, lambda x: (x[:, ::2], x[:, 1::2]))


# --- GLM: gate and input are packed. GLM-4 has norms after branches, with names of its own

GLM4_NAMES = {**NAMES, "post_self_attn_layernorm": "attention_post_norm", "post_mlp_layernorm": "mlp_post_norm"}


def glm_mlp(state: State) -> dict[str, Tensor]:
    return apart(state, "mlp.gate_up_proj", ("mlp.gate_proj", "mlp.up_proj"), lambda rows: rows.chunk(2))


# --- multi-head latent attention: DeepSeek, MiniCPM3

QUERY_RANK, KV_RANK, NOPE, ROPE, VALUE = 22, 14, 10, 8, 7
MLA = {"kv_rank": KV_RANK, "nope_dim": NOPE, "rope_dim": ROPE, "value_dim": VALUE}
MLA_GIVEN: Fields = MappingProxyType(
    {
        **{"num_key_value_heads": HEADS, "head_dim": LEFT_OUT, "q_lora_rank": None, "kv_lora_rank": KV_RANK},
        **{"qk_nope_head_dim": NOPE, "qk_rope_head_dim": ROPE, "v_head_dim": VALUE},
    }
)
MLA_NAMES = {
    **NAMES,
    "self_attn.q_a_proj": "attention.query_down",
    "self_attn.q_a_layernorm": "attention.query_norm",
    "self_attn.q_b_proj": "attention.query",
    "self_attn.kv_a_proj": "attention.latent_down",
    "self_attn.mqa": "attention.rotary_key",
    "self_attn.kv_a_layernorm": "attention.latent_norm",
    "self_attn.k_b_proj": "attention.key",
    "self_attn.v_b_proj": "attention.value",
}

DEEPSEEK_EXPERTS = {"experts": 12, "top_k": 3, "d_ff": EXPERT_FF, "shared": 2, "first_dense": 1, "route_scale": 2.5}
DEEPSEEK_GIVEN: Fields = MappingProxyType(
    {
        **{"n_routed_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": EXPERT_FF},
        **{"n_shared_experts": 2, "first_k_dense_replace": 1, "routed_scaling_factor": 2.5},
    }
)
# Of DeepSeek's four pairs of features, the whole ones between which the change takes place are 0 and 3.
YARN = {"kind": "yarn", "factor": 8.0, "low": 0.25, "high": 2.0, "context": 24}
YARN_GIVEN = {"factor": 8.0, "beta_slow": 0.25, "beta_fast": 2.0, "original_max_position_embeddings": 24}


def latents(state: State) -> dict[str, Tensor]:
    """Cut what makes the latent from what makes the key that turns, and of each head the key from the value."""

    def by_heads(rows: Tensor) -> tuple[Tensor, Tensor]:
        key, value = rows.unflatten(0, (HEADS, NOPE + VALUE)).split((NOPE, VALUE), dim=1)
        return key.flatten(0, 1), value.flatten(0, 1)

    state = apart(state, "kv_a_proj_with_mqa", ("kv_a_proj", "mqa"), lambda rows: rows.split((KV_RANK, ROPE)))
    return apart(state, "kv_b_proj", ("k_b_proj", "v_b_proj"), by_heads)


def neighbouring_latents(state: State) -> dict[str, Tensor]:
    """Reorder what turns: the last features of each query head, and the one key of all heads."""
    turning = {"q_proj": (HEADS, NOPE, ROPE), "q_b_proj": (HEADS, NOPE, ROPE), "mqa": (1, 0, ROPE)}
    where = {name: turning.get(name.split(".")[-2]) for name in state}
    return {name: halved(x, *at) if (at := where[name]) else x for name, x in state.items()}


def without_balancing(state: State) -> dict[str, Tensor]:
    """DeepSeek-V3 adds a bias to the scores by which experts are chosen; it is no parameter, and 0 before training."""
    biases = [name for name in state if name.endswith("e_score_correction_bias")]
    assert biases
    assert not any(state[name].any() for name in biases)
    return without(state, *biases)


def latent_eps(module: nn.Module) -> nn.Module:
    """Give norms of latents the config's eps: theirs have 1e-6 whatever it says, too little to be heard here."""
    for name, norm in module.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            norm.variance_epsilon = 1e-3
    return module


def latent_family(name: str, model: Fields, cls: str, given: Fields, *steps: Step) -> Family:
    shape = {"n_kv_heads": LEFT_OUT, "head_dim": LEFT_OUT, "mla": MLA, **model}
    return family(name, shape, cls, {**MLA_GIVEN, **given}, latents, *steps, names=MLA_NAMES, altered=latent_eps)


# --- all of them

FAMILIES: tuple[Family, ...] = (
    family("gemma", GEMMA, "GemmaForCausalLM", TIED),
    family(
        "gemma-2",
        {
            **{**GEMMA, "n_layers": 4, "placement": "sandwich", "windows": [7, None]},
            **{"attention_scale": "1 / sqrt(10)", "attention_softcap": 1.5, "logit_softcap": 2.0},
        },
        "Gemma2ForCausalLM",
        {
            **{**TIED, "num_hidden_layers": 4, "sliding_window": 7, "query_pre_attn_scalar": 10},
            **{"attn_logit_softcapping": 1.5, "final_logit_softcapping": 2.0},
        },
        names=SANDWICH_NAMES,
    ),
    family(
        "gemma-3",
        {
            **{**GEMMA, "n_layers": 6, "placement": "sandwich", "qk_norm": "per_head"},
            **{"windows": [7, 7, 7, 7, 7, None], "local_rotary_base": 30.0, "attention_scale": "1 / sqrt(10)"},
            "rotary_scaling": {"kind": "linear", "factor": 8.0},
        },
        "Gemma3ForCausalLM",
        {
            **{**TIED, "num_hidden_layers": 6, "sliding_window": 7, "query_pre_attn_scalar": 10},
            "rope_parameters": {
                "full_attention": rope("linear", factor=8.0),
                "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
            },
        },
        names=SANDWICH_NAMES,
    ),
    family("qwen3", {"qk_norm": "per_head", "tied": True}, "Qwen3ForCausalLM", TIED),
    family(
        "qwen3-moe",
        {"qk_norm": "per_head", "moe": {"experts": EXPERTS, "top_k": 2, "d_ff": EXPERT_FF, "first_dense": 1}},
        "Qwen3MoeForCausalLM",
        {
            **{"num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": EXPERT_FF},
            **{"norm_topk_prob": True, "mlp_only_layers": [0]},
        },
        experts,
    ),
    family(
        "mixtral",
        {"moe": {"experts": EXPERTS, "top_k": 2}},
        "MixtralForCausalLM",
        {"num_local_experts": EXPERTS},
        experts,
    ),
    # OLMo's norms have no parameters, and this eps whatever the config says
    family("olmo", {"norm": "layernorm", "norm_scale": "none", "eps": 1e-5}, "OlmoForCausalLM", {}),
    family("olmo-2", {"placement": "reordered", "qk_norm": "full"}, "Olmo2ForCausalLM", {}, names=SANDWICH_NAMES),
    family(
        "olmo-3",  # as pretrained: for a longer context, one of two sorts of layers has another attention scale
        {"n_layers": 4, "placement": "reordered", "qk_norm": "full", "windows": [7, 7, 7, None]},
        "Olmo3ForCausalLM",
        {
            **{"num_hidden_layers": 4, "sliding_window": 7},
            "rope_parameters": {"full_attention": rope(), "sliding_attention": rope()},
        },
        names=SANDWICH_NAMES,
    ),
    family(
        "olmoe",
        {"head_dim": D // HEADS, "qk_norm": "full", "moe": {"experts": EXPERTS, "top_k": 2, "normalized": False}},
        "OlmoeForCausalLM",
        {"head_dim": D // HEADS, "num_experts": EXPERTS, "num_experts_per_tok": 2, "norm_topk_prob": False},
        experts,
    ),
    latent_family(
        "deepseek-v2",
        {"moe": {**DEEPSEEK_EXPERTS, "normalized": False}},
        "DeepseekV2ForCausalLM",
        DEEPSEEK_GIVEN,
        neighbouring_latents,
        experts,
    ),
    latent_family(
        "deepseek-v3",
        {
            **{"mla": {**MLA, "query_rank": QUERY_RANK}, "biases": {"qkv": True, "out": True}},
            "moe": {**DEEPSEEK_EXPERTS, "score": "sigmoid", "groups": 3, "top_groups": 2},
            **{"rotary_scaling": YARN, "attention_scale": YARN_SCALE},
        },
        "DeepseekV3ForCausalLM",
        {
            **{**DEEPSEEK_GIVEN, "q_lora_rank": QUERY_RANK, "n_group": 3, "topk_group": 2, "attention_bias": True},
            # with both, yarn's factor is not in cos and sin, but squared in their attention scale
            "rope_parameters": rope("yarn", **YARN_GIVEN, mscale=1.0, mscale_all_dim=1.0),
        },
        neighbouring_latents,
        without_balancing,
        experts,
    ),
    latent_family(
        "deepseek-v3, not interleaved",
        {"moe": {**DEEPSEEK_EXPERTS, "score": "sigmoid"}},
        "DeepseekV3ForCausalLM",
        {**DEEPSEEK_GIVEN, "n_group": 1, "topk_group": 1, "rope_interleave": False},
        without_balancing,
        experts,
    ),
    latent_family(
        "minicpm3",
        {
            **{"mla": {**MLA, "query_rank": QUERY_RANK}, "tied": True, "embedding_multiplier": 3.0},
            **{"residual_multiplier": "1.4 / sqrt(n_layers)", "logit_multiplier": "16 / d_model"},
        },
        "MiniCPM3ForCausalLM",
        {**TIED, "q_lora_rank": QUERY_RANK, "scale_emb": 3.0, "scale_depth": 1.4, "dim_model_base": 16},
    ),
    family(
        "gpt-oss",
        {
            **{"n_layers": 4, "activation": "quick_gelu", "gate_limit": 0.5, "windows": [7, None]},
            **{"attention_sinks": True, "attention_scale": YARN_SCALE, "rotary_scaling": {**YARN, "rounded": False}},
            "moe": {"experts": EXPERTS, "top_k": 2},
            "biases": {"qkv": True, "out": True, "mlp": True, "router": True},
        },
        "GptOssForCausalLM",
        {
            **{"num_hidden_layers": 4, "sliding_window": 7, "num_local_experts": EXPERTS, "num_experts_per_tok": 2},
            **{"swiglu_limit": 0.5, "rope_parameters": rope("yarn", **YARN_GIVEN, truncate=False)},
        },
        interleaved_experts,
    ),
    family(
        "cohere",
        {"norm": "layernorm", "placement": "parallel_shared", "tied": True, "logit_multiplier": 0.5},
        "CohereForCausalLM",
        {**TIED, "layer_norm_eps": 1e-3, "logit_scale": 0.5},
        neighbours(HEAD_DIM),
    ),
    family(
        "granite",
        {
            **{"attention_scale": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.6},
            **{"logit_multiplier": "1 / 1.6", "biases": {"qkv": True, "out": True, "mlp": True}},
        },
        "GraniteForCausalLM",
        {
            **{"attention_multiplier": 0.2, "embedding_multiplier": 3.0, "residual_multiplier": 0.6},
            **{"logits_scaling": 1.6, "attention_bias": True, "mlp_bias": True},
        },
    ),
    family(
        "stablelm",  # whose heads are as wide as d_model / n_heads
        {
            **{"n_heads": 4, "head_dim": D // 4, "norm": "layernorm", "rotary_dims": D // 8},
            "biases": {"qkv": True, "norm": True},
        },
        "StableLmForCausalLM",
        {
            **{**HALF_TURNS, "num_attention_heads": 4, "head_dim": LEFT_OUT},
            **{"layer_norm_eps": 1e-3, "use_qkv_bias": True},
        },
    ),
    family(
        "nemotron",
        {
            **{"norm": "layernorm", "norm_scale": "one_plus", "activation": "relu2", "gated": False},
            **{"rotary_dims": HEAD_DIM // 2, "biases": {"norm": True}},
        },
        "NemotronForCausalLM",
        {**HALF_TURNS, "norm_eps": 1e-3},
    ),
    family(
        "glm",
        {"rotary_dims": HEAD_DIM // 2, "biases": {"qkv": True}},
        "GlmForCausalLM",
        {**HALF_TURNS, "attention_bias": True},
        neighbours(HEAD_DIM // 2),
        glm_mlp,
    ),
    family(
        "glm-4",
        {"rotary_dims": HEAD_DIM // 2, "placement": "sandwich"},
        "Glm4ForCausalLM",
        {**HALF_TURNS, "attention_bias": False},
        neighbours(HEAD_DIM // 2),
        glm_mlp,
        names=GLM4_NAMES,
    ),
    family(
        "glm-4.5",
        {
            **{"rotary_dims": HEAD_DIM // 2, "qk_norm": "per_head", "biases": {"qkv": True}},
            "moe": {**DEEPSEEK_EXPERTS, "score": "sigmoid", "shared": 1},
        },
        "Glm4MoeForCausalLM",
        {
            **{**HALF_TURNS, **DEEPSEEK_GIVEN, "n_shared_experts": 1, "n_group": 1, "topk_group": 1},
            **{"use_qk_norm": True, "attention_bias": True},
        },
        without_balancing,
        experts,
    ),
    family(
        "nanochat",
        {
            **{"activation": "relu2", "gated": False, "norm_scale": "none", "embedding_norm": True},
            **{"qk_norm": "per_head", "logit_softcap": 2.0},
        },
        "NanoChatForCausalLM",
        {"final_logit_softcapping": 2.0},
        turned(swapped),
    ),
)
