"""Records a module being built whose large tensors get no memory: they are made on the meta device, all else is real.

What is allocated, filled with one number or drawn, without reading another tensor, is made without memory from `large`
entries on. Writes to such tensors are noted, not executed. Masks and tables are made that way too: who builds again
with the allocations that turned out to be needed gets them real (lean.py).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from initdiag.errors import RunError
from initdiag.subjects.authors import INIT, OWN, TORCH, MetaQuestions
from initdiag.subjects.operands import storage_key, tensors
from initdiag.subjects.writes import Recorder

_META = torch.device("meta")
_ALLOCATIONS = ("empty", "zeros", "ones", "full", "randn", "rand", "normal")
_RESHAPES = ("t", "transpose", "squeeze", "unsqueeze", "resize", "set", "as_strided", "swapdims", "swapaxes", "detach")
_ELEMENTWISE = ("mul", "div", "add", "sub", "rsub", "neg", "normal")
_READERS = tuple(getattr(torch.Tensor, name) for name in ("numpy", "tolist", "__array__"))
_DEVICE: Any = torch.Tensor.device.__get__
_IS_META: Any = torch.Tensor.is_meta.__get__  # type: ignore[attr-defined]
_SET_DATA: Any = torch.Tensor.data.__set__  # type: ignore[attr-defined]
_NONE: frozenset[int] = frozenset()


class NoEntriesError(RunError):
    """Init code reads entries that were not made; those of the allocations `sources` would give them."""

    def __init__(self, operation: str, sources: Collection[int]) -> None:
        where = _user_line()
        super().__init__(
            f"its init code reads entries of a large parameter ({operation}{where}), which the weightless engine "
            f"doesn't make; draw it without reading it back, or use --engine dense"
        )
        self.sources = frozenset(sources)


class LeanRecorder(Recorder):
    """A Recorder under which tensors of `large` entries or more have no memory.

    Args:
        real: allocations, counted from 0 in the order in which they are made, that get memory all the same.

    Raises (inside the context):
        NoEntriesError: a value is asked of a tensor without memory.
    """

    def __init__(self, large: int, real: Collection[int] = ()) -> None:
        super().__init__()
        self.large, self.real = large, frozenset(real)
        self.entries: list[int] = []  # of every allocation
        self._sources: dict[int, frozenset[int]] = {}  # by storage: which allocations its values come from
        self._questions = _LeanQuestions(self)

    def sources(self, tensor: Tensor) -> frozenset[int]:
        """Return the allocations that the values of a tensor come from."""
        return self._sources.get(storage_key(tensor) or 0, _NONE)

    def replaced(self, old: Tensor, new: Tensor) -> None:
        """Note that a tensor took the place of another, of the same layout."""
        content = self.content(old)
        if content is not None:
            self._set(new, content)

    def _run(self, func: Any, args: Any, kwargs: Any, operation: str, targets: list[Tensor]) -> Any:
        inputs = list(tensors([*args, *kwargs.values()]))
        known = set().union(*(self.sources(tensor) for tensor in inputs)) if inputs and self._sources else _NONE
        if operation in _ALLOCATIONS and _allocates(func._schema, inputs):
            return self._allocate(func, args, kwargs)
        if not inputs:
            result = func(*args, **_on_cpu(func, kwargs, inputs))
        elif any(tensor.is_meta for tensor in inputs):
            result = self._without_memory(func, args, kwargs, operation, targets, known)
        else:
            result = func(*args, **kwargs)
        if known:
            for tensor in tensors(result):
                key = storage_key(tensor)
                if key is not None:
                    self._sources[key] = frozenset(known | self.sources(tensor))
        return result

    def _allocate(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Make a tensor on the CPU, or without memory where it is large."""
        schema = func._schema
        given = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
        like = given.get("self")
        size = given.get("size", like.shape if isinstance(like, Tensor) else ())
        dtype = given.get("dtype") or (like.dtype if isinstance(like, Tensor) else torch.get_default_dtype())
        if given.get("dtype") is None and isinstance(given.get("fill_value"), int):
            dtype = torch.int64  # torch.full with a bool or an integer
        entries = math.prod(size)
        real = dict(_on_cpu(func, kwargs, [like] if isinstance(like, Tensor) else []))
        if entries < self.large or not dtype.is_floating_point or given.get("layout") not in (None, torch.strided):
            return func(*args, **real)
        if _inside_init():  # scratch of orthogonal_ or sparse_, which run only on what is real; not numbered either
            return func(*args, **real)
        number = len(self.entries)
        self.entries.append(entries)
        if number in self.real:
            result = func(*args, **real)
        elif "stride" in given:
            result = torch.empty_strided(size, given["stride"], dtype=dtype, device=_META)
        elif isinstance(like, Tensor) and "size" not in given:
            result = torch.empty_like(like, dtype=dtype, device=_META, memory_format=given.get("memory_format"))
        else:
            result = torch.empty(size, dtype=dtype, device=_META)
        self._sources[storage_key(result) or 0] = frozenset({number})
        return result

    def _without_memory(
        self, func: Any, args: Any, kwargs: Any, operation: str, targets: list[Tensor], known: Collection[int]
    ) -> Any:
        """Call an operation on what has no memory; what has is taken for its shape."""
        name = func._schema.name
        in_place = name.endswith("_") and len(targets) == 1 and targets[0] is args[0]
        if in_place and args[0].is_meta and operation not in (*_RESHAPES, "copy"):
            self._mix(args[0], known)
            return args[0]
        if any(not target.is_meta for target in targets) or operation == "_local_scalar_dense":
            raise NoEntriesError(name.removeprefix("aten::"), known)
        wide = [tensor for tensor in tensors([*args, *kwargs.values()]) if tensor.dim()]
        if operation in _ELEMENTWISE and not targets and len({(tensor.shape, tensor.dtype) for tensor in wide}) == 1:
            return torch.empty_like(wide[0], device=_META)  # torch imports torch._dynamo (2 s) to come to this
        if operation == "_to_copy" and kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _META}
        try:
            result = func(*_shapes(args), **_shapes(kwargs))
        except NotImplementedError as error:  # the size or the value of the result depends on entries
            raise NoEntriesError(name.removeprefix("aten::"), known) from error
        for target in targets:
            self._mix(target, known)
        return result

    def _mix(self, target: Tensor, known: Collection[int]) -> None:
        self._sources[storage_key(target) or 0] = self.sources(target) | frozenset(known)


class _LeanQuestions(MetaQuestions):
    """To the user's code, a tensor without memory is one on the CPU: what it makes on that device must be real."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (_DEVICE, _IS_META) and args[0].is_meta is True:
            frame = sys._getframe(1)
            path = frame.f_code.co_filename
            if path == INIT and func == _IS_META:
                self._recorder.skipped(args[0], frame)
            elif not path.startswith((OWN, TORCH)):
                return torch.device("cpu") if func == _DEVICE else False
        if func in _READERS and args[0].is_meta:
            recorder = self._recorder
            raise NoEntriesError(func.__name__, recorder.sources(args[0]) if isinstance(recorder, LeanRecorder) else ())
        if func == _SET_DATA and args[0].is_meta is not args[1].is_meta:  # either both are real, or none is
            recorder = self._recorder
            known = [recorder.sources(one) for one in args] if isinstance(recorder, LeanRecorder) else []
            raise NoEntriesError(".data =", frozenset().union(*known))
        return func(*args, **(kwargs or {}))


def _inside_init() -> bool:
    """Whether a function of torch.nn.init asks for the memory."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith((OWN, TORCH)):
        if frame.f_code.co_filename == INIT:
            return True
        frame = frame.f_back
    return False


def _allocates(schema: Any, inputs: list[Tensor]) -> bool:
    """Whether an operation makes a tensor whose values depend on no other's: torch.normal may be given its means."""
    if any(argument.alias_info is not None for argument in schema.arguments):
        return False
    return not inputs or schema.name.endswith("_like") or ".new_" in schema.name or "::new_" in schema.name


def _on_cpu(func: Any, kwargs: Any, inputs: list[Tensor]) -> Any:
    """Return keywords that put a new tensor on the CPU where it would be without memory."""
    device = kwargs.get("device")
    asked = device is not None and torch.device(device) == _META
    follows = device is None and any(tensor.is_meta for tensor in inputs)
    takes = any(argument.name == "device" for argument in func._schema.arguments)
    return {**kwargs, "device": torch.device("cpu")} if takes and (asked or follows) else kwargs


def _shapes(value: Any) -> Any:
    """Replace real tensors of more than one entry by ones without memory, also inside lists."""
    if isinstance(value, Tensor):
        return value if value.is_meta or value.dim() == 0 else value.to(_META)
    if isinstance(value, dict):
        return {key: _shapes(item) for key, item in value.items()}
    return type(value)(map(_shapes, value)) if isinstance(value, list | tuple) else value


def _user_line() -> str:
    """Return the place in the code that is not torch's or ours, for a message."""
    frame = sys._getframe(2)
    while frame is not None:
        path = frame.f_code.co_filename
        if not path.startswith((OWN, TORCH)):
            return f" at {path.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""
