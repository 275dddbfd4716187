"""The backward pass in the wide limit: Grams of gradients, from the loss down to the embeddings.

Γ_ij = g_i·g_j, summed over features, of the gradients g of the mean loss by token. A matrix W that is used once hands
on σ²·fan_out·Γ, as if it were independent of what comes back to it (arXiv 1611.01232, section 4), and its own gradient
Σ g_i x_iᵀ has the squared norm Σ_ij Γ_ij·(x_i·x_j).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from initdiag.model.architecture import of_branch
from initdiag.theory.activations import Array
from initdiag.theory.attention_gradient import attention_gradient
from initdiag.theory.blocks import Added, block
from initdiag.theory.grams import Normed, Stream, embedded, normed, passed
from initdiag.theory.head import Head, Softmax, met
from initdiag.theory.mlp_gradient import fed_gradient
from initdiag.theory.planned import Model
from initdiag.theory.squares import Squares, add_norm, through_norm

TINY = 1e-300  # of a state that is nothing, by which nothing is divided


@dataclass(frozen=True)
class Gradients:
    """Norms of the gradient of the mean loss: by parameter, and by branch, first to last."""

    parameters: dict[str, float]
    branches: tuple[float, ...]


def backward(
    model: Model,
    streams: Sequence[Stream],
    ids: NDArray[np.int64],
    targets: NDArray[np.int64],
    head: Head,
    softmaxes: Softmax,
    batch: int,
    heads: int,
) -> Gradients:
    """Predict the norms of all gradients.

    Args:
        streams: before each block, and after the last. ids, targets: (B, T) of the sequences that are looked at.
        head, softmaxes: the logits, and what follows of them. batch: how many sequences the mean is over. heads:
            sampled in each layer.
    """
    shape = (ids.shape[0], ids.shape[1])
    sequence = np.repeat(np.arange(shape[0]), shape[1])
    pairs = shape[0] * (shape[0] - 1)
    squares = Squares(
        sequence[:, None] == sequence[None, :], batch / shape[0], batch * (batch - 1) / pairs if pairs else 0.0
    )
    architecture, last = model.shape, streams[-1]
    state = passed(model, "final_norm", last) if architecture.final_norm else last
    gram, along = _of_head(model, state, head, softmaxes, ids.ravel(), targets.ravel(), batch * shape[1], squares)
    if architecture.final_norm:
        gram = _through_stream_norm(model, "final_norm", last, gram, squares, along)
    elif architecture.placement == "post":
        gram = _perpendicular(gram, along, state.gram, architecture.d_model)
    norms: list[float] = []
    for layer in reversed(range(model.shape.n_layers)):
        gram, found = _of_block(model, layer, streams[layer], gram, shape, heads, squares)
        norms[:0] = found
    _of_embedding(model, ids, gram, squares)
    parameters = {name: math.sqrt(max(square, 0.0)) for name, square in squares.found.items()}
    return Gradients(parameters, tuple(norms))


def _of_head(
    model: Model, state: Stream, head: Head, at: Softmax, ids: Array, targets: Array, tokens: int, squares: Squares
) -> tuple[Array, Array]:
    """Return Γ of the state that the head reads, and g_i·x_j of gradients with states, both (n, n).

    The logits' gradient is δ = (p − y)/N. Its products over the vocabulary follow from which tokens are alike, and
    from softmaxes of two positions having V·E[e^(a + a')]/(E[e^a] E[e^a'] V²) = e^cov(a, a')/V in common. The mean
    embedding as the softmax weighs it leans towards the state: Wᵀp holds x times the mean logit over ‖x‖². A tied
    head also meets each token's own embedding, in the state and in p.
    """
    shape, vocab_size = model.shape, model.shape.vocab_size
    square = np.maximum(np.diagonal(state.gram), TINY)
    size = np.sqrt(square)
    common = np.minimum(
        met(vocab_size, head, state.gram / np.outer(size, size) * np.outer(head.std, head.std)), vocab_size
    )
    alike, meets = ids[:, None] == ids[None, :], ids[:, None] == targets[None, :]
    wanted = targets[:, None] == targets[None, :]
    share, rest = at.share * at.own_slope, 1 - at.share
    target = np.where(ids == targets, at.own_slope, at.slope)
    tilted = rest * at.tilted_slope
    chosen = np.outer(share, target) * meets + np.outer(tilted, target) / vocab_size  # p_i · y_j
    both = (
        np.outer(share, share) * alike
        + (np.outer(share, tilted) + np.outer(tilted, share) + np.outer(rest, rest) * common) / vocab_size
    )
    # p_i of one position is the same number twice: E[p²], which is more than E[p]² where its own logit decides
    wavers = np.maximum(at.share_square - at.share**2, 0.0)
    both[np.diag_indices(len(both))] += wavers * (
        at.own_slope**2 + (np.diagonal(common) - 2 * at.own_slope * at.tilted_slope) / vocab_size
    )
    delta = (np.outer(target, target) * wanted - chosen - chosen.T + both) * (shape.logit_multiplier / tokens) ** 2
    name = "token_embedding" if shape.tied else "head"
    squares.add(f"{name}.weight", delta * shape.d_model * state.gram)
    if not shape.tied and shape.biases.head:
        squares.add("head.bias", delta)
    leaning = rest * at.pull / square / tokens
    gram = shape.d_model * model.weight(name) * delta + np.outer(leaning, leaning) * state.gram / shape.d_model
    own = head.own / tokens  # what the state holds of a token's own embedding, as its logit
    along = leaning[:, None] * state.gram + own[None, :] * (share[:, None] * alike - target[:, None] * meets.T)
    return gram, along


def _of_block(
    model: Model, layer: int, stream: Stream, gram: Array, shape: tuple[int, int], heads: int, squares: Squares
) -> tuple[Array, list[float]]:
    """Return Γ before a block, from Γ after it, and the norms for its two branches."""
    at, name, architecture = block(model, layer, stream, shape, heads), f"blocks.{layer}", model.shape
    kept = [of_branch(architecture.stream_multiplier, k) ** 2 for k in (2 * layer + 1, 2 * layer + 2)]
    random = np.random.default_rng((layer, 1))

    def attention(after: Array) -> Array:
        raw = _through_scale(model, f"{name}.attention", at.attention, after, squares)
        read = attention_gradient(model, layer, at.attention.read, at.heads, raw, random, squares)
        return _through_read(model, f"{name}.attention_norm", at.attention, read, squares)

    def mlp(after: Array) -> Array:
        raw = _through_scale(model, f"{name}.mlp", at.mlp, after, squares)
        read = fed_gradient(model, layer, at.mlp.read, raw, random, squares)
        shared = architecture.placement == "parallel_shared"
        return _through_read(model, f"{name}.{'attention' if shared else 'mlp'}_norm", at.mlp, read, squares)

    if architecture.placement.startswith("parallel"):
        return kept[0] * gram + attention(gram) + mlp(gram), [squares.norm(gram)] * 2
    post = architecture.placement == "post"
    if post:
        gram = _through_stream_norm(model, f"{name}.mlp_norm", at.mlp.after, gram, squares)
    middle = kept[1] * gram + mlp(gram)
    if post:
        middle = _through_stream_norm(model, f"{name}.attention_norm", at.attention.after, middle, squares)
    return kept[0] * middle + attention(middle), [squares.norm(middle), squares.norm(gram)]


def _through_stream_norm(
    model: Model, name: str, stream: Stream, gram: Array, squares: Squares, along: Array | None = None
) -> Array:
    """Return Γ before a norm that the stream itself passes.

    It takes away what points along the stream: a part 1/d of a gradient like any other, and all that `along` says of
    one that knows the stream, g_i·x_j with what the norm gives.
    """
    given = normed(model, name, stream.gram, stream.mean)
    add_norm(model, name, given.gram - model.bias(name), gram, squares)
    if along is not None:
        if f"{name}.weight" in model.plan.by_name and model.gain(name):  # all features of the gain get the same of it
            total = squares.within * float(np.trace(along))
            squares.add_square(f"{name}.weight", total**2 / model.shape.d_model / model.gain(name))
        gram = _perpendicular(gram, along, given.gram, model.shape.d_model)
    return gram * np.outer(given.factor, given.factor)


def _perpendicular(gram: Array, along: Array, state: Array, width: int) -> Array:
    """Take away from each gradient what points along its own state: g − x·(g·x)/‖x‖²."""
    part = np.diagonal(along) / (width * np.maximum(np.diagonal(state), TINY))
    crossed = along * part[None, :]
    left: Array = gram - crossed - crossed.T + np.outer(part, part) * width * state
    np.fill_diagonal(left, np.maximum(np.diagonal(left), 0))  # squares, of parts known in the mean
    return left


def _through_read(model: Model, norm: str, added: Added, gram: Array, squares: Squares) -> Array:
    if model.shape.placement in ("post", "reordered", "none"):
        return gram
    return through_norm(model, norm, Normed(added.read, added.factor), gram, squares)


def _through_scale(model: Model, part: str, added: Added, gram: Array, squares: Squares) -> Array:
    if model.shape.normed_after:
        times = added.scale / normed(model, f"{part}_post_norm", added.raw).factor
        add_norm(
            model, f"{part}_post_norm", added.gram / np.outer(times, times), gram * np.outer(times, times), squares
        )
    return gram * np.outer(added.scale, added.scale)


def _of_embedding(model: Model, ids: NDArray[np.int64], gram: Array, squares: Squares) -> None:
    shape, flat = model.shape, ids.ravel()
    if shape.embedding_norm:
        bare = Model(shape.model_copy(update={"embedding_norm": False}), model.plan)
        gram = _through_stream_norm(model, "embedding_norm", embedded(bare, ids), gram, squares)
    rows = gram * (flat[:, None] == flat[None, :]) * shape.embedding_multiplier**2
    squares.add("token_embedding.weight", rows)
    if shape.position == "learned":
        batch, length = ids.shape
        squares.add("position_embedding.weight", gram * np.tile(np.eye(length), (batch, batch)))
