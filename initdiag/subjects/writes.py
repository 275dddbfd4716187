"""Follows every write to every storage, and keeps what each holds.

A TorchDispatchMode sees operations whoever calls them: nn.init, methods of Tensor, factory functions, Hugging Face.
Nothing is kept alive, and no values are read but single numbers, so it works on the meta device just as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from initdiag.subjects.contents import OTHER_DRAWS, SAME, UNKNOWN, Content, drawn, in_part, root, transformed, truncated
from initdiag.subjects.operands import as_number, operands, storage_key, tensors, tensors_read, whole

_TORCH = str(Path(torch.__file__).parent) + "/"
_CONSTRUCTORS = _TORCH + "nn/modules/"
_INIT = nn.init.__file__
_IDLE = (*OTHER_DRAWS, "normal", "erfinv", "clamp")
# transformers wraps every function of nn.init: looked through, like torch's own
_LOOKED_THROUGH = (_TORCH, "/transformers/initialization.py")


class Recorder(TorchDispatchMode):
    """Follows what every storage holds while it is entered.

    Args:
        known: tensors of which it is known what they hold.
        untouchable: tensors that nobody may write to.

    Raises (inside the context):
        PermissionError: an untouchable tensor is about to be written to.
    """

    def __init__(self, known: Iterable[tuple[Tensor, Content]] = (), untouchable: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # A storage is known by its address; the weak reference keeps the address, not the memory, from being reused.
        self._contents: dict[int, tuple[StorageWeakRef, Content]] = {}
        self._untouchable = {key for tensor in untouchable if (key := storage_key(tensor)) is not None}
        self._questions = _MetaQuestions(self)
        for tensor, content in known:
            self._set(tensor, content)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep torch from wrapping the method below for torch.compile: that alone imports torch._dynamo, 1.2 s."""
        return False

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
        author, cut = _author(frame, tensor)
        self._set(tensor, _by(author, cut or content, self.content(tensor)))

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
        # Without memory there is nothing to compute, and torch imports torch._dynamo (4 s) to compute it.
        idle = operation in _IDLE and schema.name.endswith("_") and args[0].is_meta
        result = args[0] if idle else func(*args, **kwargs)
        if targets:
            for tensor in targets:
                self._write(tensor, operation, given, number, fresh)
        elif operation == "lift_fresh":  # torch.tensor(…): made by Python, seen first here
            value = as_number(result)
            self.wrote(result, UNKNOWN if value is None else Content("constant", value), sys._getframe(1))
        else:
            new = [tensor for tensor in tensors(result) if storage_key(tensor) not in keys]
            if new:
                content = drawn(operation, given, as_number(given.get("fill_value")))
                content = content or self._made(operation, operand, number, given, fresh)
                for tensor in new:
                    if operation in SAME:
                        self._set(tensor, content)  # a copy keeps its author
                    else:
                        self.wrote(tensor, content, sys._getframe(1))
        return result

    def _made(
        self, operation: str, operand: Tensor | None, number: float | None, given: Mapping[str, Any], fresh: bool
    ) -> Content:
        """Return what an operation that made new memory put there."""
        source = None if operand is None else self.content(operand)
        if operand is None or source is None:
            return replace(UNKNOWN, fresh=fresh)
        if not whole(operand) and (source.pieces or source.zeroed or source.base == "itself"):
            source = replace(source, base="unknown", zeroed=0.0, pieces=0)
        made = transformed(operation, source, number, given)
        return replace(made, fresh=fresh, base="unknown" if made.base == "nothing" else made.base)

    def _write(
        self, tensor: Tensor, operation: str, given: Mapping[str, Any], number: float | None, fresh: bool
    ) -> None:
        """Note an in-place write to a tensor, or to a view of a part of it."""
        before = self.content(tensor) or UNKNOWN
        new = drawn(operation, given, number)
        if new is None and operation == "copy":
            new = self._copied(given["src"], tensor)
        elif new is None and tensor is not given.get("self"):  # out=
            new = replace(UNKNOWN, fresh=fresh)
        if operation in ("resize", "set"):
            return
        frame = sys._getframe(2)
        if whole(tensor):
            if new is None:
                new = replace(transformed(operation, before, number, given), fresh=fresh)
                new = replace(new, base="unknown") if new.base == "nothing" else new
            self.wrote(tensor, new, frame)
            return
        factor = {"mul": number, "div": 1 / number if number else None}.get(operation)
        share = tensor.numel() * tensor.element_size() / max(tensor.untyped_storage().nbytes(), 1)
        after = in_part(before, new, share, factor)
        if after.pieces > before.pieces:
            after = _by(_author(frame, tensor)[0], after, before)
        self._set(tensor, after)

    def _copied(self, source: Tensor, target: Tensor) -> Content:
        """Return what copy_ leaves."""
        if source.numel() == 1 and target.numel() > 1:
            value = as_number(source)
            return UNKNOWN if value is None else Content("constant", value)
        content = self.content(source)
        if source.numel() != target.numel() or content is None:
            return UNKNOWN if content is None else replace(UNKNOWN, fresh=content.fresh)
        return self._made("clone", source, None, {}, content.fresh)


class _MetaQuestions(TorchFunctionMode):
    """nn.init.trunc_normal_, orthogonal_, sparse_ and dirac_ return at once for a meta tensor: no operation runs that
    a dispatch mode could see. That they ask `tensor.is_meta` first can be seen, and is taken for the write."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if result is True and func == torch.Tensor.is_meta.__get__:  # type: ignore[attr-defined]
            frame = sys._getframe(1)
            if frame.f_code.co_filename == _INIT and whole(args[0]):
                self._recorder.wrote(args[0], UNKNOWN, frame)
        return result


def _author(frame: FrameType | None, tensor: Tensor) -> tuple[str, Content | None]:
    """Say whose code writes, from the stack: "torch" for constructors of torch.nn, else "user".

    What nn.init.trunc_normal_ draws is read from its own arguments: torch draws it by rejection or by inverse
    transform, from release to release. A user's function under Module.apply is the user's; so is a call of a torch
    module's reset_parameters() from the user's code.
    """
    cut: Content | None = None
    while frame is not None:
        path, name = frame.f_code.co_filename, frame.f_code.co_name
        if path == _INIT and name == "_no_grad_trunc_normal_":
            values = frame.f_locals
            if storage_key(values["tensor"]) == storage_key(tensor):
                cut = truncated(*(float(values[key]) for key in ("mean", "std", "a", "b")))
        elif path.startswith(_CONSTRUCTORS) and name == "__init__":
            return "torch", cut
        elif not (path == __file__ or path.startswith(_TORCH) or path.endswith(_LOOKED_THROUGH)):
            return "user", cut
        frame = frame.f_back
    return "user", cut


def _by(author: str, content: Content, before: Content | None) -> Content:
    """Sign a content; the user's code rewrites where constructors of torch.nn had drawn something before."""
    over = before is not None and (before.rewritten or (before.author == "torch" and before.base != "nothing"))
    return replace(content, author=author, rewritten=over and author == "user")
