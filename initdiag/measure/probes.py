"""Two questions that the model's logits on one batch can't answer, put to it in one short second forward.

Does a position see later tokens? Does the first attention know the order of the earlier ones? Three rows go through
the model together: the tokens as they are, the same with later tokens changed, and the same with earlier ones in
reverse order. They share a batch, so every kernel meets the same shapes, and what is equal is equal to the bit.
Deeper blocks learn the order through the causal mask alone, so only the first attention's own output is asked.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from initdiag.measure.lens_values import ProbeMeasure
from initdiag.measure.statistics import as_sequences, widened
from initdiag.schemes import Constant, Normal
from initdiag.trace import Addition, Tracer
from initdiag.weightless import Law
from initdiag.weightless.lazy import source_of
from initdiag.weightless.source import Source

LONGEST = 8  # tokens: enough for an order to matter, and a fraction of a forward over the batch
SHORTEST = 4  # two tokens before the change, two to be exchanged
OPEN = 0.02  # a gate that passes 1/50: LayerScale's 1e-5 (arXiv 2103.17239) would hide a leak among roundings
SEED = 0


@torch.no_grad()
def probe(
    module: nn.Module,
    forward: Callable[[Tensor], Tensor],
    ids: Tensor,
    vocab_size: int,
    causal: bool,
    starts: Collection[str] = (),
    longest: int = LONGEST,
) -> ProbeMeasure:
    """Run three short rows and compare them.

    Dropout is the caller's to switch off. Parameters come back to the bit, also when the forward raises.

    Args:
        forward: token ids (3, t) to logits (3, t, V).
        ids: valid token ids (B, T), T ≥ 4; the beginning of the first row is used.
        causal: whether a leak is a fault; it is measured either way. starts: as the tracer's. longest: t at most.

    Returns:
        leak, and position; nan where the sequence is too short, the logits are all equal, or no attention was found.
    """
    length = min(ids.shape[1], longest)
    if length < SHORTEST or vocab_size < 2:
        return ProbeMeasure(math.nan, math.nan, causal)
    rows, change = _rows(ids[0, :length], vocab_size), _change(length)
    heard: list[Tensor] = []

    def listen(addition: Addition) -> None:
        branch = as_sequences(addition.branch, (rows.shape[0], rows.shape[1]))
        if addition.kind == "attention" and not heard and branch.shape[:2] == rows.shape:
            heard.append(widened(branch[:, -1]).clone())

    with awake(module), Tracer(module, rows, listen, lambda _: None, starts=starts):
        logits = forward(rows)
    base, later = widened(logits[0, :change]), widened(logits[1, :change])
    moved = torch.where(base == later, 0.0, (later - base).abs())  # logits that are masked to −inf stay where they are
    finite = base[base.isfinite()]
    spread = float(finite.std()) if finite.numel() > 1 else math.nan
    leak = float(moved.max()) / spread if spread > 0 else math.nan
    position = math.nan
    if heard:
        size = float(torch.linalg.vector_norm(heard[0][0]))
        position = float(torch.linalg.vector_norm(heard[0][2] - heard[0][0])) / size if size > 0 else math.nan
    return ProbeMeasure(leak, position, causal)


def _rows(base: Tensor, vocab_size: int) -> Tensor:
    """Return the three rows (3, t): base, later tokens changed, all but the last token in reverse order."""
    length, change = len(base), _change(len(base))
    generator = torch.Generator().manual_seed(SEED)
    if torch.equal(base[:-1], base[:-1].flip(0)):  # "aaaa" reads the same both ways: take a row with an order
        base = (base[0] + torch.arange(length, device=base.device)) % vocab_size
    step = torch.randint(1, vocab_size, (length - change,), generator=generator).to(base)
    later = torch.cat((base[:change], (base[change:] + step) % vocab_size))
    earlier = torch.cat((base[:-1].flip(0), base[-1:]))
    return torch.stack((base, later, earlier))


def _change(length: int) -> int:
    """Return where later tokens begin: 5 of 8, which is no border of chunks of 2, 3, 4 or 8 tokens."""
    return length // 2 + 1


@contextmanager
def awake(module: nn.Module) -> Iterator[None]:
    """Give every parameter that holds a path shut some noise, and take it back in the end.

    Zero projections, heads, queries and bias tables (Fixup, muP, T5), zero gates (ReZero) and LayerScale make a model
    blind to both questions: nothing passes, so nothing leaks. Rows and columns of matrices that are zero to the last
    bit (the whole, or the queries of a packed one) become noise of std 1/√(longer side). Vectors and scalars that are
    one number of at most 0.02 become numbers between 0.02 and 0.04, never near zero. Among them are biases and the
    gains of (1 + w) norms; that is harmless, for what is added or multiplied alike at all positions neither carries a
    token from one to another nor tells them apart, and it is too small to drown what does. Buffers stay: a zero
    inv_freq is no start from which anything is learned.

    The noise has a generator of its own, and the values are written below autograd's version counters.
    """
    generator = torch.Generator().manual_seed(SEED)
    laws: list[tuple[Source, Law]] = []
    shut: list[tuple[Tensor, Tensor | tuple[slice, Tensor] | None, Tensor | float]] = []
    try:
        for parameter in module.parameters():
            if not parameter.is_floating_point() or not parameter.numel():
                continue
            if (source := source_of(parameter)) is not None:
                laws.append((source, source.law))
                source.law = _awake(source.law, max(parameter.shape[-2:]) ** -0.5)
                continue
            values = parameter.data
            if parameter.numel() == max(parameter.shape, default=1):
                first = values.flatten()[0]
                if abs(float(first)) <= OPEN and bool((values == first).all()):
                    shut.append((values, None, values.clone()))
                    values.copy_(OPEN * (1 + torch.rand(values.shape, generator=generator, dtype=torch.float32)))
                continue
            std = max(values.shape[-2:]) ** -0.5
            rows = _zero_rows(values)
            columns = _zero_rows(values.t()) if values.dim() == 2 and len(rows) < len(values) else rows[:0]
            for where, count in ((rows, len(rows)), ((slice(None), columns), len(columns))):
                if count:
                    shut.append((values, where, 0.0))
                    noise = std * torch.randn(values[where].shape, generator=generator, dtype=torch.float32)
                    values[where] = noise.to(values)
        yield
    finally:
        for source, law in laws:
            source.law = law
        for values, where, before in reversed(shut):
            values[... if where is None else where] = before


def _awake(law: Law, std: float) -> Law:
    """The law of a matrix without entries, its zero rows drawn."""
    zero = Constant(0.0)
    pieces = (replace(p, distribution=Normal(std)) if p.distribution == zero and not p.mean else p for p in law.pieces)
    return Law(tuple(pieces))


def _zero_rows(values: Tensor) -> Tensor:
    """Return the indices of the rows (n, …) that are zero to the last bit: −0.0 is another number."""
    candidates = (values.flatten(1)[:, 0] == 0).nonzero()[:, 0]  # few, so that this is cheap
    if not len(candidates):
        return candidates
    rows = values[candidates].flatten(1)
    return candidates[~((rows != 0) | rows.signbit()).any(1)]
