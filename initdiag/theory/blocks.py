"""The residual stream through one block: what each branch reads, what it adds, and what is left after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from initdiag.model.architecture import of_branch
from initdiag.theory.activations import Array
from initdiag.theory.attention import Heads, attended
from initdiag.theory.feedforward import fed
from initdiag.theory.grams import Normed, Stream, normed, passed
from initdiag.theory.planned import Model

SEED = 20_191_211  # of the sampled heads; any number would do, and the same one gives the same prediction


@dataclass(frozen=True)
class Added:
    """One branch.

    read: (n, n), the Gram of what it reads; factor: (n,), by what the norm before it multiplies the stream.
    raw: (n, n), the Gram that its output projection gives; scale: (n,), what multiplies that before it is added: a norm
    after it, a learned gain, a multiplier; gram: (n, n), the product, which is added. after: the stream after the
    addition, in a parallel block after both. inner: the relative variance over draws of what its output projection is
    given.
    """

    read: Array
    factor: Array
    raw: Array
    scale: Array
    gram: Array
    after: Stream
    inner: float


@dataclass(frozen=True)
class Block:
    """Attention, MLP, the heads that were sampled, and the stream that the next block reads."""

    attention: Added
    mlp: Added
    heads: Heads
    end: Stream


def block(model: Model, layer: int, stream: Stream, shape: tuple[int, int], heads: int) -> Block:
    """Take the stream through one block, as `initdiag.model.transformer.Block` does; the same every time it is called.

    Args:
        shape: (B, T). heads: how many to sample.
    """
    random = np.random.default_rng((SEED, layer))
    name, architecture = f"blocks.{layer}", model.shape
    kept = [of_branch(architecture.stream_multiplier, k) for k in (2 * layer + 1, 2 * layer + 2)]
    before = architecture.normed_before and architecture.placement != "post"

    read = _read(model, f"{name}.attention_norm" if before else "", stream)
    raw, sampled, chance_mixed = attended(model, layer, read.gram, shape, heads, random)
    scale, mixed = _scaled(model, layer, "attention", raw)
    if architecture.placement in ("parallel", "parallel_shared"):
        shared = architecture.placement == "parallel_shared"
        other = read if shared else _read(model, f"{name}.mlp_norm", stream)
        fed_raw, chance_fed = fed(model, layer, other.gram, random)
        fed_scale, given = _scaled(model, layer, "mlp", fed_raw)
        end = stream.times(kept[0]).plus(mixed + given)
        attention = Added(read.gram, read.factor, raw, scale, mixed, end, chance_mixed)
        mlp = Added(other.gram, other.factor, fed_raw, fed_scale, given, end, chance_fed)
        return Block(attention, mlp, sampled, end)
    middle = stream.times(kept[0]).plus(mixed)
    attention = Added(read.gram, read.factor, raw, scale, mixed, middle, chance_mixed)
    if architecture.placement == "post":
        middle = passed(model, f"{name}.attention_norm", middle)
    other = _read(model, f"{name}.mlp_norm" if before else "", middle)
    fed_raw, chance_fed = fed(model, layer, other.gram, random)
    fed_scale, given = _scaled(model, layer, "mlp", fed_raw)
    end = middle.times(kept[1]).plus(given)
    mlp = Added(other.gram, other.factor, fed_raw, fed_scale, given, end, chance_fed)
    if architecture.placement == "post":
        end = passed(model, f"{name}.mlp_norm", end)
    return Block(attention, mlp, sampled, end)


def _read(model: Model, norm: str, stream: Stream) -> Normed:
    if not norm:
        return Normed(stream.gram, np.ones(len(stream.gram)))
    return normed(model, norm, stream.gram, stream.mean)


def _scaled(model: Model, layer: int, part: str, raw: Array) -> tuple[Array, Array]:
    """Return what multiplies the output of a projection, (n,), and its Gram after that."""
    name, shape = f"blocks.{layer}.{part}", model.shape
    times = model.gain(f"{name}_gain") ** 0.5
    times *= of_branch(shape.residual_multiplier, 2 * layer + (1 if part == "attention" else 2))
    if not shape.normed_after:
        return np.full(len(raw), times), raw if times == 1 else times**2 * raw
    scale = times * normed(model, f"{name}_post_norm", raw).factor
    return scale, raw * scale[:, None] * scale[None, :]
