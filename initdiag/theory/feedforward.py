"""MLPs and mixtures of experts in the wide limit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from initdiag.model.sections import Experts
from initdiag.theory.activations import ACTIVATIONS, Activation, Array, covariance, squared
from initdiag.theory.grams import linear, normed
from initdiag.theory.planned import Model
from initdiag.theory.queries import Small, root, vector

ROUTERS = 4  # that are sampled in a layer: where tokens are alike, one decides for all of them
MANY = 1024  # experts, of which one router shows enough
SOME = 24  # tokens, from which the chance of hidden units is seen


@dataclass(frozen=True)
class Routed:
    """What a sampled router gave: the score of each expert for each token, and its weight, 0 where it isn't chosen:
    both (n, experts)."""

    moe: Experts
    scores: Array
    weights: Array

    def back(self, gradients: Array) -> Array:
        """Return the gradient of the router's logits from that of the weights, both (n, experts)."""
        chosen = self.weights > 0
        by_score = np.where(chosen, gradients, 0.0) * self.moe.route_scale
        if self.moe.normalized:
            total = np.where(chosen, self.scores, 0.0).sum(axis=1, keepdims=True)
            share = self.weights / self.moe.route_scale
            by_score = np.where(chosen, (by_score - (share * by_score).sum(axis=1, keepdims=True)) / total, 0.0)
        if self.moe.score == "sigmoid":
            return by_score * self.scores * (1 - self.scores)
        return self.scores * (by_score - (self.scores * by_score).sum(axis=1, keepdims=True))


def fed(model: Model, layer: int, read: Array, random: np.random.Generator) -> tuple[Array, float]:
    """Return the Gram of what the MLP, or the experts, of a layer give for what they read, both (n, n), and its chance.

    That is the relative variance over draws of what their output projections are given.
    """
    shape, name = model.shape, f"blocks.{layer}.mlp"
    if not shape.has_experts(layer):
        return mlp(model, name, read, shape.d_ff), chance(model, layer, read)
    moe = shape.moe
    assert moe is not None
    width = moe.d_ff or shape.d_ff
    one, factor = mlp(model, name, read, width), root(read)
    routers = ROUTERS if moe.experts <= MANY else 1
    weights = [routed(model, f"{name}.router", factor, random).weights for _ in range(routers)]
    mixed = sum(each @ each.T for each in weights) / routers * one  # experts are independent: only shared ones meet
    sizes = np.array([float(((each**2).sum(axis=1) * np.diagonal(one)).sum()) for each in weights])
    if moe.shared:
        shared = mlp(model, f"{name}.shared", read, moe.shared * width)
        mixed, sizes = mixed + shared, sizes + float(np.trace(shared))
    by_router = float(sizes.var(ddof=1) / sizes.mean() ** 2) if routers > 1 and sizes.mean() else 0.0
    return mixed, chance(model, layer, read) + by_router * (1 + 1 / routers)


def mlp(model: Model, name: str, read: Array, width: int) -> Array:
    """Return the Gram of what an MLP gives: width·σ_out²·E[h_i·h_j] + σ_bias²."""
    return linear(model, f"{name}.out", hidden(model, name, read), width)


def hidden(model: Model, name: str, read: Array, *, inner_norm: bool = True) -> Array:
    """Return E[h_i·h_j] of a hidden unit, (n, n), after its inner norm if there is one.

    A gated unit is φ(u)·w with independent Gaussians u and w, so that its moments are products.
    """
    shape = model.shape
    into = linear(model, f"{name}.input", read, shape.d_model)
    if shape.gated:
        gate = linear(model, f"{name}.gate", read, shape.d_model)
        act, mean = covariance(gate_activation(model), gate)
        value = into
        if shape.gate_limit is None:
            mean = np.zeros(len(mean))
        else:
            value = covariance(clamped(shape.gate_limit), into)[0] + 1  # E[(w + 1)(w' + 1)] = E[w w'] + 1
        units = act * value
    else:
        units, mean = covariance(ACTIVATIONS[shape.activation], into)
    return normed(model, f"{name}.inner_norm", units, mean).gram if shape.inner_norm and inner_norm else units


def chance(model: Model, layer: int, read: Array) -> float:
    """Return the relative variance of the mean square of hidden units over draws of the matrices before them.

    (Σ_ij E[h_i²·h_j²]/(Σ_i E[h_i²])² − 1)/width: a unit is the same for all tokens, so that those that are alike have
    its size in common. SOME tokens stand for all.
    """
    shape, name = model.shape, f"blocks.{layer}.mlp"
    if shape.inner_norm:
        return 0.0
    width = shape.d_ff
    if shape.has_experts(layer) and shape.moe:
        width = (shape.moe.d_ff or width) * (shape.moe.top_k + shape.moe.shared)
        name += ".shared" if shape.moe.shared else ""
    some = np.linspace(0, len(read) - 1, min(SOME, len(read))).astype(int)
    read = read[np.ix_(some, some)]
    into = linear(model, f"{name}.input", read, shape.d_model)
    act = squared(gate_activation(model))
    if not shape.gated:
        return _excess(*covariance(act, into)) / width
    products, squares = covariance(act, linear(model, f"{name}.gate", read, shape.d_model))
    if shape.gate_limit is None:  # of a Gaussian w: E[w²·w'²] = E[w²]·E[w'²] + 2·E[w·w']²
        own = np.diagonal(into)
        return _excess(products * (np.outer(own, own) + 2 * into**2), squares * own) / width
    by_value, own = covariance(squared(shifted(shape.gate_limit)), into)
    return _excess(products * by_value, squares * own) / width


def _excess(products: Array, squares: Array) -> float:
    """Return mean E[h_i²·h_j²] / (mean E[h_i²])² − 1, of (n, n) and (n,)."""
    mean = float(squares.mean()) ** 2
    return max(float(products.mean()) / mean - 1, 0.0) if mean else 0.0


@lru_cache(maxsize=4)
def _cut(act: str, limit: float) -> Activation:
    return lambda u: ACTIVATIONS[act](np.minimum(u, limit))


def gate_activation(model: Model) -> Activation:
    """The activation of a gate, cut at the limit where there is one."""
    act, limit = model.shape.activation, model.shape.gate_limit
    return ACTIVATIONS[act] if limit is None else _cut(act, limit)


@lru_cache(maxsize=4)
def clamped(limit: float) -> Activation:
    return lambda w: np.clip(w, -limit, limit)


@lru_cache(maxsize=4)
def shifted(limit: float) -> Activation:
    """What a clamped gate multiplies: one more than the clamped value."""
    return lambda w: clamped(limit)(w) + 1


def routed(model: Model, router: str, factor: Small, random: np.random.Generator) -> Routed:
    """Draw a router and let it choose, as `initdiag.model.feedforward` does.

    Args:
        factor: (n, n), a root of the Gram of what it reads.
    """
    shape, moe = model.shape, model.shape.moe
    assert moe is not None
    scale = np.sqrt(shape.d_model * model.weight(router))
    logits = scale * (factor @ random.standard_normal((len(factor), moe.experts), dtype=np.float32))
    bias = vector(model, f"{router}.bias", moe.experts, random)
    logits = logits if bias is None else logits + bias
    scores = 1 / (1 + np.exp(-logits)) if moe.score == "sigmoid" else _softmax(logits)
    choice_bias = vector(model, f"{router.removesuffix('router')}choice.bias", moe.experts, random)
    choice = scores if choice_bias is None else scores + choice_bias
    chosen = np.argpartition(-_within_groups(choice, moe), moe.top_k - 1, axis=1)[:, : moe.top_k]
    kept = np.zeros(scores.shape)
    np.put_along_axis(kept, chosen, np.take_along_axis(scores, chosen, axis=1), axis=1)
    if moe.normalized:
        kept /= kept.sum(axis=1, keepdims=True)
    return Routed(moe, scores, kept * moe.route_scale)


def _softmax(logits: Array) -> Array:
    exps = np.exp(logits - logits.max(axis=1, keepdims=True))
    scores: Array = exps / exps.sum(axis=1, keepdims=True)
    return scores


def _within_groups(scores: Array, moe: Experts) -> Array:
    """Put all but the best groups, by the sum of their two best, to −inf: arXiv 2412.19437, section 2.1.2."""
    if moe.top_groups == moe.groups:
        return scores
    grouped = scores.reshape(len(scores), moe.groups, -1)
    best = np.sort(grouped, axis=2)[:, :, -2:].sum(axis=2)
    out = np.argsort(-best, axis=1)[:, moe.top_groups :]
    masked = grouped.copy()
    np.put_along_axis(masked, out[:, :, None], -np.inf, axis=1)
    return masked.reshape(scores.shape)
