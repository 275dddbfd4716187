"""Takes the numbers while a forward runs: what the tracer's callbacks fill."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from initdiag.measure.attention import largest_logit, sharpness
from initdiag.measure.gradients import BranchGradients
from initdiag.measure.lens_values import HeadroomMeasure, RouterMeasure
from initdiag.measure.statistics import as_sequences, largest, moments, variance, widened
from initdiag.measure.values import AttentionMeasure, Branch, Read
from initdiag.schemes.roles import layer_of
from initdiag.trace import Addition, Attention, Callbacks, FusedAttention, Reading, Routing
from initdiag.weightless.met import version

NOTHING_YET = HeadroomMeasure(0.0, "")


@dataclass(frozen=True)
class _Numbers:
    """The numbers of a tensor, without keeping them alive: every product sees a view of its own of one activation."""

    storage: StorageWeakRef | None
    place: tuple[Any, ...] = ()

    @classmethod
    def of(cls, tensor: Tensor) -> _Numbers:
        return cls(StorageWeakRef(tensor.untyped_storage()), _place(tensor))

    def holds(self, tensor: Tensor) -> bool:
        return self.storage is not None and self.place == _place(tensor) and not self.storage.expired()


NO_NUMBERS = _Numbers(None)


def _place(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.numel(), tensor.shape[-1:], tensor.is_contiguous(), version(tensor)


@dataclass
class Watch:
    """Numbers of one forward on ids of `shape` (B, T); `gradients` is there when a backward will follow."""

    shape: tuple[int, int] = (0, 0)
    gradients: BranchGradients | None = None
    branches: list[Branch] = field(default_factory=list)
    reads: dict[int, Read] = field(default_factory=dict)
    attentions: list[AttentionMeasure] = field(default_factory=list)
    heads: int = 0
    routers: dict[str, RouterMeasure] = field(default_factory=dict)
    embedding_variance: float = math.nan
    headroom: HeadroomMeasure = NOTHING_YET
    width: int = 0
    _streams: list[int] = field(default_factory=list)
    _after: dict[int, float] = field(default_factory=dict)
    _last_read: _Numbers = field(default_factory=lambda: NO_NUMBERS)
    _last_taken: _Numbers = field(default_factory=lambda: NO_NUMBERS)
    _rms: float = math.nan
    _rest: Tensor | None = None

    @property
    def callbacks(self) -> Callbacks:
        return Callbacks(
            addition=self.add,
            attention=self.attend,
            reading=self.read,
            routing=self.route,
            product=self.product,
            between=self.gradients.attach if self.gradients else lambda: None,
        )

    def add(self, addition: Addition) -> None:
        """Measure one residual addition; a branch is named after the weight that wrote it."""
        index = len(self.branches) + 1
        name = _module_of(addition.projection) if addition.projection else addition.module or f"branch {index}"
        if addition.stream not in self._streams:
            self._streams.append(addition.stream)
        self.width = self.width or addition.after.shape[-1]
        stream = self._streams.index(addition.stream)
        first = addition.stream not in self._after
        scaled = first or addition.carried == "scaled" or addition.keep != 1
        before = variance(addition.before) if scaled else math.nan
        if first and not self.branches:
            self.embedding_variance = before / addition.keep**2 if addition.keep else before
        earlier = self._after.get(addition.stream, math.nan)
        if addition.part == 0:
            after, share = variance(addition.after), token_share(as_sequences(addition.after, self.shape))
            residue = _residue(addition)
            self._rest = widened(addition.whole).clone() if addition.parts > 1 else None
            self._largest(addition.after, name)
        else:
            last = self.branches[-1]
            after, share, residue = last.stream_variance, last.token_share, last.residue
        self.branches.append(
            Branch(
                index=index,
                name=name,
                layer=layer_of(name),
                kind=addition.kind,
                projection=addition.projection,
                branch_variance=variance(addition.branch),
                stream_variance=after,
                module=addition.module,
                source=addition.source,
                stream=stream,
                normed=addition.normed,
                carried="first" if first else addition.carried if addition.part == 0 else "same",
                carried_by=addition.carried_by if addition.part == 0 else None,
                joined=addition.parts,
                keep=_keep(addition, before, earlier),
                residue=residue,
                token_share=share,
                reads=tuple(self.reads[at] for at in sorted(addition.reads) if at in self.reads),
            )
        )
        self._after[addition.stream] = after
        if self._rest is not None:
            self._check_parts(addition)
        if self.gradients:
            self.gradients.watch(index, addition.after)  # the branch's gradient is that of what it was added to

    def _check_parts(self, addition: Addition) -> None:
        """Hold the addends of a sum of branches against the sum, when the last of them has come."""
        assert self._rest is not None
        whole = float(torch.linalg.vector_norm(widened(addition.whole)))
        self._rest -= widened(addition.branch)
        if addition.part == addition.parts - 1:
            off = float(torch.linalg.vector_norm(self._rest)) / whole if whole else 0.0
            for at in range(-addition.parts, 0):
                self.branches[at] = replace(self.branches[at], residue=max(self.branches[at].residue, off))
            self._rest = None

    def attend(self, attention: Attention) -> None:
        """Measure one attention, named after the module whose queries it uses."""
        name = _module_of(_module_of(attention.source or "")) or f"attention {len(self.attentions) + 1}"
        logit_std, entropy_ratio = sharpness(attention)
        self.attentions.append(AttentionMeasure(name, layer_of(name), logit_std, entropy_ratio))
        shape = attention.query.shape if isinstance(attention, FusedAttention) else attention.logits.shape
        if not self.heads and len(shape) == 4:
            self.heads = shape[1]
        self._at_most(largest_logit(attention), name)

    def read(self, reading: Reading) -> None:
        """Measure what a product reads from the stream; the readers of one tensor share the number."""
        if not self._last_read.holds(reading.value):
            mean, spread, _ = moments(reading.value)
            self._last_read, self._rms = _Numbers.of(reading.value), math.sqrt(spread + mean * mean)
        self.reads[reading.index] = Read(reading.reader, reading.normed, reading.gain, self._rms, reading.scaled)

    def route(self, routing: Routing) -> None:
        """Count how many assignments each expert got; of several choices by one router the last is the one."""
        counts = torch.bincount(routing.chosen.reshape(-1).cpu(), minlength=routing.experts)
        total = int(counts.sum())
        if total:
            self.routers[routing.router] = RouterMeasure(
                routing.router, routing.experts, total, float(counts.max()) / total, float(counts.min()) / total
            )

    def product(self, weight: str, taken: Tensor, output: Tensor) -> None:
        """Look for the largest activation, before a product and after it: a squared ReLU is largest in between."""
        if not self._last_taken.holds(taken):  # queries, keys and values take the same
            self._largest(taken, f"what {_module_of(weight) or weight} reads")
            self._last_taken = _Numbers.of(taken)
        self._largest(output, _module_of(weight) or weight)

    def _largest(self, tensor: Tensor, where: str) -> None:
        if tensor.numel() and tensor.is_floating_point():
            self._at_most(largest(tensor), where)

    def _at_most(self, largest: float, where: str) -> None:
        if largest > self.headroom.max_abs:
            self.headroom = HeadroomMeasure(largest, where)

    def measured_branches(self) -> tuple[Branch, ...]:
        """The branches, with their gradients where a backward has run."""
        if not self.gradients:
            return tuple(self.branches)
        norms = self.gradients.norms
        return tuple(replace(branch, gradient_norm=norms.get(branch.index)) for branch in self.branches)


def token_share(stream: Tensor) -> float:
    """Share of the variance of a stream (B, T, d) that differs between sequences at the same position.

    Random tokens make it the part of the stream that depends on tokens at all; the rest is the same for every text.
    nan for fewer than two sequences. Estimated without bias: Σ over the B sequences of squared distance to their mean,
    over B − 1.
    """
    if stream.dim() != 3 or stream.shape[0] < 2:
        return math.nan
    wide, sequences, total = widened(stream), stream.shape[0], variance(stream)
    mean, spread, _ = moments(wide - wide.mean(0, keepdim=True))
    return (spread + mean * mean) * sequences / (sequences - 1) / total if total else math.nan


def _keep(addition: Addition, before: float, earlier: float) -> float:
    """The factor on the stream since the addition before; of the first, that of the addition itself."""
    if addition.carried != "scaled" and addition.keep == 1:
        return 1.0
    return math.sqrt(before / earlier) if earlier > 0 else addition.keep


def _residue(addition: Addition) -> float:
    """How far the stream is from what was added up, relative to it."""
    wide = widened(addition.after)
    size = float(torch.linalg.vector_norm(wide))
    rest = wide - widened(addition.before) - widened(addition.whole)
    return float(torch.linalg.vector_norm(rest)) / size if size else 0.0


def _module_of(parameter: str) -> str:
    return parameter.rpartition(".")[0]
