"""A vocabulary of two, whose loss may be far above ln 2 without a token's own logit."""

from __future__ import annotations

import initdiag


def test_hot_logits_are_not_taken_for_an_own_logit() -> None:
    model = {"vocab_size": 2, "context": 16, "d_model": 64, "n_layers": 2, "n_heads": 4, "tied": False}
    run = initdiag.predict({"model": model, "init": {"scheme": "gpt2", "std": 3.0}, "tokens": {"length": 16}}).run
    (found,) = [one for one in run.findings if one.rule == "LOSS003"]
    assert "logit std" in found.message
