"""LABEL001 and LABEL002, from the loss of small modules to the finding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from initdiag.config import Config
from initdiag.measure import ProbeMeasure
from initdiag.measure.labels import explain_loss
from initdiag.rules import Finding, labels
from initdiag.rules.rule import Evidence, Rule
from initdiag.subjects import Subject
from initdiag.subjects.subject import Declared
from tests.rules.test_signal_rules import MEASURED, SHAPE, loud

VOCAB, BATCH, LENGTH = 151, 2, 64
TOKENS = torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(3))
IDS, TARGETS = TOKENS[:, :-1].contiguous(), TOKENS[:, 1:].contiguous()
LOGITS = 0.5 * torch.randn(BATCH, LENGTH, VOCAB, generator=torch.Generator().manual_seed(4))

Loss = Callable[[Tensor, Tensor], Tensor]


def moved(shift: int, reduction: str = "mean") -> Loss:
    def loss(logits: Tensor, tokens: Tensor) -> Tensor:
        kept = logits[:, : LENGTH - shift].flatten(0, 1)
        return F.cross_entropy(kept, tokens[:, shift:].flatten(), reduction=reduction)

    return loss


def judged(
    rule: Rule, value: Tensor | float, shifted: bool = False, module: nn.Module | None = None, causal: bool = True
) -> tuple[Finding, ...]:
    name = "targets" if shifted else "labels"
    measured = explain_loss(LOGITS, IDS, TARGETS, torch.as_tensor(value), name, shifted)
    subject = Subject(module, vocab_size=VOCAB)
    gate = Config.model_validate({"model": SHAPE}).gate
    seen = replace(MEASURED, labels=measured, probe=ProbeMeasure(0.0, 0.1, causal))
    return rule.findings(Evidence(subject, seen, None, gate))  # type: ignore[arg-type]  # no expectations


def gpt2() -> nn.Module:
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCAB, **sizes))


@pytest.mark.parametrize("shifted", [False, True])
def test_healthy_losses_are_silent(shifted: bool) -> None:
    value = moved(0)(LOGITS, TARGETS) if shifted else moved(1)(LOGITS, IDS)
    assert judged(labels.MISALIGNED, value, shifted) == judged(labels.REDUCTION, value, shifted) == ()


@pytest.mark.parametrize(
    ("shift", "shifted", "library", "severity", "says"),
    [
        (2, False, False, "error", "labels[:, 1:]"),
        (2, True, False, "error", "next tokens already"),
        (0, True, False, "error", "logits.flatten(0, 1), targets.flatten()"),
        (0, False, True, "error", "labels[:, 1:]"),
        (0, False, False, "warning", "two readings"),
    ],
)
def test_misaligned_labels(shift: int, shifted: bool, library: bool, severity: str, says: str) -> None:
    # targets that are moved once more are compared with the token at t + 2
    value = moved(1)(LOGITS, TARGETS) if shifted and shift == 2 else moved(shift)(LOGITS, IDS)
    (found,) = judged(labels.MISALIGNED, value, shifted, gpt2() if library else None)
    assert found.severity == severity and says in found.help
    assert f"{float(value):.4f}" in found.message
    assert judged(labels.REDUCTION, value, shifted) == ()
    assert judged(labels.MISALIGNED, value, shifted, causal=False) == ()  # masked language models predict in place


def test_what_is_known_of_causality_without_a_probe() -> None:
    for known in ({"causal": False}, {"declared": Declared(causal=False)}):
        measured = explain_loss(LOGITS, IDS, TARGETS, moved(0)(LOGITS, IDS), "labels", False)
        evidence = Evidence(Subject(vocab_size=VOCAB, **known), replace(MEASURED, labels=measured), None, None)  # type: ignore[arg-type]
        assert labels.MISALIGNED.findings(evidence) == ()
    assert loud(labels.MISALIGNED.findings(replace(evidence, subject=Subject(vocab_size=VOCAB)))) == ["warning"]


@pytest.mark.parametrize(
    ("factor", "says"),
    [
        (BATCH * (LENGTH - 1), "summed over all tokens, 126 times"),
        (LENGTH - 1, "summed over positions, 63 times"),
        (BATCH, "summed over sequences, 2 times"),
        ((LENGTH - 1) / LENGTH, "fewer positions have a target, 0.9844 times"),
    ],
)
def test_reductions(factor: float, says: str) -> None:
    (found,) = judged(labels.REDUCTION, factor * moved(1)(LOGITS, IDS))
    assert found.severity == "error" and says in found.message
    assert judged(labels.MISALIGNED, factor * moved(1)(LOGITS, IDS)) == ()


@pytest.mark.parametrize(
    ("change", "severity", "says"),
    [
        (lambda loss: loss + 0.012, "info", "0.012 above"),  # z-loss
        (lambda loss: loss * 2.2, "info", "above"),  # four heads for later tokens, 0.3 each
        (lambda loss: loss - 0.01, "info", "0.01 below"),
        (lambda loss: loss / 4, "warning", "below"),
        (lambda loss: loss * 4, "warning", "above"),
        (lambda _: torch.tensor(math.nan), "error", "returned nan"),
        (lambda _: torch.tensor(math.inf), "error", "returned inf"),
    ],
)
def test_what_nothing_explains(change: Callable[[Tensor], Tensor], severity: str, says: str) -> None:
    (found,) = judged(labels.REDUCTION, change(moved(1)(LOGITS, IDS)))
    assert found.severity == severity and says in found.message
    assert judged(labels.MISALIGNED, change(moved(1)(LOGITS, IDS))) == ()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_classes_of_transformers_are_silent(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    for module, causal in ((gpt2(), True), (BertForMaskedLM(BertConfig(vocab_size=VOCAB, **sizes)), False)):
        model = module.to(dtype).eval()
        with torch.no_grad():
            out = model(IDS, labels=IDS)
        measured = explain_loss(out.logits, IDS, TARGETS, out.loss, "labels", False)
        # BERT's loss in bfloat16 is on a grid where all shifts meet
        assert measured.shift == (1 if causal or dtype == torch.bfloat16 else 0)
        seen = replace(MEASURED, labels=measured, probe=ProbeMeasure(0.0, 0.1, causal))
        evidence = Evidence(Subject(model, vocab_size=VOCAB), seen, None, None)  # type: ignore[arg-type]
        assert labels.MISALIGNED.findings(evidence) == labels.REDUCTION.findings(evidence) == ()
