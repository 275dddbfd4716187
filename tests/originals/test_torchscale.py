"""microsoft/torchscale: its decoder under DeepNorm and Sub-LN."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from initdiag.model.architecture import of_branch
from initdiag.schemes import Uniform
from tests.originals.compare import package, same_draw, same_draws
from tests.parity.tools import renamed

pytestmark = pytest.mark.usefixtures("originals")

N = 3
MODEL = {"vocab_size": 211, "context": 64, "d_model": 96, "n_layers": N, "n_heads": 4, "d_ff": 160, "tied": False}
NAMES = {
    "embed_tokens": "token_embedding",
    "embed_positions": "position_embedding",
    "self_attn.q_proj": "attention.query",
    "self_attn.k_proj": "attention.key",
    "self_attn.v_proj": "attention.value",
    "self_attn.out_proj": "attention.out",
    "self_attn.inner_attn_ln": "attention.inner_norm",
    "self_attn_layer_norm": "attention_norm",
    "ffn.fc1": "mlp.input",
    "ffn.ffn_layernorm": "mlp.inner_norm",
    "ffn.fc2": "mlp.out",
    "final_layer_norm": "mlp_norm",
    "layer_norm": "final_norm",
    "output_projection": "head",
}
# they start at nn.Linear's uniform and are multiplied along with their matrices; ours are 0, as the notes say
BIASES = ("query.bias", "key.bias", "value.bias", "attention.out.bias", "input.bias", "mlp.out.bias")
ATTENTION = ("query.weight", "key.weight", "value.weight", "attention.out.weight")


def built(**fields: bool) -> Any:
    decoder = package("torchscale.architecture.decoder", ("timm", "timm.models"))  # of timm it needs drop_path alone
    config, embedding = package("torchscale.architecture.config"), package("torchscale.component.embedding")
    torch.manual_seed(7)
    given = {"decoder_embed_dim": 96, "decoder_attention_heads": 4, "decoder_ffn_embed_dim": 160, "decoder_layers": N}
    return decoder.Decoder(
        config.DecoderConfig(**given, vocab_size=211, **fields),
        embed_tokens=embedding.TextEmbedding(211, 96),
        embed_positions=embedding.PositionalEmbedding(64, 96),
    )


def by_our_names(module: Any) -> dict[str, Tensor]:
    return renamed(dict(module.named_parameters()), "layers", NAMES)


FACTORS = {"deepnorm": (8 * 3) ** -0.25, "sub-ln": 1.3385661}  # √ln 6


@pytest.mark.parametrize(("scheme", "field"), [("deepnorm", "deepnorm"), ("sub-ln", "subln")])
def test_decoder(scheme: str, field: str) -> None:
    module = built(**{"deepnorm": False, "subln": False, field: True})
    theirs = by_our_names(module)
    shape = same_draws(scheme, MODEL, theirs, {"position_std": 1}, other=(*BIASES, *ATTENTION))
    assert of_branch(shape.stream_multiplier, 1) == pytest.approx(module.layers[0].alpha, rel=1e-12)
    assert (shape.placement == "pre") is module.layers[0].normalize_before
    # attention keeps nn.Linear's uniform in 0.3.0, times the factor where the scheme has one
    generator = torch.Generator().manual_seed(8)
    for part, factor in (("query", 1.0), ("key", 1.0), ("value", FACTORS[scheme]), ("out", FACTORS[scheme])):
        law = Uniform(factor / 96**0.5)
        found = torch.cat([theirs[f"blocks.{k}.attention.{part}.weight"].flatten() for k in range(N)])
        same_draw(found, (2 * torch.rand(len(found), generator=generator) - 1) * law.bound, law, part)


@pytest.mark.parametrize(("scheme", "given"), [("deepnorm", {"beta": 1, "alpha": 1}), ("sub-ln", {"gamma": 1})])
def test_base_of_attention(scheme: str, given: dict[str, float]) -> None:
    """Without a factor, after the reset_parameters that its attention has and nothing in 0.3.0 calls."""
    module = built(deepnorm=False, subln=scheme == "sub-ln", decoder_normalize_before=scheme == "sub-ln")
    with torch.no_grad():
        for layer in module.layers:
            layer.self_attn.reset_parameters()
            for part in (layer.ffn.fc1, layer.ffn.fc2):
                part.reset_parameters()
    same_draws(scheme, MODEL, by_our_names(module), {**given, "position_std": 1}, other=BIASES)
