"""Legitimate designs that look faulty have no finding of severity error."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.faults import check_trap
from benchmarks.trap_models import TRAPS, Trap
from initdiag.rules import Severity

LENGTH = 64
SHORTER = ("tokens.length=128",)  # for time: of 256 that a check would take


def logits_of(trap: Trap, module: nn.Module) -> tuple[Tensor, Tensor]:
    ids = torch.randint(trap.vocab_size, (4, LENGTH), generator=torch.Generator().manual_seed(1))
    found = trap.forward(module, ids) if trap.forward else module(ids)
    found = found[0] if isinstance(found, tuple) else getattr(found, "logits", found)
    return ids, found.float()


def excess(trap: Trap, module: nn.Module) -> float:
    ids, logits = logits_of(trap, module.eval())
    return float(F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())) - math.log(trap.vocab_size)


def self_logit(trap: Trap, module: nn.Module) -> float:
    ids, logits = logits_of(trap, module.eval())
    return float((logits.gather(-1, ids[..., None])[..., 0] - logits.mean(-1)).mean())


def logit_std(trap: Trap, module: nn.Module) -> float:
    return float(logits_of(trap, module.eval())[1].std(-1).mean())


def own_loss(trap: Trap, module: nn.Module) -> float:
    ids, _ = logits_of(trap, module.eval())
    return float(module(ids, labels=ids)[1])


def stream_growth(trap: Trap, module: nn.Module) -> float:
    variances = []
    for block in (module.blocks[0], module.blocks[-1]):
        block.register_forward_hook(lambda _, inputs, output: variances.extend((inputs[0].var(), output.var())))
    logits_of(trap, module.eval())
    return float(variances[-1] / variances[0])


# what makes a design look faulty, as a number and the range that it is in
LOOKS: dict[str, tuple[Callable[[Trap, nn.Module], float], float, float]] = {
    "T1 zero head": (lambda _, m: float(m.head.weight.abs().max()), 0, 0),
    "T2 zero branch outputs": (lambda _, m: float(m.blocks[3].mlp.out.weight.abs().max()), 0, 0),
    "T2 ReZero": (lambda _, m: float(m.blocks[3].scale.abs().max()), 0, 0),
    "T3 unit-variance head": (excess, 0.4, 0.7),
    "T4 PyTorch's defaults": (lambda _, m: float(m.tokens.weight.std()), 0.98, 1.02),
    "T5 0.02 at width 768": (logit_std, 0.52, 0.58),
    "T6 GPT-2": (self_logit, 0.1, 2),
    "T7 Gemma, tied and √d": (self_logit, math.log(1000) + 3, 14),
    "T7 Bloom, embedding LayerNorm": (self_logit, math.log(1000) + 3, 14),
    "T7 own, tied and √d": (self_logit, math.log(1000) + 3, 14),
    "T8 Cohere, logits × 0.0625": (logit_std, 0, 0.05),
    "T8 logits × 6": (logit_std, 0.85, 1.05),
    "T10 post-norm": (stream_growth, 50, math.inf),
    "T11 sandwich": (stream_growth, 50, math.inf),
    "T11 reordered norm": (stream_growth, 50, math.inf),
    "T13 muP": (lambda _, m: float(m.blocks[3].attention.query.weight.abs().max()), 0, 0),
    "T14 T5": (lambda _, m: float(m.get_input_embeddings().weight.std()), 0.9, 1.1),
    "T15 gains stored as w of 1 + w": (lambda _, m: float(m.norm.weight.abs().max()), 0, 0),
    "T16 LayerScale": (lambda _, m: float(m.blocks[3].scale.max()), 0, 2e-5),
    "T17 padded rows masked": (lambda t, m: float(logits_of(t, m)[1].isinf().any(-1).sum()), 4 * LENGTH, 4 * LENGTH),
    "T18 resized rows": (lambda _, m: float(F.cosine_similarity(*m.head.weight[-2:], dim=0)), 0.999, 1.001),
    "T20 label smoothing": (lambda t, m: own_loss(t, m) - excess(t, m) - math.log(1000), -0.1, 0.1),
    "T22 second head": (lambda t, m: own_loss(t, m) / (excess(t, m) + math.log(1000)), 1.2, 1.4),
    "T23 bfloat16": (lambda _, m: float(m.head.weight.element_size()), 2, 2),
    "T26 trained": (lambda _, m: float((m.norm.weight - 1).abs().max()), 0.005, math.inf),
    "T28 word frequencies in the head's bias": (excess, 0.5, 2),
}


@pytest.mark.parametrize("name", LOOKS)
def test_the_trap_is_one(name: str) -> None:
    (number, low, high), module = LOOKS[name], TRAPS[name].factory()
    with torch.no_grad():
        assert low <= number(TRAPS[name], module) <= high


def test_every_trap_is_there() -> None:
    assert {name.partition(" ")[0] for name in TRAPS} == {f"T{i}" for i in range(1, 31)}


@pytest.mark.parametrize("name", TRAPS)
def test_no_error(name: str) -> None:
    findings = check_trap(TRAPS[name], overrides=SHORTER).findings
    assert [(each.rule, each.message) for each in findings if each.severity is Severity.ERROR] == []
