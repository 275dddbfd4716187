"""The forward pass against implementations that share no code with it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initdiag.model.feedforward import ACTIVATIONS
from initdiag.model.transformer import Transformer
from tests.model import plain
from tests.small_models import WIRINGS, architecture, shaken, tokens
from tests.small_models import subject as small_subject


def in_float64(**fields: Any) -> Transformer:
    module = shaken(Transformer(architecture(**fields)).double()).eval()
    assert isinstance(module, Transformer)
    if module.shape.norm_scale == "one_plus":  # around 0, so that norms multiply by numbers around 1
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if name.endswith("norm.weight"):
                    parameter.sub_(1)
    return module


def random_ids(batch: int = 2, length: int = 17, seed: int = 0) -> Tensor:
    return torch.tensor(tokens(small_subject(), batch, length, seed).inputs)


ALL = {
    **WIRINGS,
    "llama, another base": {**WIRINGS["llama"], "rotary_base": 100},
    "llama, scaled": {
        **WIRINGS["llama"],
        "rotary_base": 100,
        "rotary_scaling": {"factor": 8, "low": 0.5, "high": 2, "context": 24},  # heads of 8 have pairs in all bands
    },
    **{
        f"{act}{', gated' * gated}": {"activation": act, "gated": gated}
        for act in ACTIVATIONS
        for gated in (False, True)
    },
}


@pytest.mark.parametrize("fields", ALL.values(), ids=ALL)
@torch.no_grad()
def test_beside_the_plain_implementation(fields: dict[str, Any]) -> None:
    module, ids = in_float64(**fields), random_ids()
    # position tables are float32 also here: angles up to 17 are off by 17 · 6e-8, all else is float64
    exact = module.shape.position in ("learned", "none")
    torch.testing.assert_close(
        module(ids),
        plain.logits(module.shape, dict(module.named_parameters()), ids),
        rtol=0,
        atol=1e-11 if exact else 1e-4,
    )


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@torch.no_grad()
def test_beside_pytorchs_encoder_layers(norm_first: bool, activation: str) -> None:
    module = in_float64(placement="pre" if norm_first else "post", activation=activation, d_ff=50, tied=False)
    shape, w, ids = module.shape, module.state_dict(), random_ids()
    length = ids.shape[1]
    x = F.embedding(ids, w["token_embedding.weight"]) + w["position_embedding.weight"][:length]
    mask = nn.Transformer.generate_square_subsequent_mask(length, dtype=torch.float64)
    for i in range(shape.n_layers):
        layer = nn.TransformerEncoderLayer(
            shape.d_model,
            shape.n_heads,
            shape.d_ff,
            dropout=0.0,
            activation=activation,
            layer_norm_eps=shape.eps,
            batch_first=True,
            norm_first=norm_first,
            dtype=torch.float64,
        ).eval()
        mine = {name.removeprefix(f"blocks.{i}."): value for name, value in w.items() if f"blocks.{i}." in name}
        qkv = ("attention.query", "attention.key", "attention.value")
        theirs = {
            f"self_attn.in_proj_{part}": torch.cat([mine[f"{n}.{part}"] for n in qkv]) for part in ("weight", "bias")
        }
        pairs = {
            "self_attn.out_proj": "attention.out",
            "linear1": "mlp.input",
            "linear2": "mlp.out",
            "norm1": "attention_norm",
            "norm2": "mlp_norm",
        }
        for their, my in pairs.items():
            theirs |= {f"{their}.{part}": mine[f"{my}.{part}"] for part in ("weight", "bias")}
        layer.load_state_dict(theirs)
        x = layer(x, src_mask=mask, is_causal=True)
    if shape.final_norm:
        x = F.layer_norm(x, (shape.d_model,), w["final_norm.weight"], w["final_norm.bias"], shape.eps)
    torch.testing.assert_close(module(ids), F.linear(x, w["head.weight"]), rtol=0, atol=1e-11)


@torch.no_grad()
def test_grouped_queries_are_repeated_heads() -> None:
    grouped = in_float64(n_kv_heads=2)
    full = Transformer(architecture()).double()
    state = grouped.state_dict()
    for name, value in state.items():
        if ".attention.key." in name or ".attention.value." in name:  # 2 heads of 8 features, each for 2 queries
            state[name] = value.unflatten(0, (2, 8)).repeat_interleave(2, dim=0).flatten(0, 1)
    full.load_state_dict(state)
    torch.testing.assert_close(grouped(random_ids()), full(random_ids()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("wiring", WIRINGS)
@torch.no_grad()
def test_a_later_token_changes_nothing_before_it(wiring: str) -> None:
    module = in_float64(**WIRINGS[wiring])
    ids = random_ids(batch=3, length=12)
    before = module(ids)
    for position in (0, 5, 11):
        changed = ids.clone()
        changed[:, position] = (changed[:, position] + 1) % 97
        after = module(changed)
        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=1e-12)
        at = (after[:, position] - before[:, position]).abs().amax(-1)
        assert bool((at > 1e-3).all()), f"position {position} does not see its own token: {at}"
        if position < 11:
            later = (after[:, position + 1] - before[:, position + 1]).abs().amax(-1)
            assert bool((later > 1e-6).all()), f"position {position + 1} does not see position {position}: {later}"


@pytest.mark.parametrize("wiring", WIRINGS)
@torch.no_grad()
def test_a_shorter_sequence_gives_the_same_logits(wiring: str) -> None:
    module, ids = in_float64(**WIRINGS[wiring]), random_ids()
    torch.testing.assert_close(module(ids[:, :5]), module(ids)[:, :5], rtol=0, atol=1e-12)
    torch.testing.assert_close(module(ids[1:]), module(ids)[1:], rtol=0, atol=1e-12)


@pytest.mark.parametrize("head", [{"tied": True}, {"tied": False}, {"tied": False, "biases": {"head": True}}], ids=str)
@pytest.mark.parametrize("rows", [slice(0, 97), slice(0, 1), slice(13, 50), slice(90, 97), slice(None)], ids=str)
@torch.no_grad()
def test_logits_of_rows_are_a_slice_of_the_forward(rows: slice, head: dict[str, Any]) -> None:
    module, ids = in_float64(**head), random_ids()
    states = module.states(ids)
    assert states.shape == (2, 17, 32)
    torch.testing.assert_close(module.logits(states, rows), module(ids)[..., rows], rtol=0, atol=1e-13)


@torch.no_grad()
def test_the_embedding_multiplier_scales_tokens_and_not_positions_or_the_tied_head() -> None:
    multiplied, module = in_float64(embedding_multiplier=3.0, tied=False), in_float64(tied=False)
    w = module.state_dict()
    module.load_state_dict(w | {"token_embedding.weight": 3 * w["token_embedding.weight"]})
    torch.testing.assert_close(multiplied(random_ids()), module(random_ids()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wiring", WIRINGS)
@torch.no_grad()
def test_other_dtypes_stay_what_they_are(wiring: str, dtype: torch.dtype) -> None:
    fields = WIRINGS[wiring]
    if moe := fields.get("moe"):  # a token between two experts gets the other one after rounding: let it have them all
        fields = fields | {"moe": moe | {"top_k": moe["experts"], "top_groups": moe.get("groups", 1)}}
    module = in_float64(**fields)
    exact = module(random_ids())
    found = module.to(dtype)(random_ids())
    assert found.dtype is dtype
    # rounding to p bits, some 20 roundings deep, in random directions; six times √20 · 2^-p of the largest logit
    bits = {torch.float32: 24, torch.bfloat16: 8}[dtype]
    largest = float(exact.abs().max())
    assert float((found.double() - exact).abs().max()) < 6 * 20**0.5 * 2**-bits * largest
