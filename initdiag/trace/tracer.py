"""Watches the operations of one forward, of any module, and reports what happens to the residual stream as it happens.

A TorchDispatchMode sees every operation below autograd, whether a module was called, its `.forward` was called, or
no module is there at all; the model itself carries nothing of ours. Nothing is kept alive: lineages hang on tensors
by weak reference, and numbers are taken on the spot by the callbacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from initdiag.dispatch import DispatchMode
from initdiag.schemes import Role
from initdiag.trace import additions, calls, chains, descent, noting, products
from initdiag.trace.additions import Residual
from initdiag.trace.calls import Call
from initdiag.trace.events import (
    Addition,
    Attention,
    Callbacks,
    Reading,
    Routing,
    SoftmaxAttention,
    fused_attention,
    ignore,
)
from initdiag.trace.frames import where
from initdiag.trace.lineage import (
    ADDITIONS,
    FUSED_BIAS,
    LOOKUPS,
    NOTHING,
    PRODUCTS,
    SOFTMAXES,
    TOKEN_IDS,
    VIEWS,
    Chain,
    Lineage,
    Term,
)
from initdiag.trace.roles import Notes
from initdiag.trace.weights import first_row, product_of
from initdiag.weightless.lazy import is_lazy
from initdiag.weightless.strangers import refuse_strangers


class Tracer(DispatchMode):
    """Use as a context manager around a forward; `ids` is the tensor of token ids that the forward gets.

    starts: weights whose product with the embedding begins the stream (factorised embeddings).
    """

    def __init__(
        self,
        module: nn.Module,
        ids: Tensor,
        on_addition: Callable[[Addition], None] = ignore,
        on_attention: Callable[[Attention], None] = ignore,
        *,
        callbacks: Callbacks | None = None,
        starts: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._report = callbacks or Callbacks(on_addition, on_attention)
        self._starts = starts
        self._lineages: Any = WeakTensorKeyDictionary()
        self._written: dict[int, tuple[StorageWeakRef, Lineage]] = {}
        self._modules = {id(part): name for name, part in module.named_modules()}
        self._streams = self._reads = 0
        self._reading: Any = WeakTensorKeyDictionary()
        self._tables = {id(buffer): name for name, buffer in module.named_buffers() if not buffer.is_floating_point()}
        self.notes = Notes()
        self.embeddings: list[str] = []
        self.entries: list[str] = []  # products with the bare embedding, before any branch: where a stream may begin
        self.additions = 0
        self._parameters = dict(module.named_parameters())
        for name, parameter in self._parameters.items():
            self._lineages[parameter] = Lineage(parameter=name)
        self._lineages[ids] = TOKEN_IDS
        self._weightless = any(map(is_lazy, self._parameters.values()))

    def of(self, tensor: Tensor) -> Lineage:
        """Return what is known of a tensor."""
        lineage = self._lineages.get(tensor, NOTHING)
        if self._written and not lineage.from_ids and not is_lazy(tensor):
            written = self._written.get(tensor.untyped_storage().data_ptr())
            if written and not written[0].expired():
                return written[1]
        return lineage  # type: ignore[no-any-return]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._report.between()
        name = getattr(getattr(func, "_schema", None), "name", str(func)).rpartition("::")[2]
        if torch.is_inference_mode_enabled() and func._can_decompose():
            with self:  # inference mode hands on whole functions such as linear; what they are made of is looked at
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        in_place = name.endswith("_") and not name.endswith("__")
        operation = name.removesuffix("_") if in_place else name
        inputs = list(_tensors((*args, *kwargs.values())))
        if self._weightless:
            refuse_strangers(func, inputs)
        parents = [self.of(tensor) for tensor in inputs]  # before the call: an in-place one changes its own history
        call = Call(func, operation, args, kwargs, inputs, parents)
        before = inputs[0].clone() if in_place and operation in ADDITIONS and parents[0].from_ids else None
        result = func(*args, **kwargs)
        lineage = self._lineage(call, before, result)
        self._keep(call, lineage, result, in_place)
        return result

    def _keep(self, call: Call, lineage: Lineage, result: Any, in_place: bool) -> None:
        several = isinstance(result, list | tuple) and call.operation in VIEWS
        for at, tensor in enumerate(_tensors((result,))):
            if several:
                lineage = chains.chosen(lineage, at)
            elif call.operation == "max" and at == 1 and lineage.left:
                lineage = replace(lineage, routed=not lineage.mixes)  # where the largest is: a switch chooses by it
            self._lineages[tensor] = lineage
        if in_place and lineage.from_ids and isinstance(result, Tensor) and not is_lazy(result):
            storage = result.untyped_storage()
            self._written[storage.data_ptr()] = (StorageWeakRef(storage), lineage)

    def _lineage(self, call: Call, before: Tensor | None, result: Any) -> Lineage:
        operation, parents = call.operation, call.parents
        if not parents:
            return NOTHING
        if operation in LOOKUPS and (found := self._looked_up(call, result)):
            return found
        if operation.startswith("_scaled_dot_product"):
            return self._fused_attention(call)
        if operation in PRODUCTS and (found := self._product(call, result)):
            return found
        if operation in ADDITIONS and (addition := additions.plain(call, before, result)):
            return self._added(addition, result)
        lineage = descent.descend(call)
        self._note(call, lineage, result)
        return replace(lineage, terms=additions.terms(call, before, lineage)) if operation == "add" else lineage

    def _looked_up(self, call: Call, result: Any) -> Lineage | None:
        table, index = call.parents[0], call.parents[-1]
        if not table.parameter or table.from_ids or not index.from_ids or index.roots:
            if not table.from_ids and index.ids and (name := self._tables.get(id(call.inputs[0]))):
                experts = int(call.inputs[0].max()) + 1
                self._report.routing(Routing(name, experts, result))
            return None
        exact = "rows are looked up by token ids"
        if not index.ids:
            self.notes.note(table.parameter, Role.POSITION_EMBEDDING, "looked up by positions that token ids give")
        return self._new_stream(table.parameter, exact if index.ids else None)

    def _new_stream(self, parameter: str, evidence: str | None) -> Lineage:
        if evidence:
            self.notes.note(parameter, Role.TOKEN_EMBEDDING, evidence)
            self.embeddings.append(parameter)
        mask = 1 << self._streams
        self._streams += 1
        return Lineage(from_ids=True, stream=mask, roots=mask)

    def _product(self, call: Call, result: Tensor) -> Lineage | None:
        places = calls.weight_of(call)
        left, right = calls.operands(call)
        if places is None:
            pair = call.parents[left : right + 1]
            if len(pair) < 2 or not all(parent.left for parent in pair):
                return None
            noting.mixed(pair[0], pair[1], self.notes)
            return products.mixture(call)
        x, w = places
        source, weight = call.parents[x], call.parents[w]
        name = weight.parameter or ""
        whole = self._parameters[name]
        self.notes.products.setdefault(name, product_of(call, x, w, result, whole))
        if source.from_ids and not (source.roots or source.mixes):
            return self._new_stream(name, "its product with one-hot token ids is the embedding")
        bias = call.parents[0] if call.operation in FUSED_BIAS else call.parents[-1]
        if bias.parameter and not bias.from_ids and bias.parameter != name:
            self.notes.bias(bias.parameter, name)
        if source.stream and name in self._starts:
            self.notes.note(name, Role.OTHER, "it brings the embedding to the width of the stream")
            return products.after_addition(source)
        if source.stream and not self.additions:
            self.entries.append(name)
        if source.left and not source.convolved:
            for feeding in (source.projection, *source.also):
                if feeding:
                    self.notes.consumers.setdefault(feeding, set()).add(name)
        reads = self._read(name, source, call.inputs[x]) if source.stream else source.reads
        lineage = products.product(call, x, w, reads)
        if result.dim() and result.shape[-1] > 1:
            lineage = replace(lineage, chains=(Chain(tuple(result.shape), first_row(call.inputs[w], whole)),))
        self._report.product(name, call.inputs[x], result)
        if call.operation in FUSED_BIAS and (addition := additions.fused(call, lineage, result)):
            return self._added(addition, result)
        return lineage

    def _read(self, name: str, source: Lineage, value: Tensor) -> frozenset[int]:
        index = self._reads
        self._reads += 1
        self._report.reading(Reading(index, name, source.normed, source.gain, source.normed and source.scaled, value))
        return frozenset((index,))

    def _fused_attention(self, call: Call) -> Lineage:
        query, key, value = call.parents[:3]
        self.notes.attention(query, key, value)
        self._report.attention(fused_attention(call))
        return products.attended(query, key, value)

    def _added(self, found: Residual, after: Tensor) -> Lineage:
        """Report a residual addition, each addend of a sum of branches by itself."""
        stream, branch = found.stream, found.branch
        module, source = where(self._modules)
        self.additions += 1
        carried = "normed" if stream.normed else "scaled" if stream.scaled else "same"
        terms = branch.terms if len({term.lineage.attention for term in branch.terms}) > 1 else ()
        for part, term in enumerate(terms or (Term(branch, found.written),)):
            self.notes.residual(term.lineage)
            value = term.value if term.factor == 1 else term.value * term.factor
            self._report.addition(
                Addition(
                    projection=term.lineage.projection,
                    kind=term.lineage.kind,
                    before=found.before,
                    branch=value,
                    after=after,
                    whole=found.written,
                    part=part,
                    parts=len(terms) or 1,
                    stream=stream.stream,
                    carried=carried,
                    carried_by=stream.gain if stream.normed else None,
                    keep=found.keep,
                    normed=term.lineage.normed,
                    reads=term.lineage.reads,
                    module=module,
                    source=source,
                )
            )
        return products.after_addition(stream)

    def _note(self, call: Call, lineage: Lineage, result: Any) -> None:
        """Report attention and routing, and note what the operation shows of the parameters that it meets."""
        operation, first = call.operation, call.parents[0]
        if operation in SOFTMAXES and lineage.weights and first.scores:
            query, key = first.scores
            self.notes.attention(query, key, None)
            if call.inputs[0].dim() >= 3 and call.inputs[0].shape[-1] > 1:
                self._report.attention(SoftmaxAttention(call.inputs[0], query.projection))
        elif calls.chooses(call):
            chosen = result[1] if isinstance(result, list | tuple) else result
            if first.projection and not chosen.is_floating_point():
                self.notes.note(first.projection, Role.ROUTER, "the largest of its outputs choose experts")
                self._report.routing(Routing(first.projection, call.inputs[0].shape[-1], chosen))
        else:
            noting.note(call, self.notes)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
