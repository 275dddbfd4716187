"""WIRE003: five wiring faults, each named where it is; healthy models are silent."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import initdiag

EXAMPLES = Path(__file__).parent.parent.parent / "docs" / "examples"
sys.path.insert(0, str(EXAMPLES))

import gpt  # noqa: E402 - what the pages show

EXPECTED: dict[str, Any] = {
    "model": {"vocab_size": 512, "context": 64, "n_layers": 4, "d_model": 64, "n_heads": 4},
    "init": {"scheme": "scaled"},
}


class Reset(gpt.Block):
    """x = norm(x); x = x + attention(x): the stream is what the norm gives."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x)
        x = x + self.attn(x)
        return x + self.mlp(self.norm2(x))


class OnePlus(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.normalized_shape, 1 + self.weight, self.bias, self.eps)


class Halved(gpt.MLP):
    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * super().forward(x)


class Multiplied(gpt.GPT):
    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = (self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))) * 8
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x)), None


def faulty(part: str, kind: type[nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        model = gpt.GPT()
        (model.get_submodule(part) if part else model).__class__ = kind
        return model

    return build


def found(build: Any, **arguments: Any) -> list[initdiag.Report]:
    report = initdiag.check(build, **{"expect": EXPECTED, **arguments})
    return [one for one in report.findings if one.rule == "WIRE003"]


@pytest.mark.parametrize(
    ("build", "where", "says"),
    [
        (gpt.unscaled, "blocks.2.attn", "as if they weren't multiplied by 0.25, which is 1/√16"),
        (faulty("blocks.1", Reset), "blocks.1.attn.proj", "the variance of the stream after branch 3"),
        (faulty("blocks.2.norm2", OnePlus), "blocks.2.mlp.fc.weight", "as if the norm multiplied by 1 + w, with w = 1"),
        (faulty("blocks.1.mlp", Halved), "blocks.1.mlp.proj", "the variance of branch 4"),
        (faulty("", Multiplied), "tokens.weight", "as if it were multiplied by √d_model"),
    ],
    ids=["no 1/√head_dim", "stream reset", "1 + w", "half a branch", "√d_model"],
)
def test_a_fault_is_named_where_it_is(build: Any, where: str, says: str) -> None:
    (one,) = found(build)
    assert one.severity == "error"
    assert one.subject == where
    assert says in one.message
    assert ("All before it is as expected" in one.message) == (where != "tokens.weight")


def test_the_healthy_twin_is_silent_and_an_init_that_was_not_meant_is_not() -> None:
    for seed in range(5):
        assert found(gpt.GPT, seed=seed) == []
    (one,) = found(gpt.GPT, overrides=["init.residual_std=0.02"])
    assert one.subject == "blocks.0.attn.proj"
    assert "as if its std were divided by √(2N) = 2.828" in one.message


def test_another_architecture_is_said_to_be_one() -> None:
    (deeper,) = found(gpt.GPT, overrides=["model.n_layers=6"])
    assert "8 branches were found where 12 are expected" in deeper.message
    (kinds,) = found(gpt.GPT, overrides=["model.moe={experts: 4, top_k: 2}"])
    assert kinds.message.endswith(": branch 2 is of kind mlp, not moe")
    (untied,) = found(gpt.GPT, overrides=["model.tied=false"])
    assert "the head, tokens.weight, is tied to the embedding" in untied.message


def test_what_can_not_be_expected_is_an_error_of_usage() -> None:
    with pytest.raises(initdiag.UsageError, match=r"--expect gpt2: its vocabulary is 50,257, that of GPT 512; add"):
        initdiag.check(gpt.GPT, expect="gpt2")
    with pytest.raises(initdiag.UsageError, match=r"--expect gpt2: only for modules"):
        initdiag.check("tiny", expect="gpt2")
    with pytest.raises(initdiag.PlanError, match="which is expected: scheme lsuv rescales"):
        initdiag.check(gpt.GPT, expect={**EXPECTED, "init": {"scheme": "lsuv"}})
    with pytest.raises(initdiag.UsageError, match="expect: found 7"):
        initdiag.check(gpt.GPT, expect=7)


def test_a_hugging_face_class_is_held_against_its_own_config() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(vocab_size=300, n_positions=64, n_embd=128, n_layer=3, n_head=4)
    healthy = GPT2LMHeadModel(config).eval()
    report = initdiag.check(healthy)
    assert [one.rule for one in report.findings if one.rule == "WIRE003"] == []
    assert len(report.run.expected.branches) == 6
    healthy.transformer.h[1].attn.scaling = 1.0  # of 1/√32
    (one,) = [one for one in initdiag.check(healthy).findings if one.rule == "WIRE003"]
    assert one.subject == "transformer.h.1.attn"
    assert "as if they weren't multiplied by 0.1768, which is 1/√32" in one.message
