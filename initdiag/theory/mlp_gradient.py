"""The backward pass of MLPs and experts in the wide limit."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class _Hidden:
    """What comes back to units h of an MLP, (n, n): E[h_i·h_j], Γ of one unit, and by how much the rest leans on h."""

    units: Array
    gram: Array
    lean: Array

    @property
    def itself(self) -> Array:
        """By how much it leans on the same token's, (n,)."""
        return np.diagonal(self.lean)


def _mlp(
    model: Model, name: str, read: Array, width: int, gram: Array, lean: Array, squares: Squares
) -> tuple[Array, Array]:
    """Hidden units h = φ(u) get φ'(u)·(the independent + lean·h), lean here d·σ_out² times that on the branch."""
    shape = model.shape
    units = hidden(model, name, read)
    squares.add(f"{name}.out.weight", gram * width * units)
    if shape.biases.mlp:
        squares.add(f"{name}.out.bias", gram)
    at = _Hidden(units, model.weight(f"{name}.out") * gram, shape.d_model * model.weight(f"{name}.out") * lean)
    if shape.inner_norm:
        units = hidden(model, name, read, inner_norm=False)
        centred = shape.gated and shape.gate_limit is None
        means = None if centred else covariance(gate_activation(model), _given(model, name, read))[1]
        given = normed(model, f"{name}.inner_norm", units, means)
        times = np.outer(given.factor, given.factor)
        at = _Hidden(units, at.gram * times, crosswise(at.lean, given.gram) * times)
    return (_gated if shape.gated else _plain)(model, name, read, width, at, squares)


def _given(model: Model, name: str, read: Array) -> Array:
    """Return the Gram of what the activation is given, (n, n)."""
    return linear(model, f"{name}.{'gate' if model.shape.gated else 'input'}", read, model.shape.d_model)


def _plain(model: Model, name: str, read: Array, width: int, at: _Hidden, squares: Squares) -> tuple[Array, Array]:
    """h = φ(u)."""
    act, given = gate_activation(model), _given(model, name, read)
    slope = covariance(derivative(act), given)[0]
    twice, curve = np.zeros_like(slope), np.zeros(len(slope))
    if at.lean.any():
        doubled = derivative(squared(act))  # 2·φ·φ'
        twice, curve = covariance(doubled, given)[0] / 4, at.itself * _slopes(doubled, given) / 2
        means = covariance(act, given)[1]  # φ'(u_i) follows u_i, also where what it multiplies is of other tokens
        curve = curve + _slopes(derivative(act), given) * (at.lean @ means - at.itself * means)
    return _through(model, name, "input", read, width, at, (slope, twice, curve), squares)


def _gated(model: Model, name: str, read: Array, width: int, at: _Hidden, squares: Squares) -> tuple[Array, Array]:
    """h = φ(u)·w, of a gate u and an input w."""
    act, gate, limit = gate_activation(model), _given(model, name, read), model.shape.gate_limit
    value = linear(model, f"{name}.input", read, model.shape.d_model)
    passes = np.ones_like(value)
    if limit is not None:
        passes = covariance(derivative(clamped(limit)), value)[0]
        value = covariance(clamped(limit), value)[0] + 1
    acts, slope = covariance(act, gate)[0], covariance(derivative(act), gate)[0]
    twice, acts_twice, curve = np.zeros_like(slope), np.zeros_like(slope), np.zeros(len(slope))
    if at.lean.any():
        doubled = derivative(squared(act))  # 2·φ·φ'
        twice, curve = covariance(doubled, gate)[0] / 4, at.itself * _slopes(doubled, gate) / 2
        acts_twice = covariance(squared(act), gate)[0]
    size = np.diagonal(value)
    of_gate = (slope * value, twice * (np.outer(size, size) + 2 * value**2), curve * size)
    of_input = (acts * passes, acts_twice * value, at.itself * np.diagonal(acts))
    by_gate = _through(model, name, "gate", read, width, at, of_gate, squares)
    by_input = _through(model, name, "input", read, width, at, of_input, squares)
    return by_gate[0] + by_input[0], by_gate[1] + by_input[1]


def _through(
    model: Model,
    name: str,
    part: str,
    read: Array,
    width: int,
    at: _Hidden,
    moments: tuple[Array, Array, Array],
    squares: Squares,
) -> tuple[Array, Array]:
    """Return Γ of what a matrix of the MLP reads, and by how much that leans on it.

    Args:
        moments: E[h'_i·h'_j] of h' by what `part` gives, E[h_i·h'_i·h_j·h'_j], and by how much the gradient of what
            `part` gives leans on that of its own token, (n,).
    """
    slope, twice, own = moments
    gram, leans = at.gram * slope, np.zeros_like(slope)
    if at.lean.any():  # exactly on the diagonal of lean, beside it as if h' were independent of h
        gram = gram + slope * product(product(at.lean, at.units), at.lean.T)
        gram = gram + np.outer(at.itself, at.itself) * (twice - slope * at.units)
        leans = at.lean * slope
        np.fill_diagonal(leans, own)
        leans *= width * model.weight(f"{name}.{part}")
    return through_linear(model, f"{name}.{part}", read, model.shape.d_model, width * gram, squares), leans


def _slopes(phi: Activation, inputs: Array) -> Array:
    """Return E[phi'(u_i)] = E[u_i·phi(u_i)]/E[u_i²], (n,), by Stein's lemma."""
    std = np.maximum(np.sqrt(np.diagonal(inputs)), 1e-150)
    low, high = float(std.min()), float(std.max())
    at = np.linspace(low, high, STDS if high > low * (1 + ALIKE) else 1)
    return np.interp(std, at, [mean(lambda u: u * phi(u), one) / one**2 for one in at.tolist()])
