"""What a config object promises about a model: Hugging Face's, or any with the usual names in it. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from initdiag.subjects.subject import Declared

CONTEXT = """max_position_embeddings n_positions block_size max_seq_len max_seq_length max_sequence_length
    context_length context_window ctx_len n_ctx seq_len seq_length sequence_length max_len max_length""".split()
STD = "initializer_range init_std init_scale_std initializer_std".split()
TIED = "tie_word_embeddings tie_weights tie_embeddings tied_embeddings weight_tying tied tie_word_embedding".split()
VOCABULARY = "vocab_size padded_vocab_size n_vocab vocabulary_size num_tokens n_tokens vocab".split()

# Position ids of these begin after the padding id: 514 rows are 512 tokens.
_OFFSET = """roberta xlm-roberta xlm-roberta-xl camembert roberta-prelayernorm data2vec-text xmod longformer ibert mpnet
    luke mra""".split()
# Classes of transformers that norm their embeddings, or multiply them without a field that says so (read in 5.24).
_MULTIPLIED = """bloom nanochat ctrl gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text gemma4 gemma4_text
    recurrent_gemma vaultgemma t5gemma t5gemma2 bert albert roberta xlm-roberta xlm-roberta-xl camembert electra ernie
    roc_bert roformer rembert megatron-bert big_bird distilbert deberta deberta-v2 mpnet modernbert xlm flaubert
    data2vec-text xmod longformer ibert luke nystromformer squeezebert convbert bart mbart blenderbot-small plbart
    mvp""".split()
_MULTIPLIERS = ("embedding_multiplier", "scale_emb", "embedding_scale", "emb_multiplier")
_MULTIPLIES = ("scale_embedding", "rescale_embeddings", "mup_enabled", "scale_embeddings")
# Their init code divides the std of residual projections by √(2·layers) (GPT-2 paper, section 2.3).
_SCALED = "gpt2 gpt-sw3 gpt_bigcode imagegpt decision_transformer nanochat".split()


def read(config: Any, *names: str, kinds: type | tuple[type, ...] = object) -> Any:
    """Return the first value that a config object or mapping has under one of some names, None where it has none.

    A value of another type than asked for is passed over; a bool is no number.
    """
    for name in names:
        value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
        if isinstance(value, kinds) and not (isinstance(value, bool) and kinds is not bool):
            return value
    return None


def text_part(config: Any) -> Any:
    """Return the part of a composite Hugging Face config that is about its language model; any other as it is."""
    for name in ("text_config", "decoder", "generator"):
        part = read(config, name)
        if part is not None and read(part, "model_type", kinds=str):
            return part
    return config


def declared_by(config: Any, causal: bool | None = None) -> Declared:
    """Read what a config promises.

    Args:
        config: an object or a mapping. causal: what its class says, where the config itself says nothing.
    """
    part = text_part(config)
    kind = read(part, "model_type", kinds=str) or ""
    std = read(part, *STD, kinds=(int, float))
    tied = read(config, *TIED, kinds=bool)
    context = read(part, *CONTEXT, kinds=int)
    if context is not None and kind in _OFFSET:
        context -= (read(part, "pad_token_id", kinds=int) or 0) + 1
    scaled = kind in _SCALED or read(part, "rescale_prenorm_residual", kinds=bool)
    return Declared(
        std=float(std) if std is not None and 0 < std < float("inf") else None,
        tied=read(part, *TIED, kinds=bool) if tied is None else tied,
        causal=_causal(part, kind, causal),
        residual_scaling=True if scaled else None,
        context=context if context is not None and context > 0 else None,
        embedding_multiplier=_multiplied(part, kind),
    )


def _causal(config: Any, kind: str, causal: bool | None) -> bool | None:
    """XLNet reads both ways unless attn_type is "uni"; XLM and others have a flag of their own."""
    if kind == "xlnet":
        return bool(read(config, "attn_type", kinds=str) == "uni")
    flag = read(config, "causal", "is_causal", kinds=bool)
    if flag is not None and (causal is None or kind in ("xlm", "flaubert")):
        return bool(flag)
    return causal


def _multiplied(config: Any, kind: str) -> bool | None:
    factor = read(config, *_MULTIPLIERS, kinds=(int, float))
    if factor is not None and factor != 1:
        return True
    if read(config, *_MULTIPLIES, kinds=bool) or kind in _MULTIPLIED:
        return True
    return False if kind else None
