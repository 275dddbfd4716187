"""Rotary positions of Llama 3 and 3.1 against the transformers library."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from initdiag.config import load
from initdiag.model import Architecture
from initdiag.model.frequencies import rotary_frequencies
from initdiag.model.positions import rotation
from initdiag.model.sections import RotaryScaling
from initdiag.model.transformer import Transformer
from initdiag.subjects.quiet import import_transformers
from tests.small_models import WIRINGS, architecture, shaken

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import_transformers()
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

LLAMA_31 = {"factor": 8, "low": 1, "high": 4, "context": 8192}
THREE_BANDS = {"factor": 8, "low": 0.5, "high": 2, "context": 24}  # small heads have pairs in all of them with base 100
ROTARY: dict[str, dict[str, Any]] = {
    "llama 2": {},
    "llama 3": {"rotary_base": 500_000},
    "llama 3.1": {"rotary_base": 500_000, "rotary_scaling": LLAMA_31},
    "all bands": {"rotary_base": 100, "rotary_scaling": THREE_BANDS},
}

NAMES = {  # ours -> theirs
    "token_embedding": "model.embed_tokens",
    "attention_norm": "input_layernorm",
    "attention.query": "self_attn.q_proj",
    "attention.key": "self_attn.k_proj",
    "attention.value": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.gate": "mlp.gate_proj",
    "mlp.input": "mlp.up_proj",
    "mlp.out": "mlp.down_proj",
    "final_norm": "model.norm",
    "head": "lm_head",
}


def renamed(name: str) -> str:
    """Return their name of a parameter: of 'blocks.2.mlp.gate.weight', 'model.layers.2.mlp.gate_proj.weight'."""
    block = re.match(r"blocks\.(\d+)\.", name)
    part = name[block.end() if block else 0 :].removesuffix(".weight")
    return (f"model.layers.{block[1]}." if block else "") + f"{NAMES[part]}.weight"


def config_of(shape: Architecture) -> Any:
    """The LlamaConfig of a Llama."""
    scaling = shape.rotary_scaling
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": shape.rotary_base}
    if scaling is not None:
        rope |= {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low,
            "high_freq_factor": scaling.high,
            "original_max_position_embeddings": scaling.context,
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return LlamaConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.d_model,
            intermediate_size=shape.d_ff,
            num_hidden_layers=shape.n_layers,
            num_attention_heads=shape.n_heads,
            num_key_value_heads=shape.n_kv_heads,
            head_dim=shape.head_dim,
            max_position_embeddings=shape.context,
            rms_norm_eps=shape.eps,
            rope_parameters=rope,
            tie_word_embeddings=shape.tied,
            use_cache=False,
        )


def inverse_frequencies(shape: Architecture) -> Tensor:
    config = config_of(shape)
    if shape.rotary_scaling is None:
        return LlamaRotaryEmbedding(config).inv_freq
    inverse, multiplied = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    assert multiplied == 1, "else cos and sin would have to be multiplied, too"
    return inverse


def llama(**fields: Any) -> Architecture:
    return architecture(**{**WIRINGS["llama"], **fields})


@pytest.mark.parametrize("head_dim", [2, 8, 64, 128])
@pytest.mark.parametrize("rotary", ROTARY)
def test_frequencies(rotary: str, head_dim: int) -> None:
    shape = llama(head_dim=head_dim, **ROTARY[rotary])
    mine = torch.tensor(rotary_frequencies(shape))
    torch.testing.assert_close(mine, inverse_frequencies(shape), rtol=1e-6, atol=0)  # roundings of float32, 6e-8 each


@pytest.mark.parametrize("name", ["llama-3-70b", "llama-3.1-405b"])
@torch.no_grad()
def test_the_rotations_of_the_shipped_configs(name: str) -> None:
    """Those of the numbers that Meta published, written down here again."""
    shape, length = load(name).config.model, 64
    assert (shape.rotary_base, shape.head_dim) == (500_000, 128)
    scaling = RotaryScaling(**LLAMA_31) if name == "llama-3.1-405b" else None
    assert shape.rotary_scaling == scaling
    theirs = LlamaRotaryEmbedding(config_of(shape))(torch.empty(0), torch.arange(length)[None])
    mine = rotation(length, shape, torch.empty(0))
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other[0], rtol=0, atol=64 * 1e-6)  # frequencies to 1e-6, times the position


@pytest.mark.parametrize("rotary", ROTARY)
@torch.no_grad()
def test_logits_with_the_same_weights(rotary: str) -> None:
    shape = llama(**ROTARY[rotary])
    module = shaken(Transformer(shape).double()).eval()
    theirs: Any = LlamaForCausalLM(config_of(shape)).double().eval()
    weights = {renamed(name): parameter for name, parameter in module.named_parameters()}
    theirs.load_state_dict(weights)
    ids = torch.randint(shape.vocab_size, (2, shape.context), generator=torch.Generator().manual_seed(0))
    expected = theirs(ids).logits
    # rotary tables are float32 on both sides: angles up to 23, each off by a few times 23 · 6e-8; all else is float64
    torch.testing.assert_close(module(ids), expected, rtol=0, atol=1e-5)
    if rotary != "llama 2":  # the fields are heard: without them, the logits are others
        plain = Transformer(llama()).double()
        plain.load_state_dict(module.state_dict())
        assert float((plain(ids) - expected).abs().max()) > 1e-2
