"""torchtitan 0.1.0, which still has both depth modes in its Llama: Transformer.init_weights."""

from __future__ import annotations

import pytest
import torch

from tests.originals.compare import package, same_draws
from tests.parity.tools import renamed

pytestmark = pytest.mark.usefixtures("originals")

PARTS = ("torchtitan", "torchtitan.models", "torchtitan.models.llama3", "torchtitan.models.llama3.model")

NAMES = {
    "tok_embeddings": "token_embedding",
    "attention_norm": "attention_norm",
    "attention.wq": "attention.query",
    "attention.wk": "attention.key",
    "attention.wv": "attention.value",
    "attention.wo": "attention.out",
    "ffn_norm": "mlp_norm",
    "feed_forward.w1": "mlp.gate",
    "feed_forward.w2": "mlp.out",
    "feed_forward.w3": "mlp.input",
    "norm": "final_norm",
    "output": "head",
}


@pytest.mark.parametrize(("by_layer", "depth"), [(True, "layer"), (False, "total")])
def test_init_weights(by_layer: bool, depth: str) -> None:
    llama = package("torchtitan.models.llama3.model.model", PARTS)
    torch.manual_seed(10)
    given = {"dim": 96, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 211, "max_seq_len": 64}
    module = llama.Transformer(llama.TransformerModelArgs(**given, multiple_of=32, depth_init=by_layer))
    theirs = renamed(dict(module.named_parameters()), "layers", NAMES)
    model = {"vocab_size": 211, "context": 64, "d_model": 96, "n_layers": 3, "n_heads": 4, "n_kv_heads": 2}
    llama_like = {"d_ff": 256, "norm": "rmsnorm", "gated": True, "biases": False, "tied": False, "position": "rotary"}
    same_draws("torchtitan", {**model, **llama_like}, theirs, {"depth": depth})
