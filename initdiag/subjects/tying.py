"""Whether head and embedding are declared to be one tensor, and whether they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

# tie_word_embeddings, weight_tying, weight_sharing, share_embeddings_and_output_weights; untie_… says the opposite.
_FLAG = re.compile(
    r"(?:^|_)(?P<not>un_?)?(?:ties?|tied|tying|(?:weights?|embeddings?)_shar(?:ing|ed)|shared?_.*embed\w*)(?:_|$)"
)
_OTHER_TIES = re.compile(r"encoder_decoder|layer|expert|kv|_qk")
_OTHER_TABLES = re.compile(r"(?:^|[._])(?:w?pos\w*|wpe|\w*type\w*|segment\w*)(?:$|[._])")
_CONFIGS = ("config", "cfg", "args", "hparams", "params")


def tie_of(module: nn.Module) -> tuple[bool | None, bool | None]:
    """Return (declared, found): what a flag says about tying head and embedding, and whether they share storage.

    Declared is Hugging Face's config.tie_word_embeddings, else a bool whose name says so, on the module, its config,
    args or hparams, or those of its children; None without any, or where two disagree. Found is None where there is
    no linear layer of the embedding's shape, or several that could be the head.
    """
    return _declared(module), _found(module)


def _declared(module: nn.Module) -> bool | None:
    for owner in (module, *module.children()):
        flag = getattr(getattr(owner, "config", None), "tie_word_embeddings", None)
        if isinstance(flag, bool):
            return flag
        said = {value for place in _places(owner) for value in _flags(place)}
        if said:
            return said.pop() if len(said) == 1 else None
    return None


def _places(module: nn.Module) -> Iterator[Mapping[str, Any]]:
    """Yield what a module says about itself, and what its config says, as mappings."""
    own = vars(module)
    yield own
    for name in _CONFIGS:
        config = own.get(name)
        if isinstance(config, Mapping):
            yield config
        elif hasattr(config, "__dict__"):
            yield vars(config)


def _flags(place: Mapping[str, Any]) -> Iterator[bool]:
    for name, value in place.items():
        flag = _FLAG.search(name) if isinstance(value, bool) and isinstance(name, str) else None
        if flag and not _OTHER_TIES.search(name):
            yield value != bool(flag["not"])


def _found(module: nn.Module) -> bool | None:
    tables = {name: child.weight for name, child in _modules(module, "Embedding")}
    words = {name: weight for name, weight in tables.items() if not _OTHER_TABLES.search(name)} or tables
    linears = [child.weight for _, child in _modules(module, "Linear")]
    given = getattr(module, "get_output_embeddings", None)
    output = given() if callable(given) else None
    if isinstance(output, nn.Module) and isinstance(getattr(output, "weight", None), Tensor):
        linears = [output.weight]
    heads = [(table, head) for table in words.values() for head in linears if head.shape == table.shape]
    if any(_same(table, head) for table, head in heads):
        return True
    return False if len(heads) == 1 else None


def _modules(module: nn.Module, kind: str) -> Iterator[tuple[str, Any]]:
    """Yield the modules whose class, or a base of it, is named like `kind` and that have a matrix `weight`."""
    for name, child in module.named_modules():
        named = any(kind in base.__name__ for base in type(child).__mro__)
        if named and isinstance(weight := getattr(child, "weight", None), Tensor) and weight.dim() == 2:
            yield name, child


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one shape are the same memory, on the meta device too."""
    if one is other:
        return True
    place, place_of_other = one.untyped_storage()._cdata, other.untyped_storage()._cdata
    return place == place_of_other and one.storage_offset() == other.storage_offset()
