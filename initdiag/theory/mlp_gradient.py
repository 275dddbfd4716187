"""The backward pass of MLPs and experts in the wide limit."""

from __future__ import annotations

import numpy as np

from initdiag.theory.activations import ACTIVATIONS, Array, covariance, derivative
from initdiag.theory.feedforward import clamped, gate_activation, hidden, mlp, routed
from initdiag.theory.grams import linear, normed
from initdiag.theory.planned import Model
from initdiag.theory.queries import root
from initdiag.theory.squares import Squares, through_linear


def fed_gradient(
    model: Model, layer: int, read: Array, gram: Array, random: np.random.Generator, squares: Squares
) -> Array:
    """Return Γ of what the MLP, or the experts, of a layer read, from Γ of what they give."""
    shape, name = model.shape, f"blocks.{layer}.mlp"
    if not shape.has_experts(layer):
        return _mlp(model, name, read, shape.d_ff, gram, squares)
    moe = shape.moe
    assert moe is not None
    width = moe.d_ff or shape.d_ff
    route = routed(model, f"{name}.router", root(read), random)
    both = _mlp(model, name, read, width, gram * (route.weights @ route.weights.T), squares)
    # what the score of an expert gets: g·E(x), a Gaussian of covariance Γ∘(its output), for each expert
    field = root(gram * mlp(model, name, read, width))
    scores = field @ random.standard_normal((len(read), moe.experts), dtype=np.float32)
    logits = route.back(scores.astype(np.float64))
    slopes = logits @ logits.T
    squares.add(f"{name}.router.weight", slopes * shape.d_model * read)
    if shape.biases.router:
        squares.add(f"{name}.router.bias", slopes)
    both = both + shape.d_model * model.weight(f"{name}.router") * slopes
    if moe.shared:
        both = both + _mlp(model, f"{name}.shared", read, moe.shared * width, gram, squares)
    return both


def _mlp(model: Model, name: str, read: Array, width: int, gram: Array, squares: Squares) -> Array:
    shape = model.shape
    units = hidden(model, name, read)
    squares.add(f"{name}.out.weight", gram * width * units)
    if shape.biases.mlp:
        squares.add(f"{name}.out.bias", gram)
    back = model.weight(f"{name}.out") * gram  # of one hidden unit
    if shape.inner_norm:
        bare = hidden(model, name, read, inner_norm=False)
        given = normed(model, f"{name}.inner_norm", bare)
        back = back * np.outer(given.factor, given.factor)
    into = linear(model, f"{name}.input", read, shape.d_model)
    if not shape.gated:
        slope = covariance(derivative(ACTIVATIONS[shape.activation]), into)[0]
        return _linear(model, f"{name}.input", read, width * back * slope, squares)
    gate = linear(model, f"{name}.gate", read, shape.d_model)
    act = gate_activation(model)
    limit = shape.gate_limit
    value, passes = into, np.ones_like(into)
    if limit is not None:
        value, passes = covariance(clamped(limit), into)[0] + 1, covariance(derivative(clamped(limit)), into)[0]
    by_gate = width * back * covariance(derivative(act), gate)[0] * value
    by_value = width * back * covariance(act, gate)[0] * passes
    return _linear(model, f"{name}.gate", read, by_gate, squares) + _linear(
        model, f"{name}.input", read, by_value, squares
    )


def _linear(model: Model, name: str, read: Array, gram: Array, squares: Squares) -> Array:
    """Return Γ of what a matrix of the MLP reads, from that of what it gives."""
    return through_linear(model, name, read, model.shape.d_model, gram, squares)
