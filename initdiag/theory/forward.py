"""The numbers of a forward, predicted: the recursion over blocks, and what is read off it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from initdiag.measure import AttentionMeasure, GradientMeasure, Measurements, ResidualMeasure
from initdiag.measure.scaling import scaling_ratio
from initdiag.measure.values import Branch
from initdiag.model.architecture import Architecture, of_branch
from initdiag.schemes import InitPlan
from initdiag.subjects import Subject
from initdiag.theory.activations import Array
from initdiag.theory.backward import backward as gradients
from initdiag.theory.blocks import Added, Block, block
from initdiag.theory.grams import Stream, embedded, mean_square, passed
from initdiag.theory.head import logits, measures, softmax
from initdiag.theory.one_thread import one_thread
from initdiag.theory.planned import Model, UnpredictableError
from initdiag.theory.seen import branches_of, rms, wiring_of
from initdiag.theory.spread import Chance, Spreads, spreads, unevenness, worth
from initdiag.tokens import TokenBatch

LONGEST = 2048  # tokens of a sequence: Grams of more than that are no matter of seconds
PAIRS = 12 * 512**2  # layers × tokens² up to which a second sequence is taken along: a fraction of a second
ALIBI_HEADS = 16  # of ALiBi, every head of which has a slope of its own
HEADS = 96  # in all layers together: chance averages out over depth
MOST_HEADS = 6  # that are sampled in a layer; fewer where twice PAIRS, over all of them, would not do


@dataclass(frozen=True)
class Prediction:
    """What a forward is expected to show, in the mean over draws of the weights: `values`, in the terms of a
    measurement, and by how much single draws differ. sequences: how many of the batch were looked at."""

    values: Measurements
    spreads: Spreads
    sequences: int


def predict(subject: Subject, batch: TokenBatch, *, backward: bool = False, brief: bool = False) -> Prediction:
    """Predict what a forward on a batch shows; no weights are drawn, and width costs nothing.

    Args:
        backward: the norms of gradients, too. brief: from one sequence alone, without what sequences have in common.

    Raises:
        UnpredictableError: a module without a known architecture, weights with a mean, or sequences too long.
    """
    with one_thread(), np.errstate(all="ignore"):  # what overflows is inf or nan, and said so
        return _predicted(subject, batch, backward, brief)


def _predicted(subject: Subject, batch: TokenBatch, backward: bool, brief: bool) -> Prediction:
    model = model_of(subject)
    ids = sequences(batch, model.shape)[: 1 if brief else None]
    shape = (ids.shape[0], ids.shape[1])
    stream = embedded(model, ids)
    first, width, streams = stream, model.shape.d_model, [stream]
    branches: list[Branch] = []
    chances: list[Chance] = []
    attention: list[AttentionMeasure] = []
    heads: list[tuple[float, float]] = []
    common = (_between(stream.gram, shape), 0.0)
    for layer, at in enumerate(blocks(model, stream, shape)):
        branches += branches_of(model, layer, at, shape)
        for one in (at.attention, at.mlp):
            one_chance, common = _chance(one, width, shape, common)
            chances.append(one_chance)
        std, entropy = at.heads.logit_std, at.heads.entropy_ratio
        attention.append(AttentionMeasure(f"blocks.{layer}.attention", layer, float(std.mean()), float(entropy.mean())))
        heads.append((_of_heads(std, model.shape), _of_heads(entropy, model.shape)))
        stream = at.end
        if backward:
            streams.append(replace(stream, gram=stream.gram.astype(np.float32)))  # one for each layer is kept
    state = passed(model, "final_norm", stream) if model.shape.final_norm else stream
    flat = [[one for row in rows[: shape[0]] for one in row] for rows in (batch.inputs, batch.targets)]
    head = logits(model, state)
    at_head = softmax(model.shape.vocab_size, head)
    loss, logit, positions = measures(model.shape.vocab_size, at_head, *flat)
    norms: GradientMeasure | None = None
    targets = np.array(batch.targets[: shape[0]], dtype=np.int64)
    if backward:
        found = gradients(model, streams, ids, targets, head, at_head, batch.batch, heads_of(model, shape))
        branches = [
            replace(at, gradient_norm=norm if math.isfinite(norm) else None)
            for at, norm in zip(branches, found.branches, strict=True)
        ]
        norms = GradientMeasure(tuple(found.parameters.items()))
    kept = of_branch(model.shape.stream_multiplier, 1)  # of the embedding, where the first branch is added to it
    embedding_variance = kept**2 * first.variance
    stds = {entry.parameter.name: entry.distribution.std for entry in subject.plan.entries}
    values = Measurements(
        loss=loss,
        logits=logit,
        positions=positions,
        residual=ResidualMeasure(embedding_variance, tuple(branches), scaling_ratio(branches, stds, subject.plan)),
        attention=tuple(attention),
        parameters=(),
        wiring=wiring_of(model, state),
        gradients=norms,
        plan=subject.plan,
    )
    unscaled = [_stretch(subject.plan, at.projection or "") for at in branches]
    weight = model.weight("token_embedding") if model.shape.tied else 0.0
    foreign = 1 - min(weight * float((state.own**2).mean()) / max(rms(state.gram) ** 2, 1e-300), 1.0)
    embedding = unevenness(first.gram) / width
    others = batch.batch / shape[0]  # sequences like those that are looked at
    chance = spreads(
        values,
        chances,
        embedding,
        unevenness(state.gram),
        heads,
        unscaled,
        width,
        foreign,
        model.shape.final_norm or model.shape.placement == "post",
        worth(ids.ravel()) * others,
        worth(targets.ravel(), state.gram) * others,
    )
    return Prediction(values, chance, shape[0])


def model_of(subject: Subject) -> Model:
    """Return architecture and plan of a subject.

    Raises:
        UnpredictableError: it is a module without a known architecture.
    """
    if subject.architecture is None:
        raise UnpredictableError(
            f"{subject.name} is a module whose architecture isn't known; expected a config, or a Hugging Face config "
            "of a family that is"
        )
    if subject.plan.calibration:
        raise UnpredictableError(
            f"scheme {subject.plan.scheme} rescales the weights on a batch, which theory can't foresee; expected a "
            "scheme that only draws them"
        )
    return Model(subject.architecture, subject.plan)


def sequences(batch: TokenBatch, shape: Architecture) -> NDArray[np.int64]:
    """Return the sequences that the theory looks at, (B, T): of random ids no more than two, which are as good as all.

    A second one tells what sequences have in common; it is left out where the model is so deep that it would cost a
    second.

    Raises:
        UnpredictableError: they are too long.
    """
    if batch.length > LONGEST:
        raise UnpredictableError(f"sequences of {batch.length:,} tokens are too long; expected at most {LONGEST:,}")
    wanted = 2 if shape.n_layers * (2 * batch.length) ** 2 <= PAIRS else 1
    if batch.source != "random":
        wanted = max(wanted, min(batch.batch, math.isqrt(PAIRS // shape.n_layers) // batch.length))
    return np.array(batch.inputs[:wanted], dtype=np.int64)


def blocks(model: Model, stream: Stream, shape: tuple[int, int]) -> Iterator[Block]:
    """Walk through all blocks."""
    heads = heads_of(model, shape)
    for layer in range(model.shape.n_layers):
        at = block(model, layer, stream, shape, heads)
        stream = at.end
        yield at


def heads_of(model: Model, shape: tuple[int, int]) -> int:
    """Return how many heads to sample in each layer."""
    if model.shape.position == "alibi":  # every head has a slope of its own
        return min(ALIBI_HEADS, max(MOST_HEADS, model.shape.n_heads))
    cost = model.shape.n_layers * (shape[0] * shape[1]) ** 2
    return max(2, min(MOST_HEADS, HEADS // model.shape.n_layers, 2 * PAIRS // cost))


def _chance(
    added: Added, width: int, shape: tuple[int, int], common: tuple[float, float]
) -> tuple[Chance, tuple[float, float]]:
    """Return the chance of a branch, and what tokens of a sequence have in common after it: mean and variance.

    Attention averages over keys, so that it gives what they have in common, and inherits the chance of that.
    """
    inner, raw = added.inner, unevenness(added.raw) / width
    mean, variance = common
    if added.kind == "attention" and mean:
        inner += variance / mean**2 * _alike(added.raw, shape) ** 2
    between = _between(added.gram, shape)
    chance = Chance(raw, inner, unevenness(added.after.gram) / width)
    return chance, (mean + between, variance + between**2 * (2 / width + inner))


def _between(gram: Array, shape: tuple[int, int]) -> float:
    """The mean product of two tokens of one sequence."""
    batch, length = shape
    if length < 2:
        return 0.0
    places = gram.reshape(batch, length, batch, length)
    inside = sum(float(places[at, :, at, :].sum()) for at in range(batch))
    return (inside - float(np.trace(gram))) / (batch * length * (length - 1))


def _alike(gram: Array, shape: tuple[int, int]) -> float:
    """The part of a mean square that tokens of one sequence have in common."""
    square = mean_square(gram)
    return min(_between(gram, shape) / square, 1.0) if square else 0.0


def _of_heads(sampled: Array, shape: Architecture) -> float:
    """The variance of the mean over a layer's heads, about a mean over sampled ones.

    Heads that share keys, in latent attention the part of them that turns, count as one: an upper bound.
    """
    if len(sampled) < 2:
        return math.nan
    shared = shape.mla.rope_dim / shape.head_dim if shape.mla else 0.0
    own = shared + (1 - shared) / shape.n_heads if shape.mla else 1 / shape.n_kv_heads
    return float(sampled.var(ddof=1)) * (own + 1 / len(sampled))


def _stretch(plan: InitPlan, projection: str) -> float:
    """(unscaled std / std)² of a residual projection; 0 where it has none."""
    entry = plan[projection]
    return (entry.unscaled_std / entry.distribution.std) ** 2 if entry.distribution.std else 0.0
