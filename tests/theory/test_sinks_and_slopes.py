"""ALiBi and attention sinks in one model, which no released one has."""

from __future__ import annotations

import initdiag


def test_they_go_together() -> None:
    model = {"vocab_size": 200, "context": 32, "d_model": 64, "n_layers": 2, "n_heads": 4, "position": "alibi"}
    plain, sinks = (
        initdiag.predict({"model": {**model, "attention_sinks": one}, "tokens": {"length": 32}}).run.measured.attention
        for one in (False, True)
    )
    for with_none, with_one in zip(plain, sinks, strict=True):
        assert 0 < with_one.entropy_ratio <= 1
        assert abs(with_one.entropy_ratio - with_none.entropy_ratio) < 0.1  # a key more
