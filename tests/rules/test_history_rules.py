"""Rules on the history of a module, each on a real module with the fault and on its healthy twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from initdiag.rules.finding import Finding
from initdiag.rules.history import RESCALED, TIE, UNTOUCHED, UNWRITTEN
from initdiag.rules.rule import Evidence, Rule
from initdiag.subjects.history import InitHistory
from initdiag.subjects.recorder import build_watched
from initdiag.subjects.second_init import second_init
from initdiag.subjects.subject import Declared
from initdiag.subjects.tying import tie_of

UNDECLARED = Declared()


class Model(nn.Module):
    """A small language model without a forward; what it does at init is given by flags."""

    def __init__(self, *, skip: tuple[type[nn.Module], ...] = (), init: bool = True, head: str = "", tie: Any = None):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.attn = nn.MultiheadAttention(8, 2)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 30, bias=False)
        self.register_buffer("inv_freq", 1 / (1.0 + torch.arange(4.0)))
        if tie is not None:
            self.config = SimpleNamespace(tie_word_embeddings=tie)
        if tie:
            self.head.weight = self.embed.weight
        self.skip = skip
        if init:
            self.init_weights()
        if head == "zero":
            nn.init.zeros_(self.head.weight)

    def init_weights(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding | nn.MultiheadAttention) and not isinstance(
                module, self.skip
            ):
                weight = module.in_proj_weight if isinstance(module, nn.MultiheadAttention) else module.weight
                nn.init.normal_(weight, std=0.03)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
            if isinstance(module, nn.LayerNorm):
                module.reset_parameters()


class Scales(Model):
    def init_weights(self) -> None:
        self.down.weight.data.mul_(0.25)


class WritesAll(Model):
    def init_weights(self) -> None:
        super().init_weights()
        nn.init.zeros_(self.attn.in_proj_bias)
        self.inv_freq.copy_(1 / (1.0 + torch.arange(4.0)))


def materialized(kind: type[Model]) -> nn.Module:
    with torch.device("meta"):
        module = kind(tie=True)
    module.to_empty(device="cpu")
    module.init_weights()
    return module


def found(
    rule: Rule, build: Callable[[], nn.Module], declared: Declared = UNDECLARED, tied: bool = False
) -> tuple[Finding, ...]:
    built = build_watched(build)
    flag, shared = tie_of(built.module)
    history = InitHistory(
        watched=True,
        unwritten=built.unwritten,
        untouched=built.untouched,
        rescaled=second_init(built.module),
        drawn=built.distributions,
        tie_declared=flag,
        tie_found=shared,
    )
    parameters = tuple(
        SimpleNamespace(name=name, shape=tuple(tensor.shape), std=float(tensor.detach().std()), buffer=False)
        for name, tensor in built.module.named_parameters()
    )
    wiring = SimpleNamespace(head="head.weight", embedding="embed.weight", tied=tied)
    subject = SimpleNamespace(
        drawn_by_us=False,
        architecture=None,
        declared=declared,
        plan=SimpleNamespace(by_name={}),
        locate=lambda path: None,
    )
    measured = SimpleNamespace(history=history, parameters=parameters, wiring=wiring)
    return rule.findings(Evidence(subject, measured, None, None))


def one(findings: tuple[Finding, ...], severity: str = "error") -> Finding:
    (finding,) = findings
    assert finding.severity == severity
    return finding


@pytest.mark.parametrize("rule", [UNWRITTEN, RESCALED, UNTOUCHED, TIE])
@pytest.mark.parametrize(
    "build",
    [
        Model,
        WritesAll,
        lambda: Model(init=False),  # PyTorch's defaults everywhere
        lambda: Model(tie=True),
        lambda: Model(tie=False),
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    ],
)
def test_healthy_modules(rule: Rule, build: Callable[[], nn.Module]) -> None:
    assert [finding for finding in found(rule, build) if finding.severity != "info"] == []


def test_a_buffer_that_to_empty_forgot() -> None:
    findings = found(UNWRITTEN, lambda: materialized(Model))
    assert [finding.subject for finding in findings] == ["attn.in_proj_bias", "inv_freq"]
    parameter, buffer = findings
    assert parameter.severity == buffer.severity == "error"
    assert "nn.init.zeros_(model.attn.in_proj_bias)" in parameter.help
    assert "model.inv_freq.copy_(values)" in buffer.help
    assert found(UNWRITTEN, lambda: materialized(WritesAll)) == ()


def test_a_matrix_of_empty_memory() -> None:
    def build() -> nn.Module:
        module = Model()
        module.extra = nn.Parameter(torch.empty(4, 4))
        return module

    assert "nn.init.normal_(model.extra, std=0.03)" in one(found(UNWRITTEN, build)).help
    assert "std=0.01)" in one(found(UNWRITTEN, build, Declared(std=0.01))).help


def test_an_init_that_scales_again() -> None:
    finding = one(found(RESCALED, Scales))
    assert finding.subject == "down.weight"
    assert "by 0.25" in finding.message
    # what the first call left: a default, U(1/√32), times 1/4; 256 entries, five standard errors are 14 %
    std = float(finding.help.rpartition("std=")[2].rstrip(")"))
    assert std == pytest.approx(1 / (32 * 3) ** 0.5 / 4, rel=0.14)
    assert finding.help.endswith(f"nn.init.normal_(model.down.weight, std={std:.4g})")


def test_the_largest_factor_stands_for_all() -> None:
    class More(Model):
        def init_weights(self) -> None:
            self.up.weight.data.mul_(0.9)
            self.down.weight.data.div_(0.1)

    finding = one(found(RESCALED, More))
    assert finding.subject == "down.weight" and "down.weight, up.weight: " in finding.message
    assert "by 10" in finding.message


def test_matrices_that_init_left_out() -> None:
    finding = one(found(UNTOUCHED, lambda: Model(skip=(nn.MultiheadAttention,))), "warning")
    assert finding.subject == "attn.in_proj_weight"
    assert "it wrote 5 of 6 matrices" in finding.message
    assert "nn.init.normal_(model.attn.in_proj_weight, std=0.03)" in finding.help  # as its other matrices


def test_a_function_that_writes_a_few_matrices_is_taken_at_its_word() -> None:
    finding = one(found(UNTOUCHED, lambda: Model(init=False, head="zero")), "info")
    assert "it wrote 1 of 6 matrices" in finding.message and "and " in finding.message


def test_biases_left_to_pytorch_inform() -> None:
    class OnlyMatrices(Model):
        def init_weights(self) -> None:
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.xavier_uniform_(parameter)

    finding = one(found(UNTOUCHED, OnlyMatrices), "info")
    assert finding.subject == "up.bias"
    assert "nn.init.zeros_(model.up.bias)" in finding.help


def test_a_tie_undone() -> None:
    finding = one(found(TIE, lambda: materialized(Model)))
    assert "head.weight and embed.weight are two tensors" in finding.message
    assert "model.head.weight = model.embed.weight" in finding.help
    assert found(TIE, lambda: materialized(Model), tied=True) == ()  # the forward uses one tensor for both


def test_a_tie_that_nobody_declared() -> None:
    def build() -> nn.Module:
        module = Model(tie=False)
        module.head.weight = module.embed.weight
        return module

    assert one(found(TIE, build), "warning").subject == "head.weight"


def test_a_module_that_was_not_watched_has_no_history() -> None:
    history = InitHistory()
    measured = SimpleNamespace(
        history=history, parameters=(), wiring=SimpleNamespace(head=None, embedding=None, tied=False)
    )
    subject = SimpleNamespace(
        drawn_by_us=False,
        architecture=None,
        declared=Declared(),
        plan=SimpleNamespace(by_name={}),
        locate=lambda path: None,
    )
    evidence = Evidence(subject, measured, None, None)
    assert [rule.findings(evidence) for rule in (UNWRITTEN, RESCALED, UNTOUCHED, TIE)] == [()] * 4
    assert replace(history, watched=True).unwritten == ()
