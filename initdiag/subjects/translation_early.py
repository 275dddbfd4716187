"""Families of Hugging Face configs from GPT-2 to Qwen2, as fields of an `Architecture`. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from initdiag.subjects.translation_decoder import (
    attention_bias,
    decoder,
    narrow,
    size,
)
from initdiag.subjects.translation_fields import (
    Config,
    Fields,
    VariantError,
    activation,
    cap,
    flag,
    number,
    require,
    same_window,
    whole,
    windows_by_layer,
)

ALIBI_CONTEXT = 2048  # of BLOOM, whose config has none (arXiv 2211.05100); nothing is computed from it
PLAIN: Fields = {"gated": False, "norm": "layernorm"}  # an MLP with one matrix in, and LayerNorm


# --- with learned positions or ALiBi


def _gpt2(config: Config) -> Fields:
    require(config, scale_attn_by_inverse_layer_idx=False)
    scaled = flag(config, "scale_attn_weights")
    return {**_gpt(config), **({} if scaled else {"attention_scale": 1.0})}


def _gpt(config: Config) -> Fields:
    """The fields of GPT-2 and GPT-J under their own names."""
    inner = {} if config.get("n_inner") is None else {"d_ff": whole(config, "n_inner")}
    return {
        **size(config, "n_embd", "n_layer"),
        **inner,
        "context": whole(config, "n_positions"),
        "n_heads": whole(config, "n_head"),
        "activation": activation(config, "activation_function"),
        "eps": number(config, "layer_norm_epsilon"),
    }


def _opt(config: Config) -> Fields:
    require(config, word_embed_proj_dim=whole(config, "hidden_size"), layer_norm_elementwise_affine=True)
    before, bias = flag(config, "do_layer_norm_before"), flag(config, "enable_bias")
    return {
        **size(config),
        "context": whole(config, "max_position_embeddings"),
        "n_heads": whole(config, "num_attention_heads"),
        "d_ff": whole(config, "ffn_dim"),
        "activation": activation(config, "activation_function"),
        "placement": "pre" if before else "post",
        "final_norm": before and not config.get("_remove_final_layer_norm"),
        "position_offset": 2,
        "biases": {"qkv": bias, "out": bias, "mlp": bias, "norm": True},
    }


def _bloom(config: Config) -> Fields:
    require(config, apply_residual_connection_post_layernorm=False)
    return {
        **size(config, layers="n_layer"),
        "context": whole({"seq_length": ALIBI_CONTEXT, **config}, "seq_length"),
        "n_heads": whole(config, "n_head"),
        "activation": "gelu_tanh",
        "eps": number(config, "layer_norm_epsilon"),
        "embedding_norm": True,
        "position": "alibi",
    }


def _mpt(config: Config) -> Fields:
    """Its class reads less than its config says: what it doesn't read must be as it computes."""
    attention = config.get("attn_config")
    if not isinstance(attention, Mapping):
        raise VariantError("attn_config")
    require(config, no_bias=True, expansion_ratio=4, logit_scale=None)
    require(attention, attn_type="multihead_attention", clip_qkv=None, prefix_lm=False, qk_ln=False, alibi=True)
    require(attention, alibi_bias_max=8)
    scale = cap(attention, "softmax_scale")
    return {
        **size(config, "d_model", "n_layers"),
        "context": whole(config, "max_seq_len"),
        "n_heads": whole(config, "n_heads"),
        "eps": number(config, "layer_norm_epsilon"),
        "position": "alibi",
        "biases": False,
        **({} if scale is None else {"attention_scale": scale}),
    }


# --- rotary, with parallel blocks


def _neox(config: Config) -> Fields:
    fields = decoder(narrow({**config, "num_key_value_heads": None}), eps="layer_norm_eps", partial=True)
    parallel = flag(config, "use_parallel_residual")
    biases = {**attention_bias(config), "mlp": True, "norm": True}
    return {**fields, **PLAIN, "placement": "parallel" if parallel else "pre", "biases": biases}


def _gptj(config: Config) -> Fields:
    turning = {"position": "rotary", "rotary_dims": whole(config, "rotary_dim")}
    biases = {"mlp": True, "norm": True, "head": True}
    return {**_gpt(config), **turning, "placement": "parallel_shared", "biases": biases}


def _falcon(config: Config) -> Fields:
    require(config, alibi=False)
    new, parallel, bias = (flag(config, name) for name in ("new_decoder_architecture", "parallel_attn", "bias"))
    many, norms = not flag(config, "multi_query"), config.get("num_ln_in_parallel_attn")
    if (new and not (parallel and norms in (None, 1, 2))) or (not new and norms not in (None, 1)):
        raise VariantError("num_ln_in_parallel_attn")
    if not new and many:
        require(config, num_kv_heads=whole(config, "num_attention_heads"))
    keys = whole(config, "num_kv_heads") if new or many else 1
    given = {"num_key_value_heads": keys, "intermediate_size": config.get("ffn_hidden_size")}
    fields = decoder(narrow({**config, **given}), eps="layer_norm_epsilon", act="activation")
    shared = "parallel" if new and norms != 1 else "parallel_shared"
    biases = {"qkv": bias, "out": bias, "mlp": bias, "norm": True}
    return {**fields, **PLAIN, "placement": shared if parallel else "pre", "biases": biases}


def _phi(config: Config) -> Fields:
    require(config, qk_layernorm=False)
    biases = dict.fromkeys(("qkv", "out", "mlp", "norm", "head"), True)
    fields = decoder(config, eps="layer_norm_eps", partial=True)
    return {**fields, **PLAIN, "placement": "parallel_shared", "biases": biases}


def _stablelm(config: Config) -> Fields:
    require(config, qk_layernorm=False)
    fields = decoder(narrow(config), eps="layer_norm_eps", partial=True)
    placement = "parallel_shared" if flag(config, "use_parallel_residual") else "pre"
    biases = {"qkv": flag(config, "use_qkv_bias"), "norm": True}
    return {**fields, "norm": "layernorm", "placement": placement, "biases": biases}


# --- the Llama line


def _llama(config: Config) -> Fields:
    return {**decoder(config), "biases": {**attention_bias(config), "mlp": flag(config, "mlp_bias")}}


def _with_window(config: Config) -> Fields:
    """Mistral."""
    return {**decoder(config), **same_window(config)}


def _phi3(config: Config) -> Fields:
    return {**decoder(config, partial=True), **same_window(config)}


def _starcoder2(config: Config) -> Fields:
    bias = flag(config, "use_bias")
    fields = {**decoder(config, eps="norm_epsilon"), **PLAIN, **same_window(config)}
    return {**fields, "biases": {"qkv": bias, "out": bias, "mlp": bias, "norm": True}}


def _qwen2(config: Config) -> Fields:
    return {**decoder(config), **windows_by_layer(config), "biases": {"qkv": True}}


EARLY: dict[str, Callable[[Config], Fields]] = {
    "gpt2": _gpt2,
    "opt": _opt,
    "bloom": _bloom,
    "mpt": _mpt,
    "gpt_neox": _neox,
    "gptj": _gptj,
    "falcon": _falcon,
    "phi": _phi,
    "stablelm": _stablelm,
    "llama": _llama,
    "mistral": _with_window,
    "phi3": _phi3,
    "starcoder2": _starcoder2,
    "qwen2": _qwen2,
}
