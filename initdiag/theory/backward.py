"""The backward pass in the wide limit: Grams of gradients, from the loss down to the embeddings.

Γ_ij = g_i·g_j, summed over features, of the gradients g of the mean loss by token. A matrix W that is used once hands
on σ²·fan_out·Γ, as if it were independent of what comes back to it (arXiv 1611.01232, section 4), and its own gradient
Σ g_i x_iᵀ has the squared norm Σ_ij Γ_ij·(x_i·x_j). What of g isn't independent of the stream goes down beside Γ:
`leaning`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from initdiag.model.architecture import of_branch
from initdiag.theory.activations import Array
from initdiag.theory.attention_gradient import attention_gradient
from initdiag.theory.blocks import Added, block
from initdiag.theory.grams import Stream, embedded, normed, passed
from initdiag.theory.head import Head, Softmax, met
from initdiag.theory.leaning import TINY, Back, Gradient, added, crosswise, perpendicular, product, through
from initdiag.theory.mlp_gradient import fed_gradient
from initdiag.theory.planned import Model
from initdiag.theory.squares import Squares, add_norm

TINY_PART = 1e-6  # of the softmax on all tokens but the own: what they have in common doesn't matter


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
    after = _of_head(model, state, head, softmaxes, ids.ravel(), targets.ravel(), batch * shape[1], squares)
    sent = after.own
    if architecture.final_norm:
        after = _through_stream_norm(model, "final_norm", last, after, squares)
    norms: list[float] = []
    for layer in reversed(range(model.shape.n_layers)):
        after, found = _of_block(model, layer, streams[layer], after, shape, heads, squares)
        norms[:0] = found
    _of_embedding(model, ids, after, sent, squares)
    parameters = {name: math.sqrt(max(square, 0.0)) for name, square in squares.found.items()}
    return Gradients(parameters, tuple(norms))


def _of_head(
    model: Model, state: Stream, head: Head, at: Softmax, ids: Array, targets: Array, tokens: int, squares: Squares
) -> Gradient:
    """Return the gradients of the state that the head reads.

    The logits' gradient is δ = (p − y)/N. Its products over the vocabulary follow from which tokens are alike, and
    from softmaxes of two positions having V·E[e^(a + a')]/(E[e^a] E[e^a'] V²) = e^cov(a, a')/V in common. The mean
    embedding as the softmax weighs it leans towards the state: Wᵀp holds x times the mean logit over ‖x‖². A tied
    head also meets each token's own embedding, in the state and in p: `Gradient.own`.
    """
    shape, vocab_size = model.shape, model.shape.vocab_size
    square = np.maximum(np.diagonal(state.gram), TINY)
    size = np.sqrt(square)
    share, rest = at.share * at.own_slope, 1 - at.share
    common = np.ones_like(state.gram)
    if rest.max() > TINY_PART:
        covariances = state.gram / np.outer(size, size) * np.outer(head.std, head.std)
        common = np.minimum(met(vocab_size, head, at, covariances), vocab_size)
    alike, meets = ids[:, None] == ids[None, :], ids[:, None] == targets[None, :]
    wanted = targets[:, None] == targets[None, :]
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
    lean = np.diag(leaning / shape.d_model)
    table = shape.d_model * model.weight(name) * shape.logit_multiplier / tokens if shape.tied else 0.0
    own = table * (share[:, None] * alike - target[:, None] * meets.T)
    crossed = lean @ (state.own[:, None] * own.T)
    found = Gradient(gram + crossed + crossed.T, lean, own, own, np.ones(len(ids)))
    return replace(found, read=found.along(state, shape.d_model))


def _of_block(
    model: Model, layer: int, stream: Stream, after: Gradient, shape: tuple[int, int], heads: int, squares: Squares
) -> tuple[Gradient, list[float]]:
    """Return the gradients before a block, from those after it, and the norms for its two branches."""
    at, name, architecture = block(model, layer, stream, shape, heads), f"blocks.{layer}", model.shape
    kept = [of_branch(architecture.stream_multiplier, k) for k in (2 * layer + 1, 2 * layer + 2)]
    random = np.random.default_rng((layer, 1))

    def attention(given: Gradient) -> tuple[Array, Array]:
        raw = _through_scale(model, f"{name}.attention", at.attention, given, squares)
        return attention_gradient(model, layer, at.attention.read, at.heads, *raw, random, squares)

    def mlp(given: Gradient) -> tuple[Array, Array]:
        raw = _through_scale(model, f"{name}.mlp", at.mlp, given, squares)
        return fed_gradient(model, layer, at.mlp.read, *raw, random, squares)

    def read(norm: str, branch: Added, found: tuple[Array, Array]) -> Back:
        return _through_read(model, f"{name}.{norm}_norm", branch, *found, squares)

    if architecture.placement.startswith("parallel"):
        if architecture.placement == "parallel_shared":
            one, other = attention(after), mlp(after)
            both = read("attention", at.attention, (one[0] + other[0], one[1] + other[1]))
        else:
            both = read("attention", at.attention, attention(after)).plus(read("mlp", at.mlp, mlp(after)))
        return added(after, kept[0], stream, both, architecture.d_model), [squares.norm(after.gram)] * 2
    post, between = architecture.placement == "post", at.attention.after
    if post:
        after = _through_stream_norm(model, f"{name}.mlp_norm", at.mlp.after, after, squares)
        between = passed(model, f"{name}.attention_norm", between)
    middle = added(after, kept[1], between, read("mlp", at.mlp, mlp(after)), architecture.d_model)
    if post:
        middle = _through_stream_norm(model, f"{name}.attention_norm", at.attention.after, middle, squares)
    before = added(middle, kept[0], stream, read("attention", at.attention, attention(middle)), architecture.d_model)
    return before, [squares.norm(middle.gram), squares.norm(after.gram)]


def _through_stream_norm(model: Model, name: str, stream: Stream, after: Gradient, squares: Squares) -> Gradient:
    """Return the gradients before a norm that the stream itself passes.

    It takes away what points along the stream: a part 1/d of a gradient like any other, and all that is known of one
    that leans on the stream or holds embeddings that it holds, too.
    """
    given, state = normed(model, name, stream.gram, stream.mean), passed(model, name, stream)
    along = after.along(state, model.shape.d_model)
    add_norm(model, name, given.gram - model.bias(name), after.gram, squares, along)
    return through(given.factor, state, along, after, model.shape.d_model)


def _through_read(model: Model, norm: str, branch: Added, gram: Array, lean: Array, squares: Squares) -> Back:
    """Return what comes back to the stream, from Γ of what a branch read, and by how much the rest leans on that."""
    bare, width = model.shape.placement in ("post", "reordered", "none"), model.shape.d_model
    times = np.outer(branch.factor, branch.factor)
    if not lean.any():
        if not bare:
            add_norm(model, norm, branch.read - model.bias(norm), gram, squares)
        return Back(gram * times, lean, lean)
    along = width * product(lean, branch.read)
    whole = gram + product(along, lean.T)
    if bare:
        return Back(whole, lean, along)
    add_norm(model, norm, branch.read - model.bias(norm), whole, squares, along)
    whole, part = perpendicular(whole, along, branch.read, width)
    along = (along - width * part[:, None] * branch.read) * branch.factor[:, None] / np.maximum(branch.factor, TINY)
    return Back(whole * times, crosswise(lean, branch.read) * times, along)


def _through_scale(model: Model, part: str, branch: Added, after: Gradient, squares: Squares) -> tuple[Array, Array]:
    """Return Γ of what an output projection gives, and by how much that leans on it."""
    gram, lean, width = after.gram, after.lean, model.shape.d_model
    if model.shape.normed_after:
        along = width * product(lean, branch.gram) if lean.any() else None
        times = branch.scale / normed(model, f"{part}_post_norm", branch.raw).factor
        both = np.outer(times, times)
        add_norm(model, f"{part}_post_norm", branch.gram / both, gram * both, squares, along)
        if along is not None:
            gram, lean = perpendicular(gram, along, branch.gram, width)[0], crosswise(lean, branch.gram)
    scales = np.outer(branch.scale, branch.scale)
    return gram * scales, lean * scales


def _of_embedding(model: Model, ids: NDArray[np.int64], after: Gradient, sent: Array, squares: Squares) -> None:
    """Add the gradients of embeddings. Rows of a tied one get both, of the head and of the input, which aren't
    independent; sent: (n, n), what the head sent back of token j's own embedding, as in a gradient's `own`."""
    shape, flat = model.shape, ids.ravel()
    if shape.embedding_norm:
        bare = Model(shape.model_copy(update={"embedding_norm": False}), model.plan)
        after = _through_stream_norm(model, "embedding_norm", embedded(bare, ids), after, squares)
    times, square = shape.embedding_multiplier, shape.d_model * model.weight("token_embedding")
    rows = after.gram * (flat[:, None] == flat[None, :]) * times**2
    squares.add("token_embedding.weight", rows)
    if shape.tied and square:
        squares.add("token_embedding.weight", 2 * times / square * sent.T * after.read)
    if shape.position == "learned":
        batch, length = ids.shape
        squares.add("position_embedding.weight", after.gram * np.tile(np.eye(length), (batch, batch)))
