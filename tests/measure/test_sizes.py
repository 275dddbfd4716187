"""The sizes that formulas use, read off one forward of modules that nobody has described."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    GPT2Config,
    LlamaConfig,
    MixtralConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from initdiag.case import case_of
from initdiag.engines import dense
from initdiag.errors import PlanError
from initdiag.measure.observe import survey
from initdiag.measure.sizes import sizes_seen
from initdiag.measure.values import Wiring
from initdiag.request import Request
from initdiag.schemes import Normal, Parameter, Role

SMALL: dict[str, Any] = {"vocab_size": 211, "num_hidden_layers": 2, "max_position_embeddings": 64}
LATENT: dict[str, Any] = {
    "q_lora_rank": 20,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}


class Attention(nn.Module):
    """Grouped-query attention in one matrix, `kind` linear or convolution; without heads, no projections at all."""

    def __init__(self, width: int, heads: int, groups: int, head_dim: int, convolution: bool = False) -> None:
        super().__init__()
        self.heads, self.groups, self.head_dim = heads, groups, head_dim
        rows = (heads + 2 * groups) * head_dim
        self.qkv = nn.Conv1d(width, rows, 1) if convolution else nn.Linear(width, rows)
        self.out = nn.Linear(heads * head_dim, width)

    def forward(self, x: Tensor) -> Tensor:
        cut = [self.heads, self.groups, self.groups]
        packed = self.qkv(x.mT).mT if isinstance(self.qkv, nn.Conv1d) else self.qkv(x)
        heads = packed.unflatten(-1, (-1, self.head_dim)).transpose(1, 2).split(cut, dim=1)
        query, key, value = (one.repeat_interleave(self.heads // one.shape[1], dim=1) for one in heads)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(-2))


class Averaged(nn.Module):
    """Attention without heads: every token averages what came before it, by its own product with it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.query(x) @ self.key(x).mT / math.sqrt(x.shape[-1])
        hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        return self.out(logits.masked_fill(hidden, -math.inf).softmax(-1) @ self.value(x))


class Model(nn.Module):
    def __init__(self, attention: nn.Module, width: int = 48) -> None:
        super().__init__()
        self.table, self.attention = nn.Embedding(211, width), attention
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.wide, self.narrow = nn.Linear(width, 100), nn.Linear(100, width)
        self.head = nn.Linear(width, 211)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        x = x + self.attention(self.norms[0](x))
        x = x + self.narrow(F.gelu(self.wide(self.norms[1](x))))
        return self.head(self.norms[2](x))  # type: ignore[no-any-return]


def hugging_face(config: Any) -> nn.Module:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config)  # type: ignore[no-any-return]


def seen(module: nn.Module) -> dict[str, float]:
    case = case_of(module, Request())
    weights = dense.realize(case.subject, 0, dense.AS_THEY_ARE)
    return dense.forward(case.subject, weights, case.batch, survey)[1]


def test_gpt2_with_its_fused_and_transposed_matrix() -> None:
    sizes = {"vocab_size": 211, "n_layer": 2, "n_positions": 64, "n_embd": 48, "n_head": 3}
    assert seen(hugging_face(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))) == {
        **{"vocab_size": 211, "n_layers": 2, "d_model": 48, "n_heads": 3, "n_kv_heads": 3, "head_dim": 16, "d_ff": 192},
        "tied": 1,
    }


def test_llama_with_grouped_queries_and_its_own_head_dim() -> None:
    heads = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10}
    assert seen(hugging_face(LlamaConfig(**SMALL, **heads, hidden_size=48, intermediate_size=100))) == {
        **{"vocab_size": 211, "n_layers": 2, "d_model": 48, "n_heads": 6, "n_kv_heads": 2, "head_dim": 10, "d_ff": 100},
        "tied": 0,
    }


def test_mixtral() -> None:
    sizes = {"num_attention_heads": 6, "num_key_value_heads": 2, "hidden_size": 48, "intermediate_size": 100}
    assert seen(hugging_face(MixtralConfig(**SMALL, **sizes, num_local_experts=4))) == {
        **{"vocab_size": 211, "n_layers": 2, "d_model": 48, "n_heads": 6, "n_kv_heads": 2, "head_dim": 8, "d_ff": 100},
        "tied": 0,
    }


@pytest.mark.parametrize("rank", [20, None])
def test_latent_attention(rank: int | None) -> None:
    """The first matrix of the queries only feeds the second; keys come from a latent, and say nothing of groups."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "hidden_size": 48, "intermediate_size": 100}
    assert seen(hugging_face(DeepseekV3Config(**SMALL, **{**LATENT, "q_lora_rank": rank}, **heads))) == {
        **{"vocab_size": 211, "n_layers": 2, "d_model": 48, "n_heads": 4, "head_dim": 12 + 8, "d_ff": 100},
        "tied": 0,
    }


def test_t5_has_three_branches_in_a_layer_of_its_decoder() -> None:
    sizes = {"d_model": 48, "d_kv": 12, "d_ff": 100, "num_layers": 2, "num_heads": 3, "vocab_size": 211}
    torch.manual_seed(0)
    assert seen(T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0))) == {
        **{"vocab_size": 211, "d_model": 48, "n_heads": 3, "n_kv_heads": 3, "head_dim": 12, "d_ff": 100, "tied": 1},
        "n_layers": (2 * 2 + 2 * 3) / 2,  # formulas have 2N branches
    }


def test_a_module_by_hand() -> None:
    assert seen(Model(Attention(48, 6, 2, 10))) == {
        **{"vocab_size": 211, "n_layers": 1, "d_model": 48, "n_heads": 6, "n_kv_heads": 2, "head_dim": 10, "d_ff": 100},
        "tied": 0,
    }


def test_what_was_not_seen_is_absent_and_not_wrong() -> None:
    known = {"vocab_size": 211, "n_layers": 1, "d_model": 48, "d_ff": 100, "tied": 0}
    assert seen(Model(Averaged(48))) == known  # no heads
    # nobody sees through a packed convolution: its outputs are not those of the queries alone
    assert seen(Model(Attention(48, 3, 3, 16, convolution=True))) == {**known, "n_heads": 3}


def test_the_first_layer_speaks_where_layers_differ() -> None:
    """As in OpenELM, whose layers have more heads and wider MLPs the later they are."""

    def layer(number: int, width: int, hidden: int) -> list[Parameter]:
        rows = {Role.ATTENTION_QUERY: width, Role.ATTENTION_KEY: width // 2, Role.MLP_OUT: 48}
        return [
            Parameter(f"h.{number}.{role}", (outputs, 48), role, hidden if role is Role.MLP_OUT else 48, number)
            for role, outputs in rows.items()
        ]

    sizes = sizes_seen([*layer(0, 80, 100), *layer(1, 160, 200)], (), Wiring(d_model=48), 4, 211)
    assert (sizes["head_dim"], sizes["n_kv_heads"], sizes["d_ff"]) == (20, 2, 100)
    assert "n_heads" not in sizes_seen([], (), Wiring(), 0, 211)


# --- schemes that need them


def planned(module: nn.Module, scheme: str, *overrides: str) -> dict[Role, set[float]]:
    plan = case_of(module, Request(scheme=scheme, overrides=overrides)).subject.plan
    stds: dict[Role, set[float]] = {}
    for entry in plan.entries:
        for one in getattr(entry.distribution, "pieces", ()) or [entry]:
            role = one.role if hasattr(one, "role") else one.parameter.role
            if isinstance(one.distribution, Normal):
                stds.setdefault(role, set()).add(round(one.distribution.std, 12))
    return stds


@pytest.mark.parametrize("scheme", ["t5", "maxtext"])
def test_the_head_dim_that_was_seen_makes_queries_smaller(scheme: str) -> None:
    stds = planned(Model(Attention(48, 6, 2, 10)), scheme)
    assert stds[Role.ATTENTION_QUERY] == {round(48**-0.5 * 10**-0.5, 12)}
    assert stds[Role.ATTENTION_KEY] == stds[Role.ATTENTION_VALUE] == {round(48**-0.5, 12)}
    assert stds[Role.ATTENTION_OUT] == {round(60**-0.5, 12)}


def test_a_size_that_is_not_known_is_named_with_what_to_do() -> None:
    with pytest.raises(PlanError) as caught:
        planned(Model(Averaged(48)), "t5")
    assert str(caught.value) == (
        "Model: scheme 't5' needs head_dim, which is not known of this model; set its parameter key_dim (now head_dim) "
        "to a number, e.g. --set init.key_dim=64"
    )
    stds = planned(Model(Averaged(48)), "t5", "init.key_dim=64")
    assert stds[Role.ATTENTION_QUERY] == {round(48**-0.5 / 8, 12)}


def test_layers_without_numbers_are_said_to_be_so() -> None:
    with pytest.raises(
        PlanError, match=r"'attention\.out\.weight' .* that depends on its layer, and there is no number"
    ):
        planned(Model(Attention(48, 6, 2, 10)), "olmo-mitchell")
    with pytest.raises(PlanError, match=r"can't say what 'attention\.out\.weight' .*depends on its layer"):
        planned(Model(Attention(48, 6, 2, 10)), "torchtitan")
