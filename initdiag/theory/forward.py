"""The numbers of a forward, predicted: the recursion over blocks, and what is read off it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from initdiag.measure import AttentionMeasure, GradientMeasure, Measurements, ResidualMeasure
from initdiag.measure.scaling import scaling_ratio
from initdiag.model.architecture import Architecture, of_branch
from initdiag.schemes import InitPlan
from initdiag.subjects import Subject
from initdiag.theory.grams import embedded, passed
from initdiag.theory.head import logits, measures, softmax
from initdiag.theory.one_thread import one_thread
from initdiag.theory.planned import Model, UnpredictableError
from initdiag.theory.seen import Seen, SeenHeads, between, branches_of, of_all_layers, rms, seen, wiring_of
from initdiag.theory.spread import Chance, Spreads, spreads, unevenness, worth
from initdiag.theory.strides import walked
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
    found: dict[int, Seen] = {}
    for layer, at in walked(model, stream, shape, heads_of(model, shape), every=backward):
        found[layer], stream = seen(model, at, shape), at.end
        if backward:
            streams.append(replace(stream, gram=stream.gram.astype(np.float32)))  # one for each layer is kept
    layers = list(of_all_layers(found, model.shape.n_layers))
    branches = [one for layer, (*pair, _) in enumerate(layers) for one in branches_of(model.shape, layer, *pair)]
    state = passed(model, "final_norm", stream) if model.shape.final_norm else stream
    flat = [[one for row in rows[: shape[0]] for one in row] for rows in (batch.inputs, batch.targets)]
    head = logits(model, state)
    at_head = softmax(model.shape.vocab_size, head)
    loss, logit, positions = measures(model.shape.vocab_size, at_head, *flat)
    norms: GradientMeasure | None = None
    targets = np.array(batch.targets[: shape[0]], dtype=np.int64)
    if backward:
        from initdiag.theory.backward import backward as gradients  # not at once: most predictions need none of it

        back = gradients(model, streams, ids, targets, head, at_head, batch.batch, heads_of(model, shape))
        branches = [
            replace(at, gradient_norm=norm if math.isfinite(norm) else None)
            for at, norm in zip(branches, back.branches, strict=True)
        ]
        norms = GradientMeasure(tuple(back.parameters.items()))
    kept = of_branch(model.shape.stream_multiplier, 1)  # of the embedding, where the first branch is added to it
    embedding_variance = kept**2 * first.variance
    stds = {entry.parameter.name: entry.distribution.std for entry in subject.plan.entries}
    values = Measurements(
        loss=loss,
        logits=logit,
        positions=positions,
        residual=ResidualMeasure(embedding_variance, tuple(branches), scaling_ratio(branches, stds, subject.plan)),
        attention=tuple(
            AttentionMeasure(f"blocks.{layer}.attention", layer, heads.std, heads.entropy)
            for layer, (_, _, heads) in enumerate(layers)
        ),
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
    spread = spreads(
        values,
        _chances(layers, width, between(first.gram, shape)),
        embedding,
        unevenness(state.gram),
        _head_chances([heads for _, _, heads in layers]),
        unscaled,
        width,
        foreign,
        model.shape.final_norm or model.shape.placement == "post",
        worth(ids.ravel()) * others,
        worth(targets.ravel(), state.gram) * others,
    )
    return Prediction(values, spread, shape[0])


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


def heads_of(model: Model, shape: tuple[int, int]) -> int:
    """Return how many heads to sample in each layer."""
    if model.shape.position == "alibi":  # every head has a slope of its own
        return min(ALIBI_HEADS, max(MOST_HEADS, model.shape.n_heads))
    cost = model.shape.n_layers * (shape[0] * shape[1]) ** 2
    return max(2, min(MOST_HEADS, HEADS // model.shape.n_layers, 2 * PAIRS // cost))


def _chances(layers: Sequence[Seen], width: int, common: float) -> list[Chance]:
    """Return the chances of all branches. common: what tokens of a sequence have in common before them.

    Attention averages over keys, so that it gives what they have in common, and inherits the chance of that.
    """
    found, variance = [], 0.0
    for attention, mlp, _ in layers:
        inherited = variance / common**2 * attention.alike**2 if common else 0.0
        for one, inner in ((attention, attention.inner + inherited), (mlp, mlp.inner)):
            found.append(Chance(one.drawn / width, inner, one.uneven / width))
            common += one.between
            variance += one.between**2 * (2 / width + inner)
    return found


def _head_chances(layers: Sequence[SeenHeads]) -> list[tuple[float, float]]:
    """Return the variances of logit std and entropy ratio of every layer, about those of the drawn heads.

    Two heads hardly show how far heads are apart: no layer has relatively less than the mean of all.
    """
    found = []
    for numbers, chances in (
        ([at.std for at in layers], [at.std_chance for at in layers]),
        ([at.entropy for at in layers], [at.entropy_chance for at in layers]),
    ):
        known = [chance / number**2 for number, chance in zip(numbers, chances, strict=True) if number and chance >= 0]
        typical = math.fsum(known) / len(known) if known else 0.0
        found.append([max(chance, typical * number**2) for number, chance in zip(numbers, chances, strict=True)])
    return list(zip(*found, strict=True))


def _stretch(plan: InitPlan, projection: str) -> float:
    """(unscaled std / std)² of a residual projection; 0 where it has none."""
    entry = plan[projection]
    return (entry.unscaled_std / entry.distribution.std) ** 2 if entry.distribution.std else 0.0
