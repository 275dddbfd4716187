"""The backward pass of attention in the wide limit, through the heads that the forward pass sampled."""

from __future__ import annotations

import math

import numpy as np

from initdiag.theory.activations import Array
from initdiag.theory.attention import Heads, mix, values
from initdiag.theory.grams import Normed, linear, mean_square, normed
from initdiag.theory.leaning import crosswise, product
from initdiag.theory.planned import Model
from initdiag.theory.queries import Small, Turn, latent, root, rotated, rotation
from initdiag.theory.squares import Squares, through_linear, through_norm


def attention_gradient(
    model: Model,
    layer: int,
    read: Array,
    heads: Heads,
    gram: Array,
    lean: Array,
    random: np.random.Generator,
    squares: Squares,
) -> tuple[Array, Array]:
    """Return Γ of what the attention of a layer reads, and by how much it leans on that, from those of what it gives.

    Values get Aᵀ·g in closed form. For queries and keys, values and what comes back to them are drawn for the sampled
    heads, and softmax, cap, rotation and norms are passed as autograd would.

    What leans on the branch leans on what is mixed, A·v, in all heads alike: of it values get Aᵀ·lean·A·v, with
    Aᵀ·lean·A in the mean over heads. Left out is what leans on queries, keys and latents.
    """
    shape, name = model.shape, f"blocks.{layer}.attention"
    features = shape.n_heads * shape.value_dim
    value = values(model, name, read)
    mixed = mix(heads.weights, value)
    inner = normed(model, f"{name}.inner_norm", mixed) if shape.inner_norm else Normed(mixed, np.ones(len(mixed)))
    squares.add(f"{name}.out.weight", gram * features * inner.gram)
    if f"{name}.out.bias" in model.plan.by_name:
        squares.add(f"{name}.out.bias", gram)
    back = model.weight(f"{name}.out") * gram * np.outer(inner.factor, inner.factor)  # of one feature of one head
    to_values = features * mix(heads.weights.transpose(0, 1, 3, 2), back)
    lean = shape.d_model * model.weight(f"{name}.out") * lean  # on what is mixed: W_outᵀ·W_out, in the mean
    leans = np.zeros_like(read)
    if lean.any():
        if shape.inner_norm:
            lean = crosswise(lean, inner.gram) * np.outer(inner.factor, inner.factor)
        leans = _handed_on(heads.weights, lean)
        sharing = shape.n_heads // shape.n_kv_heads  # heads that share values add up
        to_values = to_values + features * sharing * product(product(leans, value), leans.T)
        leans = leans * features * (0.0 if shape.mla else model.weight(f"{name}.value"))
    turn = rotation(shape, (heads.weights.shape[1], heads.weights.shape[2]), shape.window(layer))
    queries, keys = _queries_and_keys(model, heads, turn, value, back, lean, random)
    if shape.mla:
        return _latents(model, name, read, to_values, queries, keys, squares), leans
    total = through_linear(model, f"{name}.value", read, shape.d_model, to_values, squares)
    for part, gradients, used, times in (
        ("query", queries, heads.queries, heads.query_norm),
        ("key", keys, heads.keys, heads.key_norm),
    ):
        before = _gram(model, _through_norm(model, gradients, rotated(used, turn, back=True), times))
        total = total + through_linear(model, f"{name}.{part}", read, shape.d_model, before, squares)
    if shape.position != "rotary" and shape.qk_norm == "none":
        squares.found.pop(f"{name}.key.bias", None)  # added to all keys alike, it changes no softmax: only roundings
    return total, leans


def _handed_on(weights: Small, lean: Array) -> Array:
    """Return the mean over sampled heads of Aᵀ·lean·A, (n, n); both know nothing of other sequences."""
    heads, batch, length, _ = weights.shape
    found = np.zeros_like(lean)
    for at in range(batch):
        own = slice(at * length, (at + 1) * length)
        after = lean[own, own].astype(np.float32) @ weights[:, at]
        found[own, own] = weights[:, at].reshape(-1, length).T @ after.reshape(-1, length) / heads
    return found


def _queries_and_keys(
    model: Model, heads: Heads, turn: Turn | None, value: Array, back: Array, lean: Array, random: np.random.Generator
) -> tuple[Small, Small]:
    """Return the gradients of queries and keys of the sampled heads, as the logits use them: (S, n, h) each."""
    count, batch, length, _ = heads.weights.shape
    features = model.shape.value_dim
    split = (count, batch, length, -1)
    v = (root(value) @ random.standard_normal((count, len(value), features), dtype=np.float32)).reshape(split)
    size = max(mean_square(back), 1e-300)  # gradients may be too small for float32
    g = (root(back / size) @ random.standard_normal((count, len(back), features), dtype=np.float32)).reshape(split)
    if lean.any():
        mixed = (heads.weights @ v).reshape(count, len(back), features)
        g += ((lean / math.sqrt(size)).astype(np.float32) @ mixed).reshape(split)
    slopes = g @ v.transpose(0, 1, 3, 2)
    weighted = heads.weights * slopes
    logits = weighted - heads.weights * weighted.sum(axis=-1, keepdims=True)
    if heads.slope is not None:
        logits = logits * heads.slope
    logits *= np.float32(model.shape.attention_scale)
    queries, keys = heads.queries.reshape(split), heads.keys.reshape(split)
    shape = (count, batch * length, -1)
    scale = math.sqrt(size)
    by_query = (logits @ keys).reshape(shape) * scale
    by_key = (logits.transpose(0, 1, 3, 2) @ queries).reshape(shape) * scale
    if model.shape.mla is None:
        return rotated(by_query, turn, back=True), rotated(by_key, turn, back=True)
    still = model.shape.mla.nope_dim

    def back_turned(x: Small) -> Small:
        return np.concatenate((x[..., :still], rotated(x[..., still:], turn, back=True)), axis=-1)

    return back_turned(by_query), back_turned(by_key)


def _through_norm(model: Model, gradients: Small, given: Small, times: Small | None) -> Small:
    """Pass a norm on queries or keys, of which `given` is the result; over one head it takes away what points along it.

    The full width is wide: of it that would be next to nothing.
    """
    if times is None:
        return gradients
    if model.shape.qk_norm == "per_head":
        along = (gradients * given).sum(axis=-1, keepdims=True)
        gradients = gradients - given * along / np.maximum((given * given).sum(axis=-1, keepdims=True), 1e-30)
        if model.shape.norm == "layernorm":
            gradients = gradients - gradients.mean(axis=-1, keepdims=True)
    return gradients * times


def _gram(model: Model, gradients: Small) -> Array:
    """Return Γ over all heads, from the sampled ones; heads are independent, also where they share keys."""
    wide = gradients.astype(np.float64)
    return model.shape.n_heads * np.einsum("sih,sjh->ij", wide, wide, optimize=True) / len(wide)


def _latents(
    model: Model, name: str, read: Array, to_values: Array, queries: Small, keys: Small, squares: Squares
) -> Array:
    """Go back through the latents of multi-head latent attention."""
    shape, mla = model.shape, model.shape.mla
    assert mla is not None
    narrow = latent(model, name, read)
    back = through_linear(model, f"{name}.value", narrow, mla.kv_rank, to_values, squares)
    still = _gram(model, keys[..., : mla.nope_dim])
    back = back + through_linear(model, f"{name}.key", narrow, mla.kv_rank, still, squares)
    down = linear(model, f"{name}.latent_down", read, shape.d_model)
    back = through_norm(model, f"{name}.latent_norm", normed(model, f"{name}.latent_norm", down), back, squares)
    total = through_linear(model, f"{name}.latent_down", read, shape.d_model, back, squares)
    turning = _gram(model, keys[..., mla.nope_dim :])
    total = total + through_linear(model, f"{name}.rotary_key", read, shape.d_model, turning, squares)
    asked = _gram(model, queries)
    if not mla.query_rank:
        return total + through_linear(model, f"{name}.query", read, shape.d_model, asked, squares)
    down = linear(model, f"{name}.query_down", read, shape.d_model)
    source = normed(model, f"{name}.query_norm", down)
    asked = through_linear(model, f"{name}.query", source.gram, mla.query_rank, asked, squares)
    asked = through_norm(model, f"{name}.query_norm", source, asked, squares)
    return total + through_linear(model, f"{name}.query_down", read, shape.d_model, asked, squares)
