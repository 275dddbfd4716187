"""Gradients of the stream that aren't independent of it: what is known of them, and how it goes down.

The softmax follows the logits, so that what a head sends back leans towards the state that it read; a tied head also
sends back embeddings, of which that state is made. So with the stream x_i of token i, its gradient is

    g_i = Σ_j lean_ij·x_j + (own embeddings) + the rest, independent of x and of all matrices below.

x holds the outputs b = W·h of all branches below. A branch gets, besides what it would of a gradient like any other,
Wᵀ·lean·b = d·σ²·lean·h in the mean, which all features and all tokens have in common: small beside the rest in one
token, not in gradients of biases, values and gains, which add up over tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from initdiag.theory.activations import Array
from initdiag.theory.grams import Stream

SLIGHT = 1e-3  # of Γ, added up over tokens: what leans less is left out, since it costs half as much as all the rest
TINY = 1e-300  # of a state that is nothing, by which nothing is divided


@dataclass(frozen=True)
class Gradient:
    """Gradients g_i of the mean loss by the stream x_i of n tokens.

    gram: (n, n), g_i·g_j, summed over features. lean: (n, n), as above. own: (n, n), what g_i holds of token j's own
    embedding, as its product with that. read: (n, n), g_i·(what the head read of token j). held: (n,), how much that
    holds of x.
    """

    gram: Array
    lean: Array
    own: Array
    read: Array
    held: Array

    def along(self, stream: Stream, width: int) -> Array:
        """Return g_i·x_j."""
        found: Array = width * product(self.lean, stream.gram) + self.own * stream.own
        return found


@dataclass(frozen=True)
class Back:
    """What comes back from a branch to the stream x: Γ, by how much it leans on x, and g_i·x_j of what does; (n, n)."""

    gram: Array
    lean: Array
    along: Array

    def plus(self, other: Back) -> Back:
        """Add what comes back from a branch beside it."""
        gram = self.gram + other.gram
        if self.lean.any():
            crossed = product(self.along, other.lean.T)
            gram = gram + crossed + crossed.T
        return Back(gram, self.lean + other.lean, self.along + other.along)


def added(after: Gradient, kept: float, stream: Stream, back: Back, width: int) -> Gradient:
    """Return the gradients of a stream x from those of kept·x + branches, and from what comes back from these."""
    before = Gradient(
        kept**2 * after.gram, kept**2 * after.lean, kept * after.own, kept * after.read, kept * after.held
    )
    if not back.lean.any():
        return replace(before, gram=before.gram + back.gram)
    crossed = product(before.along(stream, width), back.lean.T)
    return replace(
        before,
        gram=before.gram + back.gram + crossed + crossed.T,
        lean=before.lean + back.lean,
        read=before.read + back.along * before.held,
    )


def through(factor: Array, state: Stream, along: Array, after: Gradient, width: int) -> Gradient:
    """Return the gradients before a norm of the stream from those after it: without what points along the stream.

    Args:
        factor: (n,), by what the norm multiplied. state: what it gave. along: g_i·x_j with that.
    """
    gram, part = perpendicular(after.gram, along, state.gram, width)
    read = after.read - width * part[:, None] * state.gram * after.held
    by_own = np.diagonal(after.own) * state.own / (width * np.maximum(np.diagonal(state.gram), TINY))
    if (len(part) * by_own**2 * width * np.diagonal(state.gram) < SLIGHT * np.diagonal(gram)).all():
        by_own = np.zeros_like(by_own)
    lean = crosswise(after.lean, state.gram) - np.diag(by_own)
    times, back = np.outer(factor, factor), factor[:, None]
    return Gradient(gram * times, lean * times, after.own * back, read * back, after.held * factor)


def perpendicular(gram: Array, along: Array, state: Array, width: int) -> tuple[Array, Array]:
    """Take away from each gradient what points along its own state, as a norm does: g − x·(g·x)/‖x‖².

    Returns:
        Γ of what is left, and (g·x)/‖x‖², (n,).

    Args:
        along: (n, n), g_i·x_j. state: the Gram of x, of `width` features.
    """
    part = np.diagonal(along) / (width * np.maximum(np.diagonal(state), TINY))
    crossed = along * part[None, :]
    left: Array = gram - crossed - crossed.T + np.outer(part, part) * width * state
    np.fill_diagonal(left, np.maximum(np.diagonal(left), 0))  # squares, of parts known in the mean
    return left, part


def crosswise(lean: Array, state: Array) -> Array:
    """Return what a norm leaves of Σ_j lean_ij·x_j, without what points along x_i: (n, n); 0 of a diagonal one."""
    others = lean - np.diag(np.diagonal(lean))
    left: Array = others - np.diag((others * state).sum(axis=1) / np.maximum(np.diagonal(state), TINY))
    return left


def product(one: Array, other: Array) -> Array:
    """Return one @ other, (n, n) both, in half the time, to 7 digits."""
    sizes = [max(float(np.abs(each).max()), TINY) for each in (one, other)]  # may be too small for float32
    found = (one / sizes[0]).astype(np.float32) @ (other / sizes[1]).astype(np.float32)
    return found.astype(np.float64) * sizes[0] * sizes[1]
