"""What families of Hugging Face configs have in common: a Llama, its latents and its experts. No torch.

Read in transformers 5.24.0: modeling_llama.py, modeling_deepseek_v2.py and modeling_deepseek_v3.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from initdiag.subjects.translation_fields import (
    Config,
    Fields,
    VariantError,
    activation,
    flag,
    number,
    require,
    rotary,
    whole,
    yarn_scale,
)

LATENT_EPS = 1e-5  # the norms of latents add 1e-6, whatever the config says: the same, of a variance of about 1


def size(config: Config, width: str = "hidden_size", layers: str = "num_hidden_layers") -> Fields:
    return {
        "vocab_size": whole(config, "vocab_size"),
        "d_model": whole(config, width),
        "n_layers": whole(config, layers),
        "tied": flag(config, "tie_word_embeddings"),
    }


def attention_bias(config: Config) -> Fields:
    """Biases of all four projections of attention, or of none."""
    bias = flag(config, "attention_bias")
    return {"qkv": bias, "out": bias}


def heads(config: Config) -> Fields:
    """Heads whose width is a field, or d_model / n_heads."""
    count = whole(config, "num_attention_heads")
    keys = count if config.get("num_key_value_heads") is None else whole(config, "num_key_value_heads")
    given = config.get("head_dim") is not None
    width = whole(config, "head_dim") if given else whole(config, "hidden_size") // count
    return {"n_heads": count, "n_kv_heads": keys, "head_dim": width}


def decoder(
    config: Config,
    *,
    eps: str = "rms_norm_eps",
    act: str = "hidden_act",
    partial: bool = False,
    scale: float | None = None,
) -> Fields:
    """The fields of a Llama without biases and windows.

    Args:
        eps, act: what those fields are called. partial: as of rotary(). scale: of attention logits; None for
            1/√head_dim.
    """
    of_heads = heads(config)
    width = of_heads["head_dim"]
    turning, times = rotary(config.get("rope_parameters"), width, partial)
    return {
        **size(config),
        **of_heads,
        "context": whole(config, "max_position_embeddings"),
        "d_ff": whole(config, "intermediate_size"),
        "activation": activation(config, act),
        "gated": True,
        "norm": "rmsnorm",
        "eps": number(config, eps),
        **turning,
        "attention_scale": (width**-0.5 if scale is None else scale) * times**2,
        "biases": False,
    }


def narrow(config: Config) -> Config:
    """A config of a class whose heads are as wide as d_model / n_heads, whatever head_dim says."""
    width, count = whole(config, "hidden_size"), whole(config, "num_attention_heads")
    if width % count:
        raise VariantError("num_attention_heads")
    require({name: value for name, value in config.items() if value is not None}, head_dim=width // count)
    return config


# --- latents and experts


def latent(config: Config) -> Fields:
    """The fields of a Llama with multi-head latent attention, as in DeepSeek-V3."""
    rope, bias = config.get("rope_parameters"), flag(config, "attention_bias")
    fields = decoder({**config, "head_dim": whole(config, "qk_rope_head_dim")})
    width = whole(config, "qk_nope_head_dim") + fields.pop("head_dim")
    times = fields["attention_scale"] * math.sqrt(whole(config, "qk_rope_head_dim"))
    if abs(times - 1) > 1e-9:  # it multiplies the features that turn, and no others
        raise VariantError("rope_parameters")
    scale = width**-0.5
    if isinstance(rope, Mapping) and rope.get("rope_type") != "default" and rope.get("mscale_all_dim"):
        scale *= yarn_scale(rope, number(rope, "mscale_all_dim")) ** 2
    section: Fields = {"kv_rank": whole(config, "kv_lora_rank"), "nope_dim": whole(config, "qk_nope_head_dim")}
    section |= {"rope_dim": whole(config, "qk_rope_head_dim"), "value_dim": whole(config, "v_head_dim")}
    if config.get("q_lora_rank") is not None:
        section["query_rank"] = whole(config, "q_lora_rank")
    elif bias:
        raise VariantError("attention_bias")  # their queries have none then; ours would
    if fields["eps"] > LATENT_EPS:
        raise VariantError("rms_norm_eps")
    return {**fields, "mla": section, "attention_scale": scale, "biases": {"qkv": bias, "out": bias}}


def experts(config: Config, count: str, first_dense: int, **fields: Any) -> Fields:
    """The section about experts, unless all layers are dense."""
    if first_dense >= whole(config, "num_hidden_layers"):
        return {}
    chosen = whole(config, "num_experts_per_tok")
    return {"moe": {"experts": whole(config, count), "top_k": chosen, "first_dense": first_dense, **fields}}


def deepseek_experts(config: Config, **fields: Any) -> Fields:
    """Experts that are narrower than the MLPs, some of them shared, from a layer on."""
    first, shared = config.get("first_k_dense_replace"), config.get("n_shared_experts")
    if not isinstance(first, int) or not isinstance(shared, int):
        raise VariantError("first_k_dense_replace, n_shared_experts")
    wide: Fields = {"d_ff": whole(config, "moe_intermediate_size"), "shared": shared}
    wide["route_scale"] = number(config, "routed_scaling_factor")
    return experts(config, "n_routed_experts", first, **wide, **fields)


def grouped_experts(config: Config) -> Fields:
    """DeepSeek-V3's: sigmoid scores, chosen from the best groups."""
    groups = {"groups": whole(config, "n_group"), "top_groups": whole(config, "topk_group")}
    return deepseek_experts(config, score="sigmoid", normalized=flag(config, "norm_topk_prob"), **groups)
