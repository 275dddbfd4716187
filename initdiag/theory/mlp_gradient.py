"""The backward pass of MLPs and experts in the wide limit."""

from __future__ import annotations

import numpy as np

from initdiag.theory.activations import ALIKE, Activation, Array, covariance, derivative, mean, squared
from initdiag.theory.feedforward import clamped, gate_activation, hidden, mlp, routed
from initdiag.theory.grams import linear, normed
from initdiag.theory.leaning import crosswise, product
from initdiag.theory.planned import Model
from initdiag.theory.queries import root
from initdiag.theory.squares import Squares, through_linear

STDS = 9  # between which slopes are interpolated, where tokens have different ones


def fed_gradient(
    model: Model, layer: int, read: Array, gram: Array, lean: Array, random: np.random.Generator, squares: Squares
) -> tuple[Array, Array]:
    """Return Γ of what the MLP, or the experts, of a layer read, and by how much it leans on that, from those of what
    they give; see `leaning`.

    What leans on the output of experts is taken as if all tokens had the same ones.
    """
    shape, name = model.shape, f"blocks.{layer}.mlp"
    if not shape.has_experts(layer):
        return _mlp(model, name, read, shape.d_ff, gram, lean, squares)
    moe = shape.moe
    assert moe is not None
    width = moe.d_ff or shape.d_ff
    route = routed(model, f"{name}.router", root(read), random)
    met = route.weights @ route.weights.T
    both, leans = _mlp(model, name, read, width, gram * met, lean * met, squares)
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
        shared, leans_too = _mlp(model, f"{name}.shared", read, moe.shared * width, gram, lean, squares)
        both, leans = both + shared, leans + leans_too
    return both, leans


def _mlp(
    model: Model, name: str, read: Array, width: int, gram: Array, lean: Array, squares: Squares
) -> tuple[Array, Array]:
    """Hidden units h = φ(u) get φ'(u)·(the independent + lean·h), lean here d·σ_out² times that on the branch."""
    shape = model.shape
    units = hidden(model, name, read)
    squares.add(f"{name}.out.weight", gram * width * units)
    if shape.biases.mlp:
        squares.add(f"{name}.out.bias", gram)
    back = model.weight(f"{name}.out") * gram  # of one hidden unit
    lean = shape.d_model * model.weight(f"{name}.out") * lean
    into = linear(model, f"{name}.input", read, shape.d_model)
    gate = linear(model, f"{name}.gate", read, shape.d_model) if shape.gated else into
    act = gate_activation(model)
    if shape.inner_norm:
        units = hidden(model, name, read, inner_norm=False)
        centred = shape.gated and shape.gate_limit is None
        given = normed(model, f"{name}.inner_norm", units, None if centred else covariance(act, gate)[1])
        times = np.outer(given.factor, given.factor)
        back, lean = back * times, crosswise(lean, given.gram) * times

    def through(part: str, slope: Array, twice: Array, own: Array) -> tuple[Array, Array]:
        """slope: E[h'_i·h'_j], h' by what `part` gives; twice: E[h_i·h'_i·h_j·h'_j]; own: by how much the gradient
        of what `part` gives leans on that of its own token, (n,)."""
        by_part, leans = back * slope, np.zeros_like(back)
        if lean.any():  # exactly on the diagonal of lean, beside it as if h' were independent of h
            both = np.outer(itself, itself) * (twice - slope * units)
            by_part = by_part + slope * product(product(lean, units), lean.T) + both
            leans = lean * slope
            np.fill_diagonal(leans, own)
            leans *= width * model.weight(f"{name}.{part}")
        return through_linear(model, f"{name}.{part}", read, shape.d_model, width * by_part, squares), leans

    itself, slope, doubled = np.diagonal(lean), covariance(derivative(act), gate)[0], derivative(squared(act))
    twice = squares_of = curve = np.zeros_like(gate)
    if lean.any():
        twice, squares_of = covariance(doubled, gate)[0] / 4, covariance(squared(act), gate)[0]  # doubled: 2·φ·φ'
        curve = itself * _slopes(doubled, gate) / 2
    if not shape.gated:
        if lean.any():  # φ'(u_i) follows u_i, also where what it multiplies is of other tokens: their mean
            means = covariance(act, gate)[1]
            curve = curve + _slopes(derivative(act), gate) * (lean @ means - itself * means)
        return through("input", slope, twice, curve)
    acts, limit = covariance(act, gate)[0], shape.gate_limit
    value, passes = into, np.ones_like(into)
    if limit is not None:
        value, passes = covariance(clamped(limit), into)[0] + 1, covariance(derivative(clamped(limit)), into)[0]
    size = np.diagonal(value)
    by_gate = through("gate", slope * value, twice * (np.outer(size, size) + 2 * value**2), curve * size)
    by_value = through("input", acts * passes, squares_of * value, itself * np.diagonal(acts))
    return by_gate[0] + by_value[0], by_gate[1] + by_value[1]


def _slopes(phi: Activation, inputs: Array) -> Array:
    """Return E[phi'(u_i)] = E[u_i·phi(u_i)]/E[u_i²], (n,), by Stein's lemma."""
    std = np.maximum(np.sqrt(np.diagonal(inputs)), 1e-150)
    low, high = float(std.min()), float(std.max())
    at = np.linspace(low, high, STDS if high > low * (1 + ALIKE) else 1)
    return np.interp(std, at, [mean(lambda u: u * phi(u), one) / one**2 for one in at.tolist()])
