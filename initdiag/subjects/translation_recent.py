"""Families of Hugging Face configs from Gemma to gpt-oss, as fields of an `Architecture`. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from initdiag.subjects.translation_decoder import (
    attention_bias,
    decoder,
    deepseek_experts,
    experts,
    grouped_experts,
    latent,
    narrow,
)
from initdiag.subjects.translation_fields import (
    Config,
    Fields,
    VariantError,
    absent,
    cap,
    flag,
    number,
    require,
    rotary,
    same_window,
    whole,
    windows_by_layer,
)

# --- Gemma


def _gemma(config: Config) -> Fields:
    return _of_gemma(config, decoder(config))


def _of_gemma(config: Config, fields: Fields) -> Fields:
    """What all Gemmas do: norms multiply by 1 + w, and embeddings by √d_model."""
    absent(config, "use_bidirectional_attention")
    times = {"norm_scale": "one_plus", "embedding_multiplier": math.sqrt(whole(config, "hidden_size"))}
    return {**fields, **times, "biases": attention_bias(config)}


def _gemma2(config: Config) -> Fields:
    fields = decoder(config, act="hidden_activation", scale=_query_scale(config))
    caps = {"attention_softcap": cap(config, "attn_logit_softcapping")}
    caps["logit_softcap"] = cap(config, "final_logit_softcapping")
    return _of_gemma(config, {**fields, **windows_by_layer(config), **caps, "placement": "sandwich"})


def _gemma3(config: Config) -> Fields:
    absent(config, "attn_logit_softcapping")  # its class holds it, and doesn't use it
    fields = _two_rotations(config, act="hidden_activation", scale=_query_scale(config))
    changes = {"logit_softcap": cap(config, "final_logit_softcapping"), "qk_norm": "per_head", "placement": "sandwich"}
    return _of_gemma(config, {**fields, **changes})


def _query_scale(config: Config) -> float:
    return 1 / math.sqrt(whole(config, "query_pre_attn_scalar"))


def _two_rotations(config: Config, act: str = "hidden_act", scale: float | None = None) -> Fields:
    """A Llama whose layers with windows have rotary positions of their own."""
    both, windows = config.get("rope_parameters"), windows_by_layer(config)
    if not isinstance(both, Mapping):
        raise VariantError("rope_parameters")
    used = set(windows.get("windows", (None,)))
    main = both.get("full_attention" if None in used else "sliding_attention")
    fields = {**decoder({**config, "rope_parameters": main}, act=act, scale=scale), **windows}
    if len(used) == 1:
        return fields
    local, times = rotary(both.get("sliding_attention"), fields["head_dim"], False)
    turning, factor = rotary(main, fields["head_dim"], False)
    if (local, times) == (turning, factor):
        return fields
    if "rotary_scaling" in local or times != 1 or factor != 1:
        raise VariantError("rope_parameters")  # ours has no scaling, and no other attention scale, for some layers
    return {**fields, "local_rotary_base": local["rotary_base"]}


# --- Qwen 3, Mixtral, gpt-oss


def _qwen3(config: Config) -> Fields:
    return {**decoder(config), **windows_by_layer(config), "qk_norm": "per_head", "biases": attention_bias(config)}


def _qwen3_moe(config: Config) -> Fields:
    count, every = whole(config, "num_hidden_layers"), whole(config, "decoder_sparse_step")
    single, name = (
        config.get("mlp_only_layers"),
        "num_local_experts" if "num_local_experts" in config else "num_experts",
    )
    if not isinstance(single, list | tuple):
        raise VariantError("mlp_only_layers")
    dense = [layer for layer in range(count) if layer in single or (layer + 1) % every]
    if dense != list(range(len(dense))):
        raise VariantError("mlp_only_layers")
    wide = {"d_ff": whole(config, "moe_intermediate_size"), "normalized": flag(config, "norm_topk_prob")}
    fields = {**decoder(config), **same_window(config), "qk_norm": "per_head", "biases": attention_bias(config)}
    return {**fields, **experts(config, name, len(dense), **wide)}


def _mixtral(config: Config) -> Fields:
    return {**decoder(config), **same_window(config), **experts(config, "num_local_experts", 0)}


def _gpt_oss(config: Config) -> Fields:
    require(config, swiglu_alpha=1.702)
    biases = {**attention_bias(config), "mlp": True, "router": True}
    gate = {"activation": "quick_gelu", "gate_limit": number(config, "swiglu_limit"), "attention_sinks": True}
    fields = {**decoder(config), **windows_by_layer(config), **gate, "biases": biases}
    return {**fields, **experts(config, "num_local_experts", 0)}


def _cohere(config: Config) -> Fields:
    require(config, use_qk_norm=False)
    fields = {**decoder(config, eps="layer_norm_eps"), "norm": "layernorm", "biases": attention_bias(config)}
    return {**fields, "placement": "parallel_shared", "logit_multiplier": number(config, "logit_scale")}


# --- OLMo


def _olmo(config: Config) -> Fields:
    """Its norms have no parameters, and nn.LayerNorm's eps."""
    absent(config, "clip_qkv")
    fields = {**decoder({**config, "rms_norm_eps": 1e-5}), "norm": "layernorm", "norm_scale": "none"}
    return {**fields, "biases": attention_bias(config)}


def _olmo2(config: Config) -> Fields:
    return {**decoder(config), "placement": "reordered", "qk_norm": "full", "biases": attention_bias(config)}


def _olmo3(config: Config) -> Fields:
    return {**_two_rotations(config), "placement": "reordered", "qk_norm": "full", "biases": attention_bias(config)}


def _olmoe(config: Config) -> Fields:
    absent(config, "clip_qkv", "sliding_window")
    name = "num_local_experts" if "num_local_experts" in config else "num_experts"
    chosen = experts(config, name, 0, normalized=flag(config, "norm_topk_prob"))
    return {**decoder(narrow(config)), **chosen, "qk_norm": "full", "biases": attention_bias(config)}


# --- latents: DeepSeek, MiniCPM3


def _deepseek2(config: Config) -> Fields:
    """Its router never divides by the sum of the chosen scores; a config that asks for that is another model."""
    absent(config, "mlp_bias", "norm_topk_prob")
    require(config, topk_method="greedy")
    return {**latent(config), **deepseek_experts(config, normalized=False)}


def _deepseek3(config: Config) -> Fields:
    return {**latent(config), **grouped_experts(config)}


def _minicpm3(config: Config) -> Fields:
    fields = latent(config)
    width, count = whole(config, "hidden_size"), whole(config, "num_hidden_layers")
    times = {"embedding_multiplier": number(config, "scale_emb")}
    times["residual_multiplier"] = number(config, "scale_depth") / math.sqrt(count)
    times["logit_multiplier"] = number(config, "dim_model_base") / width
    return {**fields, **times, "biases": {**fields["biases"], "mlp": flag(config, "mlp_bias")}}


# --- GLM, and others of one kind


def _glm(config: Config) -> Fields:
    return {**decoder(config, partial=True), "biases": {"qkv": flag(config, "attention_bias")}}


def _glm4(config: Config) -> Fields:
    return {**_glm(config), "placement": "sandwich"}


def _glm4_moe(config: Config) -> Fields:
    norm = "per_head" if flag(config, "use_qk_norm") else "none"
    return {**_glm(config), **grouped_experts(config), "qk_norm": norm}


def _granite(config: Config) -> Fields:
    scaling = number(config, "logits_scaling")
    if scaling <= 0:
        raise VariantError("logits_scaling")
    times = {name: number(config, name) for name in ("embedding_multiplier", "residual_multiplier")}
    fields = decoder(config, scale=number(config, "attention_multiplier"))
    biases = {**attention_bias(config), "mlp": flag(config, "mlp_bias")}
    return {**fields, **times, "logit_multiplier": 1 / scaling, "biases": biases}


def _nemotron(config: Config) -> Fields:
    fields = decoder(config, eps="norm_eps", partial=True)
    biases = {**attention_bias(config), "mlp": flag(config, "mlp_bias"), "norm": True}
    return {**fields, "gated": False, "norm": "layernorm", "norm_scale": "one_plus", "biases": biases}


def _nanochat(config: Config) -> Fields:
    fields = decoder(config)
    if fields["attention_scale"] != fields["head_dim"] ** -0.5:
        raise VariantError("rope_parameters")  # it norms queries and keys after their rotation: yarn's factor is lost
    fields |= {"gated": False, "norm_scale": "none", "embedding_norm": True, "qk_norm": "per_head"}
    return {**fields, "logit_softcap": cap(config, "final_logit_softcapping"), "biases": attention_bias(config)}


RECENT: dict[str, Callable[[Config], Fields]] = {
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "mixtral": _mixtral,
    "gpt_oss": _gpt_oss,
    "cohere": _cohere,
    "olmo": _olmo,
    "olmo2": _olmo2,
    "olmo3": _olmo3,
    "olmoe": _olmoe,
    "deepseek_v2": _deepseek2,
    "deepseek_v3": _deepseek3,
    "minicpm3": _minicpm3,
    "glm": _glm,
    "glm4": _glm4,
    "glm4_moe": _glm4_moe,
    "granite": _granite,
    "nemotron": _nemotron,
    "nanochat": _nanochat,
}
