"""Squared norms of parameter gradients, collected on the way down, and the steps down that add to them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from initdiag.theory.activations import Array
from initdiag.theory.grams import Normed
from initdiag.theory.planned import Model


@dataclass
class Squares:
    """Squared norms of gradients, by parameter, collected on the way down.

    same: (n, n), which pairs of tokens are of one sequence. within, across: how many times such a pair stands for
    others, where only some sequences of the batch are looked at.
    """

    same: NDArray[np.bool_]
    within: float
    across: float
    found: dict[str, float] = field(default_factory=dict)

    def add(self, name: str, pairs: Array) -> None:
        """Add Σ over pairs of tokens to a parameter's squared norm."""
        self.add_square(name, self.sum(pairs))

    def add_square(self, name: str, square: float) -> None:
        self.found[name] = self.found.get(name, 0.0) + square

    def sum(self, pairs: Array) -> float:
        inside = float(pairs[self.same].sum())
        return self.within * inside + self.across * (float(pairs.sum()) - inside)

    def norm(self, gram: Array) -> float:
        """‖g‖ of the gradient by a stream."""
        return math.sqrt(max(self.within * float(np.trace(gram)), 0.0))


def add_norm(model: Model, name: str, given: Array, gram: Array, squares: Squares, along: Array | None = None) -> None:
    """Add the gradients of a norm's gain, Σ_i g_i∘x̂_i, and bias; `given` is the Gram of what was multiplied by it.

    Args:
        along: g_i·x_j with what the norm gives, of gradients that know it. Features of Σ_i g_i∘x̂_i then have a mean,
            and in their square two ways more to pair gradients with states (Isserlis).
    """
    gain, width = model.gain(name), model.shape.d_model
    if f"{name}.weight" in model.plan.by_name and gain:
        squares.add(f"{name}.weight", gram * given / gain)
        if along is not None:
            squares.add_square(f"{name}.weight", (squares.within * float(np.trace(along))) ** 2 / width / gain)
            squares.add(f"{name}.weight", along * along.T / width / gain)
    if f"{name}.bias" in model.plan.by_name:
        squares.add(f"{name}.bias", gram)


def through_norm(model: Model, name: str, given: Normed, gram: Array, squares: Squares) -> Array:
    """Return Γ before a norm that has given this, and add the gradients of its gain and bias."""
    add_norm(model, name, given.gram - model.bias(name), gram, squares)
    return gram * np.outer(given.factor, given.factor)


def through_linear(model: Model, name: str, read: Array, inputs: int, gram: Array, squares: Squares) -> Array:
    """Return Γ before a linear layer, inputs·σ²·Γ, and add the gradients of its weight and bias."""
    squares.add(f"{name}.weight", gram * inputs * read)
    if f"{name}.bias" in model.plan.by_name:
        squares.add(f"{name}.bias", gram)
    return inputs * model.weight(name) * gram
