"""What tokens that repeat are worth in a mean over tokens."""

from __future__ import annotations

import math

import numpy as np
import pytest

from initdiag.theory.spread import worth


def test_extremes() -> None:
    distinct, alike = np.arange(6), np.zeros(6, dtype=int)
    assert worth(distinct) == worth(distinct, np.ones((6, 6))) == 6
    assert worth(alike) == worth(alike, np.ones((6, 6))) == 1
    assert worth(alike, np.eye(6)) == 6  # one logit, of six states that have nothing in common
    assert worth(np.array([0, 0, 1, 1]), 3.0 * np.ones((4, 4))) == pytest.approx(2)


def test_the_mean_of_drawn_logits_varies_by_it() -> None:
    """Var of mean_i w[y_i]·x_i over draws of w, for given x, is s²/worth where all states have the size of s."""
    random = np.random.default_rng(0)
    n, width, vocab_size, draws = 40, 16, 7, 4000
    common = random.standard_normal(width)
    states = random.standard_normal((n, width)) + common
    states /= np.linalg.norm(states, axis=1, keepdims=True)
    ids = random.integers(0, vocab_size, n)
    logits = random.standard_normal((draws, vocab_size, width)) @ states.T  # (draws, V, n)
    means = logits[:, ids, np.arange(n)].mean(axis=1)
    assert means.std() == pytest.approx(1 / math.sqrt(worth(ids, states @ states.T)), rel=5 / math.sqrt(2 * draws))
