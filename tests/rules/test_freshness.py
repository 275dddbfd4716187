"""A trained model is said to be one, and isn't judged as a start; a prior in the head is no fault."""

from __future__ import annotations

import pytest
import torch

import initdiag
from benchmarks.gpt_parts import VOCAB_SIZE
from benchmarks.model_factories import build
from benchmarks.trap_models import TRAPS, word_frequencies
from initdiag.rules import Severity


def rules_of(module: torch.nn.Module) -> dict[str, Severity]:
    return {found.rule: found.severity for found in initdiag.check(module, vocab_size=VOCAB_SIZE).findings}


def test_a_trained_model_is_told_and_nothing_else_is_said() -> None:
    assert rules_of(TRAPS["T26 trained"].factory(seed=0)) == {"INIT010": Severity.INFO}


def test_a_trained_model_is_still_judged_by_what_no_training_excuses() -> None:
    module = TRAPS["T26 trained"].factory(seed=0)
    with torch.no_grad():
        next(module.parameters()).view(-1)[0] = torch.nan
    assert rules_of(module)["NUM001"] is Severity.ERROR


@pytest.mark.parametrize("spread", [0.0, 1e-4])
def test_gains_of_one_number_are_fresh(spread: float) -> None:
    module = build()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if "norm" in name:
                parameter.add_(spread * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    assert "INIT010" not in rules_of(module)


def test_word_frequencies_in_the_head_silence_the_loss_and_a_small_bias_does_not() -> None:
    def hot(model: torch.nn.Module) -> None:
        model.head.weight.mul_(40)  # type: ignore[union-attr, operator]

    assert "LOSS003" not in rules_of(build(word_frequencies, hot, head_bias=True))
    assert "LOSS003" in rules_of(build(hot, head_bias=True))
