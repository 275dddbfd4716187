"""transformers: what its classes draw for the models of tests/parity, and for T5, BERT and Mamba."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from torch import Tensor

from initdiag.schemes import Parameter, Role, make_plan, scheme_named
from tests.originals.compare import same_as_plan, same_draws
from tests.parity import families_early, families_recent
from tests.parity.families_early import built
from tests.parity.family import Family
from tests.parity.tools import renamed

FAMILIES: dict[str, Family] = {one.name: one for one in (*families_early.FAMILIES, *families_recent.FAMILIES)}
# gpt-oss draws vectors from the normal of its matrices; nanochat's class scales attention out, but not MLP
# out; Nemotron's norms multiply by 1 + weight, and their weights are drawn as 1: they start with gain 2
OTHER = {
    "gpt-oss": ("sinks.weight", "router.bias"),
    "nanochat": ("attention.out.weight",),
    "nemotron": ("norm.weight",),
}
RANGES = {"starcoder2": 0.018042, "minicpm3": 0.1, "nemotron": 0.0134}  # initializer_range where it isn't 0.02


@pytest.mark.parametrize("name", FAMILIES)
def test_causal_models(name: str) -> None:
    """N(initializer_range) for all and norms of 1; GPT-2 alone scales all residual projections."""
    family = FAMILIES[name]
    theirs = family.ours(family.theirs().state_dict())
    scheme, given = "scaled" if name == "gpt2" else "gpt2", {"std": RANGES.get(name, 0.02)}
    same_draws(scheme, family.model, theirs, given, other=OTHER.get(name, ()))


def test_initializer_range_is_std() -> None:
    """OPT's is called init_std."""
    given = {"vocab_size": 211, "hidden_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 64}
    given |= {"num_attention_heads": 4, "ffn_dim": 160, "word_embed_proj_dim": 96, "init_std": 0.006}
    theirs = families_early.opt(built("OPTForCausalLM", **given, pad_token_id=None).state_dict())
    model = {"vocab_size": 211, "context": 64, "d_model": 96, "n_layers": 2, "n_heads": 4, "d_ff": 160}
    same_draws("gpt2", {**model, "activation": "relu", "position_offset": 2}, theirs, {"std": 0.006})
    same_draws("opt", {**model, "activation": "relu", "position_offset": 2}, theirs, {"residual_std": 0.006})


T5_NAMES = {
    "shared": "token_embedding",
    "layer.0.layer_norm": "attention_norm",
    "layer.0.SelfAttention.q": "attention.query",
    "layer.0.SelfAttention.k": "attention.key",
    "layer.0.SelfAttention.v": "attention.value",
    "layer.0.SelfAttention.o": "attention.out",
    "layer.2.layer_norm": "mlp_norm",
    "layer.2.DenseReluDense.wi_0": "mlp.gate",
    "layer.2.DenseReluDense.wi_1": "mlp.input",
    "layer.2.DenseReluDense.wi": "mlp.input",
    "layer.2.DenseReluDense.wo": "mlp.out",
    "decoder.final_layer_norm": "final_norm",
    "lm_head": "head",
}


@pytest.mark.parametrize("gated", [False, True], ids=["T5 1.0", "T5 1.1"])
def test_t5(gated: bool) -> None:
    """Its decoder, without the attention to the encoder and the biases of relative positions."""
    given = {"vocab_size": 211, "d_model": 96, "num_decoder_layers": 3, "num_layers": 1, "num_heads": 3}
    given |= {"d_kv": 24, "d_ff": 160, "feed_forward_proj": "gated-gelu" if gated else "relu", "pad_token_id": None}
    state = built("T5ForConditionalGeneration", **given, tie_word_embeddings=False).state_dict()
    left_out = ("encoder.", "decoder.embed_tokens.", "relative_attention_bias", "EncDecAttention", ".layer.1.")
    theirs = renamed(_left(state, left_out), "decoder.block", T5_NAMES)
    model = {"vocab_size": 211, "context": 64, "d_model": 96, "n_layers": 3, "n_heads": 3, "head_dim": 24, "d_ff": 160}
    norms = {"norm": "rmsnorm", "biases": False, "position": "none", "tied": False, "gated": gated}
    same_draws("t5-hf", {**model, **norms}, theirs)


BERT_NAMES = {
    "embeddings.word_embeddings": "token_embedding",
    "embeddings.position_embeddings": "position_embedding",
    "embeddings.LayerNorm": "embedding_norm",
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.out",
    "attention.output.LayerNorm": "attention_norm",
    "intermediate.dense": "mlp.input",
    "output.dense": "mlp.out",
    "output.LayerNorm": "mlp_norm",
}


def test_bert() -> None:
    """A plain normal, not the cut one of the original: bert-hf is gpt2, not bert."""
    given = {"vocab_size": 211, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    given |= {"intermediate_size": 160, "max_position_embeddings": 64, "pad_token_id": None}
    state = built("BertModel", **given).state_dict()
    theirs = renamed(_left(state, ("pooler.", "token_type_embeddings")), "encoder.layer", BERT_NAMES)
    model = {"vocab_size": 211, "context": 64, "d_model": 96, "n_layers": 3, "n_heads": 4, "d_ff": 160}
    model |= {"placement": "post", "embedding_norm": True}
    same_draws("bert-hf", model, theirs)
    with pytest.raises(AssertionError):
        same_draws("bert", model, theirs)


def test_mamba() -> None:
    """Its output projections under rescale_prenorm_residual: one branch a layer. initializer_range is ours to set."""
    given = {"vocab_size": 211, "hidden_size": 96, "num_hidden_layers": 5, "expand": 2, "pad_token_id": None}
    state = built("MambaModel", **given, initializer_range=0.02, rescale_prenorm_residual=True).state_dict()
    theirs = {name: x for name, x in state.items() if name.endswith("out_proj.weight")}
    theirs["embeddings.weight"] = state["embeddings.weight"]
    ours = [Parameter(name, (96, 192), Role.MLP_OUT, 192, k) for k, name in enumerate(theirs) if "out_proj" in name]
    ours.append(Parameter("embeddings.weight", (211, 96), Role.TOKEN_EMBEDDING, 96))
    same_as_plan(make_plan(scheme_named("mamba"), ours, {"n_layers": 5}, {"branches": 1}), theirs)
    bound = 1 / math.sqrt(192) / math.sqrt(5)
    assert max(float(x.abs().max()) for name, x in theirs.items() if "out_proj" in name) <= bound


def _left(state: Mapping[str, Tensor], parts: tuple[str, ...]) -> dict[str, Tensor]:
    return {name: x for name, x in state.items() if not any(part in name for part in parts)}
