"""Follows every write to every storage, and keeps what each holds.

A TorchDispatchMode sees operations whoever calls them: nn.init, methods of Tensor, factory functions, Hugging Face.
Nothing is kept alive, and no values are read but single numbers, so it works on the meta device just as well.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from types import FrameType
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from initdiag.dispatch import DispatchMode
from initdiag.subjects.authors import MetaQuestions, author_of, signed
from initdiag.subjects.contents import (
    DRAWN,
    OTHER_DRAWS,
    REPEATED,
    SAME,
    UNKNOWN,
    Content,
    drawn,
    in_part,
    root,
    same_constant,
    transformed,
    unknown_after,
)
from initdiag.subjects.laws import with_parts
from initdiag.subjects.operands import (
    as_number,
    operands,
    random_state,
    row_spans,
    span,
    storage_key,
    tensors,
    tensors_read,
    whole,
)

_CALLS = ("resize", "set")  # write to a tensor, but not to its memory
_IDLE = (*OTHER_DRAWS, "normal", "erfinv", "clamp")


class Recorder(DispatchMode):
    """Follows what every storage holds while it is entered.

    Args:
        known: tensors of which it is known what they hold.
        untouchable: tensors that nobody may write to.

    Raises (inside the context):
        PermissionError: an untouchable tensor is about to be written to.
    """

    def __init__(self, known: Iterable[tuple[Tensor, Content]] = (), untouchable: Iterable[Tensor] = ()) -> None:
        super().__init__()
        # A storage is known by its address; the weak reference keeps the address, not the memory, from being reused.
        self._contents: dict[int, tuple[StorageWeakRef, Content]] = {}
        self._untouchable = {key for tensor in untouchable if (key := storage_key(tensor)) is not None}
        self._draws = count(1)
        self._questions = MetaQuestions(self)
        for tensor, content in known:
            self._set(tensor, content)

    def __enter__(self) -> Recorder:
        self._questions.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *details: Any) -> None:
        super().__exit__(*details)  # type: ignore[no-untyped-call]
        self._questions.__exit__(*details)  # type: ignore[no-untyped-call]

    def content(self, tensor: Tensor) -> Content | None:
        """Return what a tensor holds; None where its storage was not made under these eyes."""
        found = self._contents.get(storage_key(tensor) or 0)
        return None if found is None else found[1]

    def wrote(self, tensor: Tensor, content: Content, frame: FrameType | None) -> None:
        """Note that a whole tensor was written, by the code of a frame."""
        author, cut = author_of(frame, tensor)
        self._set(tensor, signed(author, cut or content, self.content(tensor)))

    def skipped(self, tensor: Tensor, frame: FrameType) -> None:
        """Note that a function of nn.init would have written a meta tensor, or a view of a part of one."""
        new = unknown_after(f"nn.init.{frame.f_code.co_name.removeprefix('_no_grad_')}")
        if whole(tensor):
            self.wrote(tensor, new, frame)
        else:
            self._wrote_part(tensor, self.content(tensor) or UNKNOWN, new, frame)

    def _set(self, tensor: Tensor, content: Content) -> None:
        key = storage_key(tensor)
        if key is not None:
            known = self._contents.get(key)
            self._contents[key] = (StorageWeakRef(tensor.untyped_storage()) if known is None else known[0], content)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        schema = func._schema
        given = {argument.name: argument.default_value for argument in schema.arguments}
        given |= dict(zip(given, args, strict=False)) | kwargs
        targets = [
            tensor
            for argument in schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
            for tensor in tensors(given[argument.name])
        ]
        if any(storage_key(tensor) in self._untouchable for tensor in targets):
            raise PermissionError(f"{schema.name} writes to a tensor that is not to be written to")
        operation = root(schema.name)
        # Before the call: an in-place operation changes what its operands hold.
        operand, number = operands(operation, given)
        inputs = list(tensors(list(given.values())))
        fresh = any(
            content.fresh for content in map(self.content, tensors_read(inputs, schema, given)) if content is not None
        )
        keys = {storage_key(tensor) for tensor in inputs}
        result = self._run(func, args, kwargs, operation, targets)
        if targets:
            for tensor in targets:
                self._write(tensor, operation, given, number, fresh)
        elif operation == "lift_fresh":  # torch.tensor(…): made by Python, seen first here
            value = as_number(result)
            made = unknown_after("values from outside torch") if value is None else Content("constant", value)
            self.wrote(result, made, sys._getframe(1))
        else:
            new = [tensor for tensor in tensors(result) if storage_key(tensor) not in keys]
            if new:
                content = self._told_apart(new[0], drawn(operation, given, as_number(given.get("fill_value"))), given)
                content = content or self._made(operation, operand, number, given, fresh)
                for tensor in new:
                    if operation in SAME:
                        self._set(tensor, content)  # a copy keeps its author
                    else:
                        self.wrote(tensor, content, sys._getframe(1))
        return result

    def _run(self, func: Any, args: Any, kwargs: Any, operation: str, targets: list[Tensor]) -> Any:
        """Call the operation; targets are what it writes to."""
        # Without memory there is nothing to compute, and torch imports torch._dynamo (4 s) to compute it.
        idle = operation in _IDLE and func._schema.name.endswith("_") and targets[0].is_meta
        return args[0] if idle else func(*args, **kwargs)

    def _made(
        self, operation: str, operand: Tensor | None, number: float | None, given: Mapping[str, Any], fresh: bool
    ) -> Content:
        """Return what an operation that made new memory put there."""
        source = None if operand is None else self.content(operand)
        if operand is None or source is None:
            return replace(UNKNOWN, fresh=fresh, why=f"computed by {operation}()")
        if not whole(operand) and (source.pieces or source.zeroed or source.base == "itself"):
            source = replace(source, base="unknown", zeroed=0.0, pieces=0)
        if source.parts and not (whole(operand) and operand.is_contiguous()):
            source = replace(source, base="unknown", parts=(), why="computed from a part of a tensor written in parts")
        made = transformed(operation, self._numbered(operand, source), number, given)
        return replace(made, fresh=fresh, base="unknown" if made.base == "nothing" else made.base)

    def _numbered(self, tensor: Tensor, content: Content) -> Content:
        """Number a draw that is about to be copied, so that the copy is known as one."""
        if content.base not in DRAWN and not content.parts:
            return content
        if not content.draw:
            content = replace(content, draw=next(self._draws))
            self._set(tensor, content)
        if any(size > 1 and not step for size, step in zip(tensor.shape, tensor.stride(), strict=True)):
            return replace(content, draw=REPEATED)
        part = (content.draw, tensor.storage_offset(), tensor.numel())
        return content if whole(tensor) else replace(content, draw=hash(part))

    def _write(
        self, tensor: Tensor, operation: str, given: Mapping[str, Any], number: float | None, fresh: bool
    ) -> None:
        """Note an in-place write to a tensor, or to a view of a part of it."""
        if operation in _CALLS:
            return
        before = self.content(tensor) or UNKNOWN
        new = self._told_apart(tensor, drawn(operation, given, number), given)
        if new is None and operation == "copy":
            new = self._copied(given["src"], tensor)
        elif new is None and tensor is not given.get("self"):  # out=
            new = replace(UNKNOWN, fresh=fresh, why=f"written by {operation}(out=…)")
        frame = sys._getframe(2)
        rows = row_spans(operation, given)
        if whole(tensor):
            if new is None:
                new = replace(transformed(operation, before, number, given), fresh=fresh)
                new = replace(new, base="unknown") if new.base == "nothing" else new
            if rows is not None:
                value = as_number(given.get("values", given.get("value")))
                put = unknown_after("filled row by row") if value is None else Content("constant", value)
                new = with_parts(before, new, _entries(tensor), rows, lambda _: put)
            self.wrote(tensor, new, frame)
            return
        factor = {"mul": number, "div": 1 / number if number else None}.get(operation)
        change = (lambda part: transformed(operation, part, number, given)) if new is None else None
        self._wrote_part(tensor, before, new, frame, factor, change)

    def _wrote_part(
        self,
        tensor: Tensor,
        before: Content,
        new: Content | None,
        frame: FrameType | None,
        factor: float | None = None,
        change: Callable[[Content], Content] | None = None,
    ) -> None:
        """Note that a part of a storage was written: it holds `new`, or what `change` makes of what it held."""
        share = tensor.numel() * tensor.element_size() / max(tensor.untyped_storage().nbytes(), 1)
        after = in_part(before, new, share, factor)
        author, cut = author_of(frame, tensor) if after.pieces > before.pieces else ("", None)
        if author:
            after = signed(author, after, before)
        if before.parts or not same_constant(before, new):
            put = cut or new or UNKNOWN
            if put.draw and any(part.content.draw == put.draw for part in before.parts):
                put = replace(put, draw=REPEATED)
            after = with_parts(before, after, _entries(tensor), span(tensor), change or (lambda _: put))
        self._set(tensor, after)

    def _told_apart(self, tensor: Tensor, content: Content | None, given: Mapping[str, Any]) -> Content | None:
        """Number a draw that isn't made, by the state of its generator, so that one after the same seed is known."""
        if content is None or content.base not in DRAWN or not tensor.is_meta:
            return content
        return replace(content, draw=random_state(given.get("generator")))

    def _copied(self, source: Tensor, target: Tensor) -> Content:
        """Return what copy_ leaves."""
        if source.numel() == 1 and target.numel() > 1:
            value = as_number(source)
            return unknown_after("filled with one entry") if value is None else Content("constant", value)
        content = self.content(source)
        if content is None:
            return unknown_after("copied from a tensor that was made elsewhere")
        if storage_key(source) == storage_key(target):
            return unknown_after("copied within itself")
        if source.numel() != target.numel() or (content.parts and not target.is_contiguous()):
            return replace(UNKNOWN, fresh=content.fresh, why="copied from a tensor of another shape")
        return self._made("clone", source, None, {}, content.fresh)


def _entries(tensor: Tensor) -> int:
    """Return how many entries the storage of a tensor has."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()
